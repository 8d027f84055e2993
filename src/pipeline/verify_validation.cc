// Post-validation: commands that a rank may repeat, what it repeats them by, and the step that is
// made again.
#include <algorithm>
#include <optional>

#include "ops/update_ops.h"
#include "pipeline/verify.h"

namespace mw::pipeline {
namespace {

using ir::OpKind;

// A call of a rank, and the first op of a kind in its fragment.
struct Found {
  size_t command = 0;
  const Fragment* fragment = nullptr;
  const ir::Op* op = nullptr;
};

std::vector<Found> calls_with(const Checked& checked, int32_t r, OpKind kind) {
  std::vector<Found> found;
  const std::vector<Command>& commands = checked.rank(r).commands;
  for (size_t c = 0; c < commands.size(); ++c) {
    if (commands[c].kind != Command::Kind::kCall) continue;
    const Fragment& fragment = checked.fragment(commands[c]);
    for (const ir::Op& op : fragment.graph.ops) {
      if (op.kind == kind) found.push_back({c, &fragment, &op});
    }
  }
  return found;
}

// The buffer of a call's input or output that is this value, in place of a port: invalid if none.
BufferId input_buffer(const Command& command, const Fragment& fragment, ValueId v) {
  for (size_t i = 0; i < fragment.inputs.size(); ++i)
    if (fragment.inputs[i].value == v) return command.buffers[i];
  return BufferId();
}
BufferId output_buffer(const Command& command, const Fragment& fragment, size_t output) {
  return command.buffers[fragment.inputs.size() + output];
}
BufferId output_buffer(const Command& command, const Fragment& fragment, ValueId v) {
  const ValueIds& outputs = fragment.graph.outputs;
  const auto it = std::find(outputs.begin(), outputs.end(), v);
  if (it == outputs.end()) return BufferId();
  return output_buffer(command, fragment, static_cast<size_t>(it - outputs.begin()));
}

class ValidationChecker {
 public:
  ValidationChecker(const Checked& checked, Diagnostics& out) : checked_(checked), out_(out) {}

  void run() {
    const auto ranks = static_cast<int32_t>(checked_.program.ranks.size());
    int32_t repeating = 0;
    for (int32_t r = 0; r < ranks; ++r) {
      check_rollback(r);
      if (checked_.rank(r).repeatable > 0) ++repeating;
    }
    if (repeating != 0 && repeating != ranks) {
      out_.add("{} of {} pipeline ranks may repeat commands: all go back, or none", repeating,
               ranks);
      return;
    }
    for (int32_t r = 0; r < ranks; ++r) {
      if (repeating > 0) {
        check_repeatable(r);
        check_acquired(r);
        check_received(r);
        check_validate(r);
      } else {
        check_no_early_step(r);
      }
    }
    check_losses();
  }

 private:
  bool is_state(int32_t r, BufferId id) const {
    return id.valid() && static_cast<int32_t>(id.value) < checked_.rank(r).states;
  }
  template <typename... Args>
  void add(int32_t r, size_t command, fmt::format_string<Args...> format, Args&&... args) {
    out_.add("{} {}", place_text(checked_.program, r, command),
             fmt::format(format, std::forward<Args>(args)...));
  }

  void check_rollback(int32_t r) {
    const std::vector<Command>& commands = checked_.rank(r).commands;
    size_t calls = 0, rollbacks = 0, at = 0;
    for (size_t c = 0; c < commands.size(); ++c) {
      if (commands[c].kind != Command::Kind::kCall) continue;
      ++calls;
      if (commands[c].action.kind != ActionKind::kRollback) continue;
      ++rollbacks;
      at = c;
    }
    if (rollbacks > 0 && calls > 1) add(r, at, "makes a step again beside other work");
  }

  void check_repeatable(int32_t r) {
    const RankProgram& rank = checked_.rank(r);
    for (size_t c = 0; c < static_cast<size_t>(rank.repeatable); ++c) {
      const Command& command = rank.commands[c];
      if (command.kind != Command::Kind::kCall) continue;
      if (command.action.kind == ActionKind::kValidate) continue;
      const Fragment& fragment = checked_.fragment(command);
      bool writes = !fragment.graph.updates.empty();
      for (size_t i = 0; i < fragment.graph.outputs.size(); ++i)
        writes = writes || is_state(r, output_buffer(command, fragment, i));
      if (writes) add(r, c, "may be repeated, but writes a state");
    }
  }

  // A slot that is acquired among the commands that may be repeated is published among them, or it
  // would be acquired twice for one message.
  void check_acquired(int32_t r) {
    const RankProgram& rank = checked_.rank(r);
    const auto end = rank.commands.begin() + rank.repeatable;
    for (size_t c = 0; c < static_cast<size_t>(rank.repeatable); ++c) {
      const Command& acquire = rank.commands[c];
      if (acquire.kind != Command::Kind::kAcquire) continue;
      const bool published = std::any_of(rank.commands.begin(), end, [&](const Command& command) {
        return command.kind == Command::Kind::kPublish && command.channel == acquire.channel &&
               command.sequence == acquire.sequence;
      });
      if (!published) add(r, c, "may be repeated, but its slot is published behind what may");
    }
  }

