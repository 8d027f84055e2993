// A program as flat arrays of small numbers: what the event loop reads. Private to room simulate.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/buffer_lives.h"
#include "pipeline/program.h"

namespace mw::simulate {

struct FlatCommand {
  pipeline::Command::Kind kind = pipeline::Command::Kind::kCall;
  int32_t index = -1;  // of a call: its number on the rank; of others: their message
};

struct FlatCall {
  int32_t fragment = 0;
  int32_t timed = 0;  // the fragment where the rank's groups lie
  // First of its state ports' buffers, behind which are those of an update's outputs; -1: nobody
  // wants them.
  int32_t bindings = -1;
  int32_t paired = -1;  // the command of the call behind it that a schedule lays beside it
  int32_t pair = -1;    // with `paired`: the two as one (TimedPair), where that is shorter
};

// A value of one channel on its way: what acquire, publish, receive and release are about.
struct Message {
  int32_t channel = 0;
  int32_t slot_before =
      -1;  // the message whose release frees this one's slot; -1: free from the start
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
  std::vector<FlatCall> calls;
  size_t may_wait = 0;            // commands that are no calls and may wait for another rank
  std::vector<int32_t> bindings;  // root buffers of what calls are bound to
  std::vector<pipeline::BufferUse> uses;  // [buffer]
  pipeline::BufferLives memory;
  int64_t reserved = 0;
  std::vector<int64_t> workspace;  // [command] bytes; empty: a call's is its fragment's
  int64_t workspace_of(int32_t command, int64_t of_fragment) const {
    return workspace.empty() ? of_fragment : workspace[static_cast<size_t>(command)];
  }
};

struct FlatProgram {
  std::vector<FlatRank> ranks;
  std::vector<FlatChannel> channels;
  std::vector<Message> messages;
};

// With `bindings`, calls know the buffers of their fragment's state ports (inputs of kind state),
// updates those of their outputs, too;
// with `memory`, ranks what they hold when.
FlatProgram flatten(const pipeline::Program& program, bool bindings, bool memory);

}  // namespace mw::simulate
