// A round device, and ops by hand. For tests of room cost.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cost/op_time.h"

namespace mw::cost {

// 100 multiprocessors, 100 TFLOP/s in bf16, 1 TB/s, no overheads.
inline cluster::Device device() {
  cluster::Device d;
  d.peaks = {{"f32", cluster::FlopsPerSecond(10e12)},
             {"tf32", cluster::FlopsPerSecond(50e12)},
             {"bf16", cluster::FlopsPerSecond(100e12)}};
  d.memory_bandwidth = cluster::BytesPerSecond(1e12);
  d.multiprocessors = 100;
  return d;
}

struct Made {
  ir::Graph graph;
  ir::Op op;
};
inline Made make(ir::OpKind kind, ir::Attributes attrs, std::vector<ir::TensorType> operands,
                 ir::TensorType result) {
  Made made;
  ir::Op op;
  op.kind = kind;
  op.attrs = std::move(attrs);
  for (size_t i = 0; i < operands.size(); ++i)
    op.operands.push_back(made.graph.add_input(operands[i], "x" + std::to_string(i)));
  const OpId id = made.graph.add_op(std::move(op), {std::move(result)});
  made.op = made.graph.op(id);
  return made;
}

inline Made product(DType dtype, int64_t m, int64_t k, int64_t n) {
  return make(ir::OpKind::kDot, ir::DotAttrs{"mk", "kn", "mn"},
              {ir::make_type(dtype, {m, k}), ir::make_type(dtype, {k, n})},
              ir::make_type(dtype, {m, n}));
}

inline OpWork attention(const ProductShape& shape) {
  OpWork work;
  work.kind = OpWork::Kind::kAttention;
  work.matrix_product = true;
  work.dtype = DType::kBF16;
  work.shape = shape;
  return work;
}

}  // namespace mw::cost
