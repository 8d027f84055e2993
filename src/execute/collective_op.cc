#include "execute/collective_op.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace mw::execute {
namespace {

constexpr int64_t kStagingAlignment = 64;
// Of a started all-reduce one member does the work of all.
constexpr int64_t kMostToStart = 4;

// Whether all members run the same program, and so start the same operations.
bool runs_alike(const ir::DeviceGroup& group) {
  const auto* axes = std::get_if<ir::AxisGroup>(&group);
  return axes != nullptr &&
         std::find(axes->axes.begin(), axes->axes.end(), "pp") == axes->axes.end();
}

int64_t aligned(int64_t bytes) {
  return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
}

char* at(void* base, int64_t offset) { return static_cast<char*>(base) + offset; }
const char* at(const void* base, int64_t offset) { return static_cast<const char*>(base) + offset; }

comm::ReduceOp reduce_op(ir::Reduction op) {
  switch (op) {
    case ir::Reduction::kSum: return comm::ReduceOp::kSum;
    case ir::Reduction::kMax: return comm::ReduceOp::kMax;
    case ir::Reduction::kMin: return comm::ReduceOp::kMin;
  }
  MW_CHECK(false, "reduction {}", static_cast<int>(op));
}

}  // namespace

CollectiveOp::Split CollectiveOp::split_of(const ir::TensorType& whole, int dim, int64_t parts) {
  MW_CHECK(dim >= 0 && dim < whole.rank(), "dimension {} of {}", dim, ir::to_string(whole));
  MW_CHECK(whole.dim(dim) % parts == 0, "dimension {} of {} does not divide by {} members", dim,
           ir::to_string(whole), parts);
  Split split;
  for (int i = 0; i < dim; ++i) split.outer *= whole.dim(i);
  split.chunk = whole.dim(dim) / parts * dtype_size(whole.dtype);
  for (int i = dim + 1; i < whole.rank(); ++i) split.chunk *= whole.dim(i);
  return split;
}

CollectiveOp::CollectiveOp(const ir::Graph& graph, const ir::Op& op, comm::Communicator* group,
                           std::vector<comm::PermutePair> pairs)
    : kind_(op.kind), group_(group), members_(group ? group->size() : 1), pairs_(std::move(pairs)) {
  MW_CHECK(ir::is_collective(op.kind), "{} is not a collective", ir::op_name(op.kind));
  MW_CHECK(op.operands.size() == op.results.size() && !op.operands.empty(),
           "{} has {} operands and {} results", ir::op_name(op.kind), op.operands.size(),
           op.results.size());
  const auto& attrs = op.as<ir::CollectiveAttrs>();
  dtype_ = graph.type(op.operands[0]).dtype;
  reduce_ = reduce_op(attrs.op);
  can_start_ = kind_ == ir::OpKind::kAllReduce && members_ > 1 && members_ <= kMostToStart &&
               runs_alike(attrs.group);
  const auto stage = [this](int64_t bytes) {
    const int64_t offset = scratch_bytes_;
    scratch_bytes_ += aligned(bytes);
    return offset;
  };
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const ir::TensorType& in = graph.type(op.operands[i]);
    const ir::TensorType& out = graph.type(op.results[i]);
    MW_CHECK(in.dtype == dtype_ && out.dtype == dtype_, "{}: operand {} has another dtype",
             ir::op_name(op.kind), i);
    Tensor t;
    t.operand_bytes = in.bytes().value;
    t.result_bytes = out.bytes().value;
    t.operand_count = in.elements();
    t.result_count = out.elements();
    const int64_t grown = kind_ == ir::OpKind::kAllGather ? members_ : 1;
    const int64_t shrunk = kind_ == ir::OpKind::kReduceScatter ? members_ : 1;
    MW_CHECK(t.operand_bytes * grown == t.result_bytes * shrunk,
             "{} from {} to {} in a group of {}", ir::op_name(op.kind), ir::to_string(in),
             ir::to_string(out), members_);
    if (members_ > 1) {
      if (kind_ == ir::OpKind::kAllGather) {
        t.split = split_of(out, attrs.dim, members_);
        if (!t.split.contiguous()) t.out_offset = stage(t.result_bytes);
      } else if (kind_ == ir::OpKind::kReduceScatter) {
        t.split = split_of(in, attrs.dim, members_);
        if (!t.split.contiguous()) t.in_offset = stage(t.operand_bytes);
      } else if (kind_ == ir::OpKind::kAllToAll) {
        t.split = split_of(in, attrs.dim, members_);
        t.concat = split_of(out, attrs.concat_dim, members_);
        if (!t.split.contiguous()) t.in_offset = stage(t.operand_bytes);
        if (!t.concat.contiguous()) t.out_offset = stage(t.result_bytes);
      }
    }
    tensors_.push_back(t);
  }
  in_.resize(tensors_.size());
  out_.resize(tensors_.size());
}

