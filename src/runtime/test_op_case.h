// For this room's tests: an op with operands, and what ATen says of its results.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "cluster/mesh.h"
#include "ir/graph.h"

namespace mw::runtime {

using Tensors = std::vector<at::Tensor>;

struct OpCase {
  ir::OpKind kind;
  ir::Attributes attrs;
  Tensors operands;
  // The results, from the operands. Not of the accumulator: that is added to result 0.
  std::function<Tensors(const Tensors&)> expected;
  std::vector<ir::TensorType> declared = {};
  double tolerance = 1e-5;  // relative and absolute
  bool accumulates = false;
  cluster::Mesh mesh = {};
  int rank = 0;
  bool by_aten = false;         // ATen runs it: it may allocate
  bool one_thread_bits = true;  // the same bits whatever the number of threads
};

std::vector<OpCase> primitive_cases();
std::vector<OpCase> composite_cases();
std::vector<OpCase> token_cases();
std::vector<OpCase> update_cases();

// Uniform in [-1, 1), the same in every run.
at::Tensor random_tensor(const std::vector<int64_t>& sizes, uint64_t seed = 1);
at::Tensor random_ints(const std::vector<int64_t>& sizes, int64_t below,
                       at::ScalarType dtype = at::kInt);
at::Tensor scalar(int64_t value);
ir::TensorType type_of(const at::Tensor& tensor);

// Gradients of f(inputs) with respect to the inputs for the gradient dy of its result.
Tensors gradients(const std::function<at::Tensor(const Tensors&)>& f, const Tensors& inputs,
                  const at::Tensor& dy);

// What the reference interpreter of room ops says, in f64.
Tensors interpret_case(const OpCase& c);

// Runs the op on copies of the operands. `in_place`: result 0 lies over the operand that the op
// allows.
Tensors run_case(const OpCase& c, int threads, bool in_place);

}  // namespace mw::runtime
