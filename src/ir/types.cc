#include "ir/types.h"

#include <fmt/core.h>

namespace mw::ir {

int64_t TensorType::elements() const {
  int64_t n = 1;
  for (const Dim& dim : dims) n *= dim.size;
  return n;
}

TensorType make_type(DType dtype, const std::vector<int64_t>& sizes) {
  return TensorType(dtype, Dims(sizes.begin(), sizes.end()));
}

std::string to_string(const TensorType& type) {
  std::string text = fmt::format("{}[", dtype_name(type.dtype));
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const Dim& dim = type.dims[i];
    if (i > 0) text += ',';
    text += dim.is_static() ? fmt::format("{}", dim.size)
                            : fmt::format("<={}:%{}", dim.size, dim.size_value.value);
  }
  return text + "]";
}

}  // namespace mw::ir
