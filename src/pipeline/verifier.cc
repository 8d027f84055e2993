#include "pipeline/verifier.h"

#include "base/error.h"
#include "base/text.h"
#include "pipeline/verify.h"

namespace mw::pipeline {

std::string place_text(const Program& program, int32_t rank, size_t c) {
  const Command& command = program.ranks[static_cast<size_t>(rank)].commands[c];
  std::string what = to_string(command.kind);
  switch (command.kind) {
    case Command::Kind::kCall:
      what += fmt::format(" '{}', {}", program.fragments[command.fragment.index()].name,
                          to_string(command.action));
      break;
    case Command::Kind::kLoad: what += fmt::format(" '{}'", command.name); break;
    default: {
      const Channel& channel = program.channels[static_cast<size_t>(command.channel)];
      const bool sends =
          command.kind == Command::Kind::kAcquire || command.kind == Command::Kind::kPublish;
      what +=
          fmt::format(" message {} of channel '{}', {}, peer pipeline rank {}", command.sequence,
                      channel.name, to_string(command.action), sends ? channel.to : channel.from);
    }
  }
  return fmt::format("pipeline rank {}, command {} ({})", rank, c, what);
}

static Checked checked_program(const Program& program, const VerifyOptions& options) {
  Checked checked{program, options, {}, {}};
  for (const Fragment& fragment : program.fragments) {
    checked.info.push_back(make_fragment_info(fragment));
    checked.accumulation.push_back(make_accumulation_info(fragment, program.mesh));
  }
  return checked;
}

static void check_limit(const Checked& checked, const std::vector<RankFigures>& ranks,
                        Diagnostics& out) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Bytes needs = memory_of(checked.program, ranks[r], static_cast<int32_t>(r));
    if (needs <= checked.options.memory_limit) continue;
    out.add(
        "pipeline rank {} needs {} ({} of states, {} of step arena, the rest slots), the limit is "
        "{}",
        r, format_bytes(needs.value), format_bytes(ranks[r].state_bytes.value),
        format_bytes(ranks[r].arena_peak.value), format_bytes(checked.options.memory_limit.value));
  }
}

Verification verify(const Program& program, const VerifyOptions& options) {
  Verification result;
  Diagnostics out;
  check_structure(program, out);
  if (out.empty()) {
    const Checked checked = checked_program(program, options);
    check_fragments(checked, out);
    check_flow(checked, out);
    check_channels(checked, out);
    check_deadlock(checked, out);
    check_gradients(checked, out);
    check_parameters(checked, out);
    check_norm(checked, out);
    check_step(checked, out);
    check_memory(checked, out);
    check_validation(checked, out);
    result.ranks = make_figures(checked);
    if (options.memory_limit.value > 0) check_limit(checked, result.ranks, out);
  }
  result.findings = out.findings();
  return result;
}

std::vector<std::string> amendment_findings(const Program& train, const Program& amend) {
  const VerifyOptions options;
  Diagnostics out;
  check_amendment(checked_program(train, options), checked_program(amend, options), out);
  return out.findings();
}

}  // namespace mw::pipeline
