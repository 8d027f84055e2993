// BoundProgram: a rank's program with everything resolved: a flat list of instructions whose
// kernels, addresses, groups and channels are known. Running it looks nothing up and allocates
// nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "execute/backend.h"
#include "execute/collective_op.h"
#include "pipeline/program.h"

namespace mw::execute {

// This rank's side of one ring of slots. Programs with equal rings share them; `next` is the
// sequence of the ring at which the next run begins.
struct Ring {
  std::unique_ptr<comm::Channel> channel;
  int64_t next = 0;
};

struct Instruction {
  enum class Kind : uint8_t {
    kKernel,
    kCollective,
    kStart,   // a collective's, which goes on beside the following instructions
    kFinish,  // of the started one of `op`; no instruction of the program's own
    kAlias,   // an op whose results lie where its operands do
    kLoad,
    kAcquire,
    kPublish,
    kReceive,
    kRelease
  } kind = Kind::kAlias;
  int32_t command = 0;
  int32_t op = -1;  // of the command's fragment
  Kernel* kernel = nullptr;
  CollectiveOp* collective = nullptr;
  // In BoundProgram::pointers: operands, then results. A load has its destination as its one
  // result.
  uint32_t first_pointer = 0, operands = 0, results = 0;
  uint32_t first_patch = 0, patches = 0;  // in BoundProgram::patches
  Ring* ring = nullptr;
  uint32_t slot = 0;      // in BoundProgram::slots
  int64_t sequence = 0;   // within a run
  int64_t arena_end = 0;  // first byte of the step arena behind all that it touches
  uint64_t token = 0;     // what the order hash takes in

  // Whether it is one of those that the verifier counts.
  bool is_op() const { return op >= 0 && kind != Kind::kFinish; }
};

// Addresses in slots are known when a slot is acquired or received: pointers[pointer] = slots[slot]
// + offset.
struct Patch {
  uint32_t pointer = 0, slot = 0;
  int64_t offset = 0;
};

// How many messages one run of a program sends through a ring.
struct RingUse {
  Ring* ring = nullptr;
  int64_t messages = 0;
};

// A message that a rank has not done with where it goes back to its first command.
struct Unread {
  Ring* ring = nullptr;
  int64_t sequence = 0;   // within a run
  bool received = false;  // but not released
};

// Where RankProgram::repeatable ends.
struct RepeatPoint {
  uint32_t instructions = 0;  // before it; 0: the program has none
  const float* amended = nullptr;
  std::vector<RingUse> messages;  // that have been sent before it, by this rank or to it
  std::vector<Unread> unread;
};

struct BoundProgram {
  const pipeline::Program* program = nullptr;
  const pipeline::RankProgram* rank_program = nullptr;
  std::vector<Instruction> instructions;
  std::vector<void*> pointers;
  std::vector<Patch> patches;
  std::vector<void*> slots;
  std::vector<RingUse> rings;
  RepeatPoint repeat;
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::vector<std::unique_ptr<CollectiveOp>> collectives;

  const pipeline::Command& command(const Instruction& i) const {
    return rank_program->commands[static_cast<size_t>(i.command)];
  }
  // REQUIRES: i is of a call.
  const pipeline::Fragment& fragment(const Instruction& i) const {
    return program->fragments[command(i).fragment.index()];
  }
  const ir::Op& op(const Instruction& i) const {
    return fragment(i).graph.ops[static_cast<size_t>(i.op)];
  }
  // What the calling stage calls a value of the fragment: its name or, as label, "%12" if it has
  // none. REQUIRES: i is of a call.
  const std::string& name(const Instruction& i, ValueId value) const;
  std::string label(const Instruction& i, ValueId value) const;
  // "command 17 call 'F stage 1' (1F7), microbatch 7, op 4 all_reduce 'h.0/sum'": what an error
  // says of the place. A result without a name is "'%12' of 'h.0.in', 'h.0.weight'".
  std::string describe(const Instruction& i) const;
};

}  // namespace mw::execute
