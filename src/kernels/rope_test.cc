#include "kernels/rope.h"

#include "base/test_close_to.h"
#include "kernels/test_arrays.h"

namespace mw::kernels {
namespace {

using namespace testing;

struct Table {
  Table(const std::vector<int32_t>& position, double theta, int64_t D) {
    const int64_t R = static_cast<int64_t>(position.size());
    inv_freq.resize(D / 2);
    rope_inverse_frequencies(theta, D, inv_freq.data());
    auto both = split_independent(
        R, {Floats(R * D / 2), Floats(R * D / 2)}, [&](int64_t begin, int64_t end, auto& out) {
          rope_table(position.data(), inv_freq.data(), D, out[0].data(), out[1].data(), begin, end);
        });
    cos = both[0];
    sin = both[1];
  }
  Floats inv_freq, cos, sin;
};

const std::vector<int32_t> kPositions = {0, 1, 5, 1000, 131071, 3, 2000000000};

}  // namespace

TEST_CASE("the rope table is the cosine and sine of an fp32 angle") {
  const int64_t D = 44;
  const Table table(kPositions, 10000.0, D);
  CHECK(table.inv_freq[0] == 1.0f);
  CHECK(table.inv_freq[11] == mw::test::close_to(0.01).epsilon(1e-6));
  std::vector<double> cos, sin;
  for (const int32_t position : kPositions) {
    for (const float f : table.inv_freq) {
      const float angle = static_cast<float>(position) * f;
      cos.push_back(std::cos(static_cast<double>(angle)));
      sin.push_back(std::sin(static_cast<double>(angle)));
    }
  }
  CHECK(worst_error(table.cos, cos, 1e-30) < 6.1e-8);
  CHECK(worst_error(table.sin, sin, 1e-30) < 6.1e-8);
}

TEST_CASE("slow pairs are slowed down, those between in part, fast ones not") {
  const int64_t D = 64;
  Floats plain(D / 2), scaled(D / 2), linear(D / 2);
  for (Floats* f : {&plain, &scaled, &linear}) rope_inverse_frequencies(500000, D, f->data());
  scale_rope_frequencies(8, 1, 4, 8192, D, scaled.data());
  scale_rope_frequencies(8, 0, 0, 0, D, linear.data());
  int fast = 0, slow = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double turns = 8192 * static_cast<double>(plain[i]) / 6.283185307179586;
    const double ratio = static_cast<double>(scaled[i] / plain[i]);
    CHECK(linear[i] == plain[i] / 8);
    CHECK(ratio == mw::test::close_to(turns > 4   ? 1
                                      : turns < 1 ? 0.125
                                                  : 0.125 + 0.875 * (turns - 1) / 3)
                       .epsilon(1e-5));
    fast += turns > 4;
    slow += turns < 1;
  }
  CHECK(fast + slow < D / 2);
  CHECK(fast > 0);
  CHECK(slow > 0);
}

TEST_CASE("rope turns the two halves of every head inside a fused array, and back") {
  const int64_t R = static_cast<int64_t>(kPositions.size()), H = 3, D = 20;
  const int64_t stride = 2 * H * D + 7;
  const Table table(kPositions, 500000.0, D);
  const Floats x = normal(R * stride, 1);
  const Floats y = split_independent(R, {x}, [&](int64_t begin, int64_t end, auto& out) {
    rope(out[0].data() + 7, stride, table.cos.data(), table.sin.data(), H, D, out[0].data() + 7,
         stride, begin, end);
  })[0];
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t i = 0; i < stride; ++i) {
      const int64_t at = i - 7;
      const int64_t here = r * stride + i;
      if (at < 0 || at >= H * D) {
        CHECK(y[here] == x[here]);
        continue;
      }
      const int64_t half = D / 2, d = at % D;
      const float c = table.cos[r * half + d % half], s = table.sin[r * half + d % half];
      const float want =
          d < half ? x[here] * c - x[here + half] * s : x[here] * c + x[here - half] * s;
      CHECK(y[here] == want);
    }
  }
  Floats back = y;
  rope_backward(y.data() + 7, stride, table.cos.data(), table.sin.data(), H, D, back.data() + 7,
                stride, 0, R);
  CHECK(worst_error(back, x, 1.0) < 4e-7);
}

}  // namespace mw::kernels
