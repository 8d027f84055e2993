// Binding: from a rank's program to instructions with addresses.
#pragma once

#include <functional>

#include "execute/bound_program.h"

namespace mw::execute {

// Where a bound program's bytes are on one rank.
struct BindContext {
  DeviceContext device;
  char* states = nullptr;
  char* arena = nullptr;
  std::vector<Ring*> ring_of_channel;  // null: a ring of other ranks
};

// Kernels and collectives of every fragment that the rank calls, one an op, shared by all calls.
class PreparedFragments {
 public:
  struct Op {
    Kernel* kernel = nullptr;  // null: a collective
    CollectiveOp* collective = nullptr;
  };
  using GroupOf =
      std::function<comm::Communicator*(const ir::DeviceGroup&)>;  // null for a group of one

  // Stores what it prepares in `bound`. Throws the backend's Error with the fragment and the op's
  // place.
  PreparedFragments(BoundProgram& bound, Backend& backend, const DeviceContext& device,
                    const GroupOf& group_of);

  const Op& op(FragmentId fragment, int32_t op) const {
    return ops_[fragment.index()][static_cast<size_t>(op)];
  }
  // The most that one op needs.
  Bytes scratch_bytes() const { return scratch_; }

 private:
  std::vector<std::vector<Op>> ops_;  // [fragment]; empty: the rank does not call it
  Bytes scratch_;
};

// Fills bound.instructions, pointers, patches, slots and rings.
void bind(BoundProgram& bound, const PreparedFragments& prepared, const BindContext& context);

}  // namespace mw::execute
