// A program as flat arrays of small numbers: what the event loop reads. Private to room simulate.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/program.h"

namespace mw::simulate {

struct FlatCommand {
  pipeline::Command::Kind kind = pipeline::Command::Kind::kCall;
  int32_t index = -1;     // fragment of a call; message of the others
  int32_t bindings = -1;  // of a call: first of its state ports' buffers, where they are wanted
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

// Bytes of a category that come alive before, or die behind, a command.
struct MemoryChange {
  int32_t command = 0;
  pipeline::Category category = pipeline::Category::kActivations;
  int64_t bytes = 0;
};

struct FlatRank {
  std::vector<FlatCommand> commands;
  std::vector<MemoryChange> born, died;  // by command
  std::vector<int32_t> bindings;         // root buffers of state ports
  int64_t fixed[8] = {};                 // by category: states and slots
  int64_t reserved = 0;
};

struct FlatProgram {
  std::vector<FlatRank> ranks;
  std::vector<FlatChannel> channels;
  std::vector<Message> messages;
};

inline constexpr size_t kCategories = 8;

// With `bindings`, calls know the buffers of their fragment's state ports (inputs of kind state).
FlatProgram flatten(const pipeline::Program& program, bool bindings);

// The storage that a buffer is part of.
BufferId root_buffer(const pipeline::RankProgram& rank, BufferId id);

}  // namespace mw::simulate
