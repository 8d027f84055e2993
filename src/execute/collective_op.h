// CollectiveOp: a collective of a fragment made ready for one rank: the part that lies between an
// op on tensors, which gathers or scatters any dimension, and comm's operations on contiguous
// buffers.
#pragma once

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "ir/graph.h"

namespace mw::execute {

class CollectiveOp {
 public:
  // `pairs` are a permute's (sharding/permutation.h). `group` is not owned; null: a group of one,
  // where every collective is a copy (or nothing, in place). REQUIRES: ir::is_collective(op.kind);
  // all operands have one dtype; sizes divide by the group's size.
  CollectiveOp(const ir::Graph& graph, const ir::Op& op, comm::Communicator* group,
               std::vector<comm::PermutePair> pairs = {});

  // Staging for tensors whose parts are not contiguous; run() needs that much, aligned to 64.
  Bytes scratch_bytes() const { return Bytes(scratch_bytes_); }
  const comm::Communicator* group() const { return group_; }
  // Collective over the group. Allocates nothing. A result may have its operand's address
  // (all_reduce), or the operand may be the own part of the result (all_gather) or the result the
  // own part of the operand (reduce_scatter), each with contiguous parts.
  // Whether the operation can be started and finished later: an all-reduce along mesh axes whose
  // members run the same fragment, few enough that one may do the work of all.
  bool can_start() const { return can_start_; }
  // run() in two calls, with other instructions between. REQUIRES: can_start(). finish() does
  // nothing where nothing was started.
  void start(std::span<void* const> operands, std::span<void* const> results);
  void finish();
  void run(std::span<void* const> operands, std::span<void* const> results, void* scratch);

 private:
  // A tensor seen as outer x parts x chunk bytes, where the parts belong to the members in order.
  struct Split {
    int64_t outer = 1;
    int64_t chunk = 0;
    bool contiguous() const { return outer == 1; }
  };
  struct Tensor {
    int64_t operand_bytes = 0, result_bytes = 0;
    int64_t operand_count = 0, result_count = 0;  // elements
    Split split;  // of the whole side's dimension: the result of a gather, the operand of a scatter
    Split concat;                             // all_to_all: of the result
    int64_t in_offset = -1, out_offset = -1;  // staging, -1: the tensor's own memory
  };
  static Split split_of(const ir::TensorType& whole, int dim, int64_t parts);
  void run_alone(std::span<void* const> operands, std::span<void* const> results);
  // Tensor (outer-major) to parts, each contiguous, and back.
  void pack(const Split& split, const void* tensor, void* parts) const;
  void unpack(const Split& split, const void* parts, void* tensor) const;

  ir::OpKind kind_;
  comm::Communicator* group_;
  int64_t members_ = 1;
  DType dtype_ = DType::kF32;
  comm::ReduceOp reduce_ = comm::ReduceOp::kSum;
  std::vector<comm::PermutePair> pairs_;
  std::vector<Tensor> tensors_;
  std::vector<comm::Buffer> in_, out_;
  int64_t scratch_bytes_ = 0;
  bool can_start_ = false, started_ = false;
};

}  // namespace mw::execute
