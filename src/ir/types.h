// Types of values: a dtype and dimensions.
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"

namespace mw::ir {

// One dimension of a tensor. A static dimension has `size` elements. A bounded one has at most
// `size`, and the i64 scalar `size_value` of the same graph holds how many there are: memory uses
// the bound, cost the expectation.
struct Dim {
  int64_t size = 0;
  ValueId size_value;

  Dim() = default;
  Dim(int64_t n) : size(n) {}  // NOLINT: a plain number is a static dimension.
  bool is_static() const { return !size_value.valid(); }
  friend bool operator==(const Dim&, const Dim&) = default;
};

using Dims = absl::InlinedVector<Dim, 4>;

struct TensorType {
  DType dtype = DType::kF32;
  Dims dims;

  TensorType() = default;
  TensorType(DType d, Dims s) : dtype(d), dims(std::move(s)) {}
  int rank() const { return static_cast<int>(dims.size()); }
  int64_t dim(int i) const { return dims[static_cast<size_t>(i)].size; }
  int64_t elements() const;
  Bytes bytes() const { return Bytes(elements() * dtype_size(dtype)); }
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

TensorType make_type(DType dtype, const std::vector<int64_t>& sizes);
// "f32[8,256,512]"; a bounded dimension is "<=64:%7".
std::string to_string(const TensorType& type);

}  // namespace mw::ir