void CollectiveOp::run_alone(std::span<void* const> operands, std::span<void* const> results) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (operands[i] != results[i]) {
      std::memcpy(results[i], operands[i], static_cast<size_t>(tensors_[i].result_bytes));
    }
  }
}

void CollectiveOp::pack(const Split& split, const void* tensor, void* parts) const {
  for (int64_t part = 0; part < members_; ++part) {
    for (int64_t o = 0; o < split.outer; ++o) {
      std::memcpy(at(parts, (part * split.outer + o) * split.chunk),
                  at(tensor, (o * members_ + part) * split.chunk),
                  static_cast<size_t>(split.chunk));
    }
  }
}

void CollectiveOp::unpack(const Split& split, const void* parts, void* tensor) const {
  for (int64_t part = 0; part < members_; ++part) {
    for (int64_t o = 0; o < split.outer; ++o) {
      std::memcpy(at(tensor, (o * members_ + part) * split.chunk),
                  at(parts, (part * split.outer + o) * split.chunk),
                  static_cast<size_t>(split.chunk));
    }
  }
}

void CollectiveOp::start(std::span<void* const> operands, std::span<void* const> results) {
  run_alone(operands, results);
  for (size_t i = 0; i < tensors_.size(); ++i) out_[i] = {results[i], tensors_[i].result_count};
  group_->start_all_reduce(out_, dtype_, reduce_);
  started_ = true;
}

void CollectiveOp::finish() {
  if (!started_) return;
  group_->finish();
  started_ = false;
}

void CollectiveOp::run(std::span<void* const> operands, std::span<void* const> results,
                       void* scratch) {
  if (members_ == 1) return run_alone(operands, results);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& t = tensors_[i];
    void* in = t.in_offset < 0 ? operands[i] : at(scratch, t.in_offset);
    void* out = t.out_offset < 0 ? results[i] : at(scratch, t.out_offset);
    if (t.in_offset >= 0) pack(t.split, operands[i], in);
    in_[i] = {in, t.operand_count};
    out_[i] = {out, t.result_count};
  }
  switch (kind_) {
    case ir::OpKind::kAllReduce:
      run_alone(operands, results);
      group_->all_reduce(out_, dtype_, reduce_);
      break;
    case ir::OpKind::kAllGather: group_->all_gather(in_, out_, dtype_); break;
    case ir::OpKind::kReduceScatter: group_->reduce_scatter(in_, out_, dtype_, reduce_); break;
    case ir::OpKind::kPermute: group_->permute(in_, out_, dtype_, pairs_); break;
    default: group_->all_to_all(in_, out_, dtype_); break;
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& t = tensors_[i];
    if (t.out_offset >= 0) {
      unpack(kind_ == ir::OpKind::kAllToAll ? t.concat : t.split, at(scratch, t.out_offset),
             results[i]);
    }
  }
}

}  // namespace mw::execute
