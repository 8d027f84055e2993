#include <map>

#include <fmt/core.h>

#include "base/count.h"
#include "base/error.h"
#include "cli/command.h"
#include "cli/output_file.h"
#include "data/indexed_dataset.h"

namespace mw::cli {
namespace {

void print_info(const std::string& prefix) {
  const data::IndexedInfo info = data::indexed_info(posix_fs(), prefix);
  fmt::print("{}: {} of type {} in {} and {}, the longest of {} tokens; tokens from {} to {}\n",
             prefix, counted(info.tokens, "token"), data::token_type_name(info.type),
             counted(info.sequences, "sequence"), counted(info.documents, "document"),
             info.longest_document, info.range.min, info.range.max);
}

}  // namespace

void add_data(CLI::App& app, const Diagnostics& words) {
  CLI::App* command = app.add_subcommand("data", "Megatron-LM's .bin/.idx datasets");
  command->require_subcommand(1);
  struct Options {
    std::string file, prefix, split = "none";
  };
  auto options = std::make_shared<Options>();
  CLI::App* build = command->add_subcommand("build", "Write a text file's bytes as tokens");
  build->add_option("file", options->file, "The text");
  build->add_option("-o,--output", options->prefix, "PREFIX of PREFIX.bin and PREFIX.idx");
  const std::map<std::string, data::DocumentSplit> splits = {
      {"none", data::DocumentSplit::kNone},
      {"lines", data::DocumentSplit::kLines},
      {"paragraphs", data::DocumentSplit::kBlankLines}};
  build->add_option("--documents", options->split, "Where documents end: none, lines or paragraphs")
      ->check(one_of({"none", "lines", "paragraphs"}));
  build->callback([options, splits, &words] {
    Diagnostics diagnostics = words;
    require(options->file, "file", "a text", diagnostics);
    require(options->prefix, "--output", "a PREFIX of PREFIX.bin and PREFIX.idx", diagnostics);
    for (const char* end : data::kWrittenEnds) {
      if (!options->prefix.empty() && same_file(options->file, options->prefix + end)) {
        diagnostics.add("--output: {} would write over the text {}; choose another prefix",
                        options->prefix, options->file);
      }
    }
    diagnostics.throw_if_any();
    data::write_indexed_text(posix_fs(), options->file, options->prefix, splits.at(options->split));
    print_info(options->prefix);
  });
  CLI::App* info = command->add_subcommand("info", "Check a dataset and say what is in it");
  info->add_option("prefix", options->prefix, "PREFIX of PREFIX.bin and PREFIX.idx");
  info->callback([options, &words] {
    Diagnostics diagnostics = words;
    require(options->prefix, "prefix", "the PREFIX of PREFIX.bin and PREFIX.idx", diagnostics);
    diagnostics.throw_if_any();
    print_info(options->prefix);
  });
}

}  // namespace mw::cli