  // What is received among the commands that may be repeated was sent among those of the sender: it
  // may go back there.
  void check_received(int32_t r) {
    const RankProgram& rank = checked_.rank(r);
    for (size_t c = 0; c < static_cast<size_t>(rank.repeatable); ++c) {
      const Command& receive = rank.commands[c];
      if (receive.kind != Command::Kind::kReceive) continue;
      const int32_t from = checked_.program.channels[static_cast<size_t>(receive.channel)].from;
      const std::vector<Command>& sender = checked_.rank(from).commands;
      const auto end = sender.begin() + checked_.rank(from).repeatable;
      const bool sent = std::any_of(sender.begin(), end, [&](const Command& command) {
        return command.kind == Command::Kind::kPublish && command.channel == receive.channel &&
               command.sequence == receive.sequence;
      });
      if (!sent)
        add(r, c, "may be repeated, but pipeline rank {} may go back before it sends", from);
    }
  }

  // One op among the commands that may be repeated takes the squares of every rank, this rank's own
  // from the state that its update leaves them in, and tells by what it repeats them.
  void check_validate(int32_t r) {
    const RankProgram& rank = checked_.rank(r);
    const std::vector<Found> found = calls_with(checked_, r, OpKind::kValidate);
    if (found.size() != 1 || found[0].command >= static_cast<size_t>(rank.repeatable)) {
      out_.add("pipeline rank {} validates {} times among the commands that it may repeat", r,
               found.size());
      return;
    }
    const auto& [c, fragment, op] = found[0];
    const Command& command = rank.commands[c];
    if (output_buffer(command, *fragment, op->results[2]) != rank.amended)
      add(r, c, "does not tell the buffer {} by which commands are repeated", rank.amended.value);
    const auto ranks = checked_.program.ranks.size();
    const auto squares =
        static_cast<size_t>(std::count_if(op->operands.begin(), op->operands.end(), [&](ValueId v) {
          return fragment->graph.type(v).rank() == 1;
        }));
    if (squares != ranks)
      add(r, c, "validates the squares of {} pipeline ranks of {}", squares, ranks);
    std::vector<int32_t> losses;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      const std::optional<int32_t> from = source(r, command, *fragment, op->operands[i]);
      if (!from) {
        add(r, c, "validates operand {}, which no pipeline rank sent", i);
      } else if (i >= squares) {
        losses.push_back(*from);
      } else if (*from != static_cast<int32_t>(i)) {
        add(r, c, "takes the squares of pipeline rank {} for those of {}", *from, i);
      }
    }
    if (std::adjacent_find(losses.begin(), losses.end(), std::greater_equal<>()) != losses.end())
      add(r, c, "adds losses of pipeline ranks that are not in order");
    losses_.push_back(losses);
    check_left(r, input_buffer(command, *fragment, op->operands[static_cast<size_t>(r)]));
  }

  // The pipeline rank whose state a value is: a state of this rank, or what another one sent of a
  // state of the same name.
  std::optional<int32_t> source(int32_t r, const Command& command, const Fragment& fragment,
                                ValueId v) const {
    const BufferId id = input_buffer(command, fragment, v);
    if (!id.valid()) return std::nullopt;
    if (is_state(r, id)) return r;
    const Buffer& buffer = checked_.rank(r).buffers[id.index()];
    if (buffer.storage.kind != Storage::Kind::kSlot) return std::nullopt;
    const Channel& channel = checked_.program.channels[static_cast<size_t>(buffer.storage.channel)];
    if (channel.to != r || !sends_state(channel.from, buffer.storage.channel, buffer.name()))
      return std::nullopt;
    return channel.from;
  }

  // Whether all that a rank writes into a channel is copies of the state of that name.
  bool sends_state(int32_t r, int32_t channel, const std::string& name) const {
    const RankProgram& rank = checked_.rank(r);
    bool any = false;
    for (const Command& command : rank.commands) {
      if (command.kind != Command::Kind::kCall) continue;
      const Fragment& fragment = checked_.fragment(command);
      for (size_t i = 0; i < fragment.graph.outputs.size(); ++i) {
        const Buffer& to = rank.buffers[output_buffer(command, fragment, i).index()];
        if (to.storage.kind != Storage::Kind::kSlot || to.storage.channel != channel) continue;
        const OpId by = fragment.graph.value(fragment.graph.outputs[i]).producer;
        if (!by.valid() || fragment.graph.op(by).kind != OpKind::kCopy) return false;
        const BufferId from = input_buffer(command, fragment, fragment.graph.op(by).operands[0]);
        if (!is_state(r, from) || rank.buffers[from.index()].name() != name) return false;
        any = true;
      }
    }
    return any;
  }

