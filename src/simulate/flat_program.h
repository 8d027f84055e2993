// A program as flat arrays of small numbers: what the event loop reads. Private to room simulate.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/buffer_lives.h"
#include "pipeline/program.h"

namespace mw::simulate {

struct FlatCommand {
  pipeline::Command::Kind kind = pipeline::Command::Kind::kCall;
  int32_t index = -1;  // of a call: in FlatRank::calls; of a message's commands: its slot
};

// What calls of a rank that are alike have in common: of one fragment, bound to the same states. An
// update, and each of a pair, is one by itself.
struct FlatCall {
  int32_t fragment = 0;
  int32_t timed = 0;  // the fragment where the rank's groups lie
  // First of its state ports' buffers, behind which are those of an update's outputs; -1: nobody
  // wants them.
  int32_t bindings = -1;
  int32_t paired = -1;  // the command of the call behind it that a schedule lays beside it
  int32_t pair = -1;    // with `paired`: the two as one (TimedPair), where that is shorter
};

// When a rank holds the most, inside the call or behind a command that is none: the order of its
// commands says so, whatever the clock.
struct Fullest {
  int32_t command = -1;  // -1: it has none
  int64_t bytes = 0;     // the call's workspace is part of them
  int64_t workspace = 0;
};

struct FlatChannel {
  int32_t from = 0, to = 0;
  int64_t bytes = 0;  // of the value, as the program counts it
  int64_t sent = 0;   // on the link
  double gather = 0;  // seconds that the receiver puts the parts together
  size_t level = 0;   // of the link between the two
};

struct FlatRank {
  std::vector<FlatCommand> commands;
  std::vector<FlatCall> calls;    // of a pair, the second behind the first
  size_t may_wait = 0;            // commands that are no calls and may wait for another rank
  std::vector<int32_t> bindings;  // root buffers of what calls are bound to
  std::vector<pipeline::BufferUse> uses;  // [buffer]
  pipeline::BufferLives memory;           // of the curve
  Fullest fullest;
  int64_t reserved = 0;
  std::vector<int64_t> workspace;  // [command] bytes; empty: a call's is its fragment's
  int64_t workspace_of(int32_t command, int64_t of_fragment) const {
    return workspace.empty() ? of_fragment : workspace[static_cast<size_t>(command)];
  }
};

struct FlatProgram {
  std::vector<FlatRank> ranks;
  std::vector<FlatChannel> channels;
  std::vector<int32_t> channel_of;  // [slot] of a channel's ring, which messages have in turn
};

struct FlatParts {
  // Calls know the buffers of their fragment's state ports (inputs of kind state), updates those of
  // their outputs, too.
  bool bindings = false;
  bool uses = false, memory = false;  // FlatRank
};
FlatProgram flatten(const pipeline::Program& program, const FlatParts& parts);

// `alive`: [command] bytes beside calls; `workspace`: [timed] of a call's fragment.
Fullest fullest_of(const FlatRank& rank, const std::vector<int64_t>& alive,
                   const std::vector<int64_t>& workspace);

}  // namespace mw::simulate
