#include "runtime/strided_plan.h"

#include "runtime/parallel.h"

namespace mw::runtime {

std::vector<int64_t> strides_of(const ir::TensorType& type) {
  std::vector<int64_t> strides(type.dims.size());
  int64_t stride = 1;
  for (size_t d = strides.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= type.dims[d].size;
  }
  return strides;
}

std::optional<StridedPlan> StridedPlan::make(DType dtype, const std::vector<int64_t>& sizes,
                                             const std::vector<int64_t>& source_strides,
                                             const std::vector<int64_t>& target_strides) {
  struct Dim {
    int64_t size, source, target;
  };
  std::vector<Dim> dims;
  int64_t elements = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    elements *= sizes[d];
    if (sizes[d] == 1) continue;
    const Dim dim{sizes[d], source_strides[d], target_strides[d]};
    const bool folds = !dims.empty() && dims.back().source == dim.source * dim.size &&
                       dims.back().target == dim.target * dim.size;
    if (folds) {
      dims.back() = {dims.back().size * dim.size, dim.source, dim.target};
    } else {
      dims.push_back(dim);
    }
  }
  StridedPlan plan;
  plan.element_bytes_ = dtype_size(dtype);
  if (plan.element_bytes_ == 2 || dims.size() > kernels::kMaxDims) return std::nullopt;
  plan.copy_.rank = static_cast<int>(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    plan.copy_.size[d] = dims[d].size;
    plan.copy_.source_stride[d] = dims[d].source;
    plan.copy_.target_stride[d] = dims[d].target;
  }
  plan.rows_ = elements == 0 ? 0 : kernels::strided_rows(plan.copy_);
  plan.row_elements_ = dims.empty() ? 1 : dims.back().size;
  return plan;
}

void StridedPlan::run(const void* source, void* target, int threads) const {
  const auto copy = [&]<typename T>(T) {
    const auto* from = static_cast<const T*>(source);
    auto* to = static_cast<T*>(target);
    parallel_for(threads, rows_, row_grain(row_elements_), [&](int64_t begin, int64_t end) {
      kernels::strided_copy(copy_, from, to, begin, end);
    });
  };
  switch (element_bytes_) {
    case 1: copy(uint8_t{}); break;
    case 4: copy(int32_t{}); break;
    default: copy(int64_t{}); break;
  }
}

}  // namespace mw::runtime