  // Every step that is made too early leaves its squares where the next call validates them.
  void check_left(int32_t r, BufferId squares) {
    each_early_step(r, [&](size_t c, const Fragment& fragment, const Optimized& optimized) {
      if (!optimized.kept) return;
      const BufferId left =
          output_buffer(checked_.rank(r).commands[c], fragment, optimized.kept->squares);
      if (left != squares)
        add(r, c, "leaves the squares of op {} where nothing validates them", optimized.op);
    });
  }
  void check_no_early_step(int32_t r) {
    each_early_step(r, [&](size_t c, const Fragment&, const Optimized& optimized) {
      add(r, c, "makes the step of op {} too early, and nothing validates it", optimized.op);
    });
  }
  template <typename Function>
  void each_early_step(int32_t r, const Function& function) {
    const std::vector<Command>& commands = checked_.rank(r).commands;
    for (size_t c = 0; c < commands.size(); ++c) {
      if (commands[c].kind != Command::Kind::kCall) continue;
      const size_t fragment = commands[c].fragment.index();
      for (const Optimized& optimized : checked_.accumulation[fragment].optimized)
        if (optimized.kept) function(c, checked_.program.fragments[fragment], optimized);
    }
  }

  // All ranks add the same losses.
  void check_losses() {
    for (size_t i = 1; i < losses_.size(); ++i) {
      if (losses_[i] != losses_[0]) out_.add("pipeline ranks report the losses of other ranks");
    }
  }

  const Checked& checked_;
  Diagnostics& out_;
  std::vector<std::vector<int32_t>> losses_;  // [rank that validates] whose
};

class AmendmentChecker {
 public:
  AmendmentChecker(const Checked& train, const Checked& amend, Diagnostics& out)
      : train_(train), amend_(amend), out_(out) {}

  void run() {
    for (size_t r = 0; r < train_.program.ranks.size(); ++r) run_rank(static_cast<int32_t>(r));
  }

 private:
  void run_rank(int32_t r) {
    const std::vector<Found> validates = calls_with(train_, r, OpKind::kValidate);
    if (validates.size() != 1)
      return out_.add("pipeline rank {} validates {} times", r, validates.size());
    read_scales(r, validates[0]);
    std::vector<Found> again = calls_with(amend_, r, OpKind::kAdamW);
    const std::vector<Command>& commands = train_.rank(r).commands;
    for (size_t c = 0; c < commands.size(); ++c) {
      if (commands[c].kind != Command::Kind::kCall) continue;
      const size_t fragment = commands[c].fragment.index();
      for (const Optimized& optimized : train_.accumulation[fragment].optimized) {
        if (!optimized.kept) continue;
        const auto it = std::find_if(again.begin(), again.end(), [&](const Found& found) {
          return amends(r, found, commands[c], train_.program.fragments[fragment], optimized);
        });
        if (it != again.end()) {
          again.erase(it);
        } else {
          out_.add("{}: op {} (adamw) is amended by no op of '{}'",
                   place_text(train_.program, r, c), optimized.op, amend_.program.name);
        }
      }
    }
    for (const Found& found : again) {
      out_.add("{} amends a step that is not made", place_text(amend_.program, r, found.command));
    }
  }

  // Where the rank's factor is kept, and the factor of all.
  void read_scales(int32_t r, const Found& validate) {
    const Command& command = train_.rank(r).commands[validate.command];
    const Fragment& fragment = *validate.fragment;
    scale_ = output_buffer(command, fragment, validate.op->results[1]);
    used_ = BufferId();
    for (const ir::Op& op : fragment.graph.ops) {
      const bool own = op.kind == OpKind::kClip && op.attrs == validate.op->attrs &&
                       op.operands[0] == validate.op->operands[static_cast<size_t>(r)];
      if (own) used_ = output_buffer(command, fragment, op.results[1]);
    }
  }

  // Both are told the learning rate and the step, being sound.
  bool amends(int32_t r, const Found& found, const Command& command, const Fragment& fragment,
              const Optimized& optimized) const {
    const ir::Op& early = fragment.graph.ops[static_cast<size_t>(optimized.op)];
    const ir::Op& late = *found.op;
    if (late.operands.size() != ops::kAmendOperands || !(late.attrs == early.attrs)) return false;
    const Command& there = amend_.rank(r).commands[found.command];
    const auto late_buffer = [&](size_t i) {
      return input_buffer(there, *found.fragment, late.operands[i]);
    };
    const auto same_state = [&](size_t i) {
      const BufferId id = input_buffer(command, fragment, early.operands[i]);
      return id.valid() && id == late_buffer(i);
    };
    const auto is = [&](size_t i, BufferId id) { return id.valid() && id == late_buffer(i); };
    const auto kept = [&](size_t output) { return output_buffer(command, fragment, output); };
    return same_state(0) && same_state(2) && same_state(3) &&
           is(1, kept(optimized.kept->gradient)) && is(4, scale_) && is(7, used_) &&
           is(8, kept(optimized.kept->weight)) && is(9, kept(optimized.kept->moment)) &&
           is(10, kept(optimized.kept->variance));
  }

  const Checked &train_, &amend_;
  Diagnostics& out_;
  BufferId scale_, used_;  // of the rank that is looked at
};

}  // namespace

void check_validation(const Checked& checked, Diagnostics& out) {
  ValidationChecker(checked, out).run();
}

void check_amendment(const Checked& train, const Checked& amend, Diagnostics& out) {
  AmendmentChecker(train, amend, out).run();
}

}  // namespace mw::pipeline
