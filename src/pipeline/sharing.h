// Which results of an op lie in an operand's memory. Private to room pipeline.
#pragma once

#include "ir/graph.h"

namespace mw::pipeline {

struct Sharing {
  enum class Kind : uint8_t {
    kNone,
    kView,       // the operand's bytes from `offset` on, unchanged (or a copy of them, if it lies
                 // elsewhere)
    kAssembly,   // the operand's memory, in which the parts already lie
    kOverwrite,  // the operand's memory, overwritten
  } kind = Kind::kNone;
  int operand = -1;
  int64_t offset = 0;  // bytes
};

// By the meaning of the op, whatever the plan.
Sharing sharing_of(const ir::Graph& graph, const ir::Op& op, int result);
// Whether the op may write this result exactly over this operand's memory.
bool may_overwrite(const ir::Op& op, int result, int operand);
// Whether the op may leave this result in the rank's own part of this operand, which holds a part
// for each member of its group, one behind the other.
bool may_keep_own_part(const ir::Op& op, int result, int operand);
// Whether the op reads the bytes of this operand: not if it only writes over them or hands a view
// on.
bool reads_bytes(const ir::Op& op, int operand);

}  // namespace mw::pipeline
