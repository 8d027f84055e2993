#include "kernels/strided.h"

#include "kernels/test_arrays.h"

namespace mw::kernels {

using namespace testing;

TEST_CASE("a permute of four dimensions puts every element in its place, at every split") {
  // [B, S, H, D] to [B, H, S, D], to [D, H, S, B], to [B, D, S, H], and so that neighbours of the
  // source are rows apart in the target.
  const int64_t size[4] = {2, 19, 3, 37};
  const int64_t stride[4] = {19 * 3 * 37, 3 * 37, 37, 1};
  const int64_t n = 2 * 19 * 3 * 37;
  const Floats x = normal(n, 1);
  for (const auto& order : {std::array<int, 4>{0, 2, 1, 3},
                            {3, 2, 1, 0},
                            {0, 3, 1, 2},
                            {2, 3, 0, 1},
                            {0, 2, 3, 1},
                            {1, 2, 3, 0},
                            {0, 1, 3, 2}}) {
    StridedCopy copy;
    copy.rank = 4;
    int64_t target_stride = 1;
    for (int d = 3; d >= 0; --d) {
      copy.size[d] = size[order[d]];
      copy.source_stride[d] = stride[order[d]];
      copy.target_stride[d] = target_stride;
      target_stride *= copy.size[d];
    }
    const Floats y = split_independent(strided_rows(copy), {Floats(n)},
                                       [&](int64_t begin, int64_t end, auto& out) {
                                         strided_copy(copy, x.data(), out[0].data(), begin, end);
                                       })[0];
    int64_t i[4];
    int64_t at = 0;
    for (i[0] = 0; i[0] < copy.size[0]; ++i[0]) {
      for (i[1] = 0; i[1] < copy.size[1]; ++i[1]) {
        for (i[2] = 0; i[2] < copy.size[2]; ++i[2]) {
          for (i[3] = 0; i[3] < copy.size[3]; ++i[3], ++at) {
            int64_t source = 0;
            for (int d = 0; d < 4; ++d) source += i[d] * stride[order[d]];
            REQUIRE(y[at] == x[source]);
          }
        }
      }
    }
  }
}

TEST_CASE("a slice, a pad, a broadcast and a sum into a slice are strided copies") {
  const std::vector<int32_t> x = {0, 1, 2, 3, 4, 5};  // [2, 3]
  std::vector<int32_t> slice(4), pad(20, -1), rows(6);
  strided_copy({2, {2, 2}, {3, 1}, {2, 1}}, x.data() + 1, slice.data(), 0, 2);
  CHECK(slice == std::vector<int32_t>{1, 2, 4, 5});
  strided_copy({2, {2, 3}, {3, 1}, {5, 1}}, x.data(), pad.data() + 6, 0, 2);
  CHECK(pad == std::vector<int32_t>{-1, -1, -1, -1, -1, -1, 0,  1,  2,  -1,
                                    -1, 3,  4,  5,  -1, -1, -1, -1, -1, -1});
  strided_copy({2, {2, 3}, {0, 1}, {3, 1}}, x.data() + 3, rows.data(), 0, 2);
  CHECK(rows == std::vector<int32_t>{3, 4, 5, 3, 4, 5});
  const Floats a = {1, 2};
  Floats sum = {10, 20, 30, 40};
  strided_add({2, {2, 1}, {1, 1}, {2, 1}}, a.data(), sum.data(), 0, 2);
  CHECK(sum == Floats{11, 20, 32, 40});
  const StridedCopy scalar;
  const std::vector<uint8_t> one = {7};
  std::vector<uint8_t> target(1);
  CHECK(strided_rows(scalar) == 1);
  strided_copy(scalar, one.data(), target.data(), 0, 1);
  CHECK(target[0] == 7);
}

}  // namespace mw::kernels
