#include "execute/finite.h"

#include <doctest/doctest.h>

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

}  // namespace
}  // namespace mw::execute
