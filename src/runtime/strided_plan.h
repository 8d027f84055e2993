// StridedPlan: a copy between two strided views, reduced to as few dimensions as it has and ready
// to be split over threads.
#pragma once

#include <optional>
#include <vector>

#include "base/dtype.h"
#include "ir/types.h"
#include "kernels/strided.h"

namespace mw::runtime {

// Row-major strides in elements.
std::vector<int64_t> strides_of(const ir::TensorType& type);

class StridedPlan {
 public:
  // Null where kernels::strided_copy has no version: elements of 2 bytes, more than 6 dimensions
  // that do not fold.
  static std::optional<StridedPlan> make(DType dtype, const std::vector<int64_t>& sizes,
                                         const std::vector<int64_t>& source_strides,
                                         const std::vector<int64_t>& target_strides);

  // The first element of either view.
  void run(const void* source, void* target, int threads) const;

 private:
  kernels::StridedCopy copy_;
  int64_t rows_ = 0;
  int64_t row_elements_ = 0;
  int64_t element_bytes_ = 0;
};

}  // namespace mw::runtime
