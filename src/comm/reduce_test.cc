#include "comm/reduce.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace mw::comm {
namespace {

// Values of very different size, so that another order of a sum has other bits.
float wild(uint64_t i) {
  const uint64_t bits = mix_bits(i);
  return std::ldexp(static_cast<float>(static_cast<int32_t>(bits)),
                    static_cast<int>(bits >> 58) - 60);
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
std::vector<T> reduced(DType dtype, ReduceOp op, std::vector<std::vector<T>> in) {
  std::vector<const void*> inputs;
  for (const auto& x : in) inputs.push_back(x.data());
  std::vector<T> first(in[0].size()), second(in[0].size());
  void* outputs[] = {first.data(), second.data()};
  reduce(dtype, op, inputs, outputs, static_cast<int64_t>(in[0].size()));
  CHECK(same_bits(first, second));
  return first;
}

TEST_CASE("a sum adds the inputs in ascending order for every element, at every position") {
  for (int n : {1, 2, 3, 5, 8}) {
    for (size_t count : {0, 1, 7, 31, 32, 33, 64, 200}) {
      std::vector<std::vector<float>> in(n, std::vector<float>(count));
      std::vector<float> expected(count);
      for (int r = 0; r < n; ++r) {
        for (size_t i = 0; i < count; ++i) {
          in[r][i] = wild(i * 17 + r);
          expected[i] = r == 0 ? in[r][i] : expected[i] + in[r][i];
        }
      }
      const std::vector<float> result = reduced(DType::kF32, ReduceOp::kSum, in);
      CAPTURE(n);
      CAPTURE(count);
      CHECK(same_bits(result, expected));
    }
  }
}

TEST_CASE("an output may be one of the inputs") {
  std::vector<double> a(100), b(100);
  for (int i = 0; i < 100; ++i) a[i] = i, b[i] = 1000 * i;
  const void* in[] = {a.data(), b.data()};
  void* out[] = {b.data(), a.data()};
  reduce(DType::kF64, ReduceOp::kSum, in, out, 100);
  for (int i = 0; i < 100; ++i) CHECK((a[i] == 1001.0 * i && b[i] == 1001.0 * i));
}

TEST_CASE("a NaN in any input makes max and min NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t count : {3, 40}) {  // the scalar tail and the vectors
    const std::vector<float> ones(count, 1), twos(count, 2), nans(count, nan);
    for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      for (float x : reduced<float>(DType::kF32, op, {nans, ones, twos})) CHECK(std::isnan(x));
      for (float x : reduced<float>(DType::kF32, op, {ones, nans, twos})) CHECK(std::isnan(x));
      for (float x : reduced<float>(DType::kF32, op, {ones, twos, nans})) CHECK(std::isnan(x));
    }
    CHECK(reduced<float>(DType::kF32, ReduceOp::kMax, {ones, twos}) == twos);
    CHECK(reduced<float>(DType::kF32, ReduceOp::kMin, {ones, twos}) == ones);
  }
}

TEST_CASE("integers wrap, and max and min are signed where the dtype is") {
  const int32_t most = std::numeric_limits<int32_t>::max();
  const std::vector<int32_t> a(40, most), b(40, 1), c(40, -1);
  CHECK(reduced<int32_t>(DType::kI32, ReduceOp::kSum, {a, b})[39] ==
        std::numeric_limits<int32_t>::min());
  CHECK(reduced<int32_t>(DType::kI32, ReduceOp::kMax, {b, c})[39] == 1);
  CHECK(reduced<int32_t>(DType::kI32, ReduceOp::kMin, {b, c})[39] == -1);
  const std::vector<uint8_t> yes(40, 1), no(40, 0);
  CHECK(reduced<uint8_t>(DType::kBool, ReduceOp::kMax, {no, yes})[0] == 1);
  CHECK(reduced<uint8_t>(DType::kBool, ReduceOp::kMin, {no, yes})[0] == 0);
}

TEST_CASE("bf16 and f16 are accumulated in fp32 and rounded once") {
  // 1 + 2^-8 + 2^-8: rounding after each addition would stay at 1 in bf16 (8 bits, ties to even).
  const uint16_t one = 0x3f80, small = 0x3b80;
  const std::vector<uint16_t> a(70, one), b(70, small);
  for (uint16_t x : reduced<uint16_t>(DType::kBF16, ReduceOp::kSum, {a, b, b})) CHECK(x == 0x3f81);
  for (uint16_t x : reduced<uint16_t>(DType::kBF16, ReduceOp::kSum, {a, b}))
    CHECK(x == 0x3f80);  // tie to even
  const std::vector<uint16_t> nan(70, 0x7fc0);
  for (uint16_t x : reduced<uint16_t>(DType::kBF16, ReduceOp::kSum, {a, nan}))
    CHECK((x & 0x7fff) > 0x7f80);
  // The same in f16: 1 + 2^-11 + 2^-11.
  const std::vector<uint16_t> one16(70, 0x3c00), small16(70, 0x1000);
  for (uint16_t x : reduced<uint16_t>(DType::kF16, ReduceOp::kSum, {one16, small16, small16}))
    CHECK(x == 0x3c01);
  for (uint16_t x : reduced<uint16_t>(DType::kF16, ReduceOp::kSum, {one16, small16}))
    CHECK(x == 0x3c00);
}

}  // namespace
}  // namespace mw::comm
