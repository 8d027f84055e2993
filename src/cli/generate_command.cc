#include <fmt/core.h>

#include "base/fs.h"
#include "checkpoint/store.h"
#include "cli/command.h"
#include "train/generate.h"

namespace mw::cli {

void add_generate(CLI::App& app, const Diagnostics& words) {
  CLI::App* command =
      app.add_subcommand("generate", "Continue a prompt with the newest checkpoint of a run");
  struct Options {
    std::string run, prompt;
    train::GenerateOptions generate;
  };
  auto options = std::make_shared<Options>();
  command->add_option("run", options->run, "The run folder");
  const CLI::Option* prompt = command->add_option("--prompt", options->prompt, "Text to continue");
  command->add_option("--tokens", options->generate.tokens, "How many tokens to add (default: 100)")
      ->check(whole(1));
  command
      ->add_option("--temperature", options->generate.temperature,
                   "0: always the likeliest token (default: 0.8)")
      ->check(number_at_least(0));
  command->add_option("--seed", options->generate.seed, "Seed of the draws (default: 1)")
      ->check(any_whole());
  command->callback([options, prompt, &words] {
    Diagnostics diagnostics = words;
    require(options->run, "run", "a run folder", diagnostics);
    if (prompt->count() == 0) require("", "--prompt", "a text to continue", diagnostics);
    if (!diagnostics.empty()) {
      if (!options->run.empty())
        attempt(diagnostics, [&] {
          checkpoint::CheckpointReader::latest(posix_fs(), join_path(options->run, "checkpoint"));
        });
      diagnostics.throw_if_any();
    }
    fmt::print("{}\n",
               train::generate(posix_fs(), options->run, options->prompt, options->generate));
  });
}

}  // namespace mw::cli
