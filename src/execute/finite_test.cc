#include "execute/finite.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

namespace mw::execute {
namespace {

template <typename Word>
std::string first_of(DType dtype, const std::vector<Word>& words) {
  const auto count = static_cast<int64_t>(words.size());
  const auto at = first_non_finite(dtype, count, words.data());
  if (!at) return "none";
  return std::to_string(*at) + " " + non_finite_name(dtype, words.data(), *at);
}

TEST_CASE("NaN and infinities are told from the largest numbers of each dtype, bit by bit") {
  CHECK(first_of<uint16_t>(DType::kBF16, {0x7f7f, 0xff7f, 0x7f00}) == "none");
  CHECK(first_of<uint16_t>(DType::kBF16, {0x7f7f, 0x7f80}) == "1 inf");
  CHECK(first_of<uint16_t>(DType::kBF16, {0xff80}) == "0 -inf");
  CHECK(first_of<uint16_t>(DType::kBF16, {0, 0x7f81}) == "1 nan");
  CHECK(first_of<uint16_t>(DType::kF16, {0x7bff, 0xfbff, 0x7a00}) == "none");
  CHECK(first_of<uint16_t>(DType::kF16, {0xfc00, 0x7c00}) == "0 -inf");
  CHECK(first_of<uint16_t>(DType::kF16, {0x7bff, 0xfc01}) == "1 nan");
  CHECK(first_of<uint32_t>(DType::kF32, {0x7f7fffff, 0xff7fffff}) == "none");
  CHECK(first_of<uint32_t>(DType::kF32, {0x7f800000}) == "0 inf");
  CHECK(first_of<uint32_t>(DType::kF32, {0xff800001}) == "0 nan");
  CHECK(first_of<uint64_t>(DType::kF64, {0x7fefffffffffffff, 0xffefffffffffffff}) == "none");
  CHECK(first_of<uint64_t>(DType::kF64, {0, 0xfff0000000000000}) == "1 -inf");
  CHECK(first_of<uint64_t>(DType::kF64, {0x7ff0000000000001}) == "0 nan");
  CHECK(first_of<uint32_t>(DType::kI32, {0x7f800000}) == "none");
}

TEST_CASE("the first of many is found on both sides of a block's end") {
  for (const size_t at : {0, 1, 1022, 1023, 1024, 1025, 2047, 2999}) {
    std::vector<uint32_t> words(3000, 0x3f800000);
    words[at] = words[2999] = 0x7f800000;
    CHECK(first_of(DType::kF32, words) == std::to_string(at) + " inf");
  }
}

TEST_CASE("maxima, minima and constants may be infinite, sums and all other ops not") {
  const auto may = [](ir::OpKind kind, ir::Attributes attrs) {
    ir::Op op;
    op.kind = kind;
    op.attrs = std::move(attrs);
    return may_be_infinite(op);
  };
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  using ir::OpKind;
  using ir::Reduction;
  CHECK(may(OpKind::kConstant, ir::ConstantAttrs{-kInfinite}));
  CHECK_FALSE(may(OpKind::kConstant, ir::ConstantAttrs{1}));
  CHECK(may(OpKind::kPadMask, ir::PadMaskAttrs{0, -kInfinite, {}}));
  CHECK_FALSE(may(OpKind::kPadMask, ir::PadMaskAttrs{0, 0, {}}));
  CHECK(may(OpKind::kCrossEntropyMax, ir::CrossEntropyAttrs{}));
  CHECK_FALSE(may(OpKind::kCrossEntropyLoss, ir::CrossEntropyAttrs{}));
  CHECK_FALSE(may(OpKind::kAdd, ir::NoAttrs{}));
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
    CHECK(may(OpKind::kReduce, ir::ReduceAttrs{reduction, {0}}) == (reduction != Reduction::kSum));
    ir::CollectiveAttrs collective;
    collective.op = reduction;
    for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduceScatter})
      CHECK(may(kind, collective) == (reduction != Reduction::kSum));
    CHECK_FALSE(may(OpKind::kAllGather, collective));
  }
}

}  // namespace
}  // namespace mw::execute
