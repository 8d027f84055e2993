#include "execute/finite.h"

#include <cmath>
#include <cstring>

namespace mw::execute {
namespace {

// The words' exponent bits are all set exactly in NaN and infinities.
template <typename Word>
std::optional<int64_t> first_with(const void* data, int64_t elements, Word exponent) {
  const auto* words = static_cast<const Word*>(data);
  constexpr int64_t kBlock = 1024;
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t end = std::min(elements, begin + kBlock);
    bool found = false;
    for (int64_t i = begin; i < end; ++i) found |= (words[i] & exponent) == exponent;
    if (!found) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((words[i] & exponent) == exponent) return i;
    }
  }
  return std::nullopt;
}

struct Layout {
  int bytes = 0;
  uint64_t exponent = 0;
};

Layout layout(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return {2, 0x7f80};
    case DType::kF16: return {2, 0x7c00};
    case DType::kF32: return {4, 0x7f800000};
    case DType::kF64: return {8, 0x7ff0000000000000};
    case DType::kBool:
    case DType::kU8:
    case DType::kI32:
    case DType::kI64: return {};
  }
  return {};
}

}  // namespace

std::optional<int64_t> first_non_finite(DType dtype, int64_t elements, const void* data) {
  const Layout of = layout(dtype);
  switch (of.bytes) {
    case 2: return first_with<uint16_t>(data, elements, static_cast<uint16_t>(of.exponent));
    case 4: return first_with<uint32_t>(data, elements, static_cast<uint32_t>(of.exponent));
    case 8: return first_with<uint64_t>(data, elements, of.exponent);
    default: return std::nullopt;
  }
}

const char* non_finite_name(DType dtype, const void* data, int64_t element) {
  const Layout of = layout(dtype);
  uint64_t word = 0;
  std::memcpy(&word, static_cast<const char*>(data) + element * of.bytes,
              static_cast<size_t>(of.bytes));
  const uint64_t sign = uint64_t{1} << (of.bytes * 8 - 1);
  if ((word & ~sign) != of.exponent) return "nan";
  return (word & sign) != 0 ? "-inf" : "inf";
}

bool may_be_infinite(const ir::Op& op) {
  switch (op.kind) {
    case ir::OpKind::kConstant: return !std::isfinite(op.as<ir::ConstantAttrs>().value);
    case ir::OpKind::kPadMask: return !std::isfinite(op.as<ir::PadMaskAttrs>().value);
    case ir::OpKind::kCrossEntropyMax: return true;
    case ir::OpKind::kReduce: return op.as<ir::ReduceAttrs>().op != ir::Reduction::kSum;
    case ir::OpKind::kAllReduce:
    case ir::OpKind::kReduceScatter: return op.as<ir::CollectiveAttrs>().op != ir::Reduction::kSum;
    default: return false;
  }
}

}  // namespace mw::execute
