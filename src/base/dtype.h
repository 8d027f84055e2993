// Element types of tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace mw {

enum class DType : uint8_t { kBool, kU8, kI32, kI64, kBF16, kF16, kF32, kF64 };

// Bytes of one element.
int64_t dtype_size(DType dtype);
// "f32", "bf16", "i64", …
std::string_view dtype_name(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);
bool is_floating(DType dtype);

}  // namespace mw
