#include <fmt/core.h>

#include "base/text.h"
#include "checkpoint/store.h"
#include "cli/command.h"

namespace mw::cli {

void add_checkpoint(CLI::App& app, const Diagnostics& words) {
  CLI::App* command = app.add_subcommand("checkpoint", "The checkpoints of a run");
  command->require_subcommand(1);
  auto run = std::make_shared<std::string>();
  const auto latest = [run, &words] {
    Diagnostics diagnostics = words;
    require(*run, "run", "a run folder", diagnostics);
    diagnostics.throw_if_any();
    return checkpoint::CheckpointReader::latest(posix_fs(), join_path(*run, "checkpoint"));
  };
  CLI::App* info = command->add_subcommand("info", "What the newest checkpoint holds");
  info->add_option("run", *run, "The run folder");
  info->callback([latest] {
    const checkpoint::CheckpointReader reader = latest();
    fmt::print("{}: step {}\n{}", reader.path(), reader.step(), reader.run_state().dump_pretty());
    for (const std::string& group : reader.groups()) {
      for (const checkpoint::TensorSpec& tensor : reader.tensors(group)) {
        fmt::print("{:<10} {:<4} {:<18} {}\n", group, dtype_name(tensor.dtype),
                   checkpoint::shape_text(tensor.shape), tensor.name);
      }
    }
  });
  CLI::App* verify = command->add_subcommand(
      "verify", "Read the newest checkpoint whole and check every checksum");
  verify->add_option("run", *run, "The run folder");
  verify->callback([latest] {
    const checkpoint::CheckpointReader reader = latest();
    reader.verify();
    fmt::print("{}: complete, every checksum is right\n", reader.path());
  });
}

}  // namespace mw::cli
