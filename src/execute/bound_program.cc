#include "execute/bound_program.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "comm/waiting.h"

namespace mw::execute {
namespace {

using pipeline::Command;

std::string microbatches(const Command& command) {
  if (command.kind == Command::Kind::kLoad) {
    return command.microbatch < 0 ? "" : fmt::format(", microbatch {}", command.microbatch);
  }
  const pipeline::Action& action = command.action;
  if (!action.stage.valid()) return "";
  switch (action.kind) {
    case pipeline::ActionKind::kF:
    case pipeline::ActionKind::kI:
    case pipeline::ActionKind::kW:
    case pipeline::ActionKind::kB: break;
    default: return "";
  }
  if (action.count == 1) return fmt::format(", microbatch {}", action.first);
  return fmt::format(", microbatches {} to {}", action.first, action.first + action.count - 1);
}

std::string result_text(const BoundProgram& bound, const Instruction& i) {
  const ir::Op& run = bound.op(i);
  if (run.results.empty()) return "";
  const ValueId result = run.results[0];
  std::string text = fmt::format(" '{}'", bound.label(i, result));
  if (!bound.name(i, result).empty()) return text;
  std::vector<std::string> operands;
  for (const ValueId v : run.operands) {
    if (!bound.name(i, v).empty()) operands.push_back(fmt::format("'{}'", bound.name(i, v)));
  }
  return operands.empty() ? text : fmt::format("{} of {}", text, join(operands, ", "));
}

}  // namespace

const std::string& BoundProgram::name(const Instruction& i, ValueId value) const {
  const pipeline::Fragment& called = fragment(i);
  const int32_t names = command(i).names;
  if (names < 0) return called.graph.value(value).name;
  const size_t ports = called.inputs.size() + called.graph.outputs.size();
  return program->names[static_cast<size_t>(names)][ports + value.index()];
}

std::string BoundProgram::label(const Instruction& i, ValueId value) const {
  const std::string& own = name(i, value);
  return own.empty() ? fmt::format("%{}", value.value) : own;
}

std::string BoundProgram::describe(const Instruction& i) const {
  const Command& of = command(i);
  std::string text = fmt::format("command {} {}", i.command, pipeline::to_string(of.kind));
  switch (of.kind) {
    case Command::Kind::kLoad: text += fmt::format(" '{}'", of.name); break;
    case Command::Kind::kCall: text += fmt::format(" '{}'", fragment(i).name); break;
    default:
      text += fmt::format(" message {} of channel '{}'", of.sequence,
                          program->channels[static_cast<size_t>(of.channel)].name);
  }
  text += fmt::format(" ({}){}", pipeline::to_string(of.action), microbatches(of));
  if (i.ring != nullptr) {
    const bool is_producer =
        of.kind == Command::Kind::kAcquire || of.kind == Command::Kind::kPublish;
    text += fmt::format(
        ", peer rank {}",
        (is_producer ? i.ring->channel->consumer() : i.ring->channel->producer()).value);
  }
  if (i.op >= 0) {
    const ir::Op& run = op(i);
    text += fmt::format(", op {} {}", i.op, ir::op_name(run.kind));
    text += result_text(*this, i);
    if (i.collective != nullptr && i.collective->group() != nullptr) {
      std::vector<RankId> peers = i.collective->group()->members();
      std::erase(peers, peers[static_cast<size_t>(i.collective->group()->rank())]);
      text += fmt::format(", peer {}", comm::describe_ranks(peers));
    }
  }
  return text;
}

}  // namespace mw::execute
