#include "kernels/gemm.h"

#include <array>
#include <limits>

#include "kernels/scratch.h"
#include "kernels/test_arrays.h"
#include "kernels/vec.h"

namespace mw::kernels {
namespace {

using namespace testing;

// M x N x K with strides `slack` wider than the rows, in arrays of exactly the elements that the
// strides reach, so that a sanitizer sees every read beyond them.
struct Product {
  int64_t M, N, K;
  bool a_transposed = false, b_transposed = false, accumulates = false;
  int64_t slack = 0;
  Floats a = {}, b = {}, c = {};

  static int64_t reach(int64_t rows, int64_t columns, int64_t stride) {
    return rows == 0 || columns == 0 ? 0 : (rows - 1) * stride + columns;
  }
  int64_t a_stride() const { return (a_transposed ? M : K) + slack; }
  int64_t b_stride() const { return (b_transposed ? K : N) + slack; }
  int64_t c_stride() const { return N + slack; }

  void fill(uint64_t site) {
    a = normal(reach(a_transposed ? K : M, a_transposed ? M : K, a_stride()), 3 * site);
    b = normal(reach(b_transposed ? N : K, b_transposed ? K : N, b_stride()), 3 * site + 1);
    c = normal(reach(M, N, c_stride()), 3 * site + 2);
  }
  float A(int64_t i, int64_t k) const {
    return a[static_cast<size_t>(a_transposed ? k * a_stride() + i : i * a_stride() + k)];
  }
  float B(int64_t k, int64_t j) const {
    return b[static_cast<size_t>(b_transposed ? j * b_stride() + k : k * b_stride() + j)];
  }
  Gemm gemm(float* out) const {
    return {.M = M,
            .N = N,
            .K = K,
            .a = {a.data(), a_stride(), a_transposed},
            .b = {b.data(), b_stride(), b_transposed},
            .c = out,
            .c_stride = c_stride(),
            .accumulates = accumulates};
  }
};

// A scratch of the bytes asked for, and others behind it that must stay as they are.
struct Memory {
  static constexpr size_t kGuard = size_t{4} << 20;
  static constexpr char kUntouched = 0x5a;
  explicit Memory(size_t size) : bytes(size + kGuard, kUntouched) {}
  bool kept() const {
    return std::all_of(bytes.end() - kGuard, bytes.end(), [](char c) { return c == kUntouched; });
  }
  std::vector<char> bytes;
};

Floats computed(const Product& p, int64_t parts = 1) {
  Floats out = p.c;
  const Gemm g = p.gemm(out.data());
  const GemmGrid grid = gemm_grid(p.M, p.N, parts);
  CHECK(grid.parts() <= std::max<int64_t>(parts, 1));
  Memory scratch(gemm_scratch_bytes(p.M, p.N, p.K, p.accumulates));
  for (int64_t i = grid.parts(); i-- > 0;) gemm(g, grid.part(i), scratch.bytes.data());
  CHECK(scratch.kept());
  return out;
}

// The sum that gemm.h promises, with the room's fused multiply-add.
Floats sums(const Product& p) {
  Floats out = p.c;
  for (int64_t i = 0; i < p.M; ++i) {
    for (int64_t j = 0; j < p.N; ++j) {
      float total = 0;
      for (int64_t first = 0; first < p.K; first += kGemmChunk) {
        vf sum{};
        for (int64_t k = first; k < std::min(p.K, first + kGemmChunk); ++k)
          sum = fma(splat(p.A(i, k)), splat(p.B(k, j)), sum);
        total = first > 0 ? total + sum[0] : sum[0];
      }
      float& c = out[static_cast<size_t>(i * p.c_stride() + j)];
      c = p.accumulates ? c + total : total;
    }
  }
  return out;
}

Product random_product(uint64_t site, int64_t most) {
  const auto draw = [&](uint64_t i, int64_t below) {
    return static_cast<int64_t>(random_u32({21, 0, site}, i) % static_cast<uint64_t>(below));
  };
  Product p = {.M = 1 + draw(0, most), .N = 1 + draw(1, most), .K = 1 + draw(2, most)};
  const int64_t kind = draw(3, 8);
  p.a_transposed = kind & 1;
  p.b_transposed = kind & 2;
  p.accumulates = kind & 4;
  p.slack = draw(4, 2) * draw(5, 20);
  p.fill(site);
  return p;
}

}  // namespace

TEST_CASE("gemm: every element is the sum that the header defines, in shapes up to 70") {
  for (uint64_t site = 0; site < 300; ++site) {
    const Product p = random_product(site, 70);
    CAPTURE(site);
    CAPTURE(p.M);
    CAPTURE(p.N);
    CAPTURE(p.K);
    REQUIRE(same_bits(computed(p), sums(p)));
  }
}

TEST_CASE("gemm: the sum is the same across blocks of depth, rows and columns") {
  const std::vector<std::array<int64_t, 3>> shapes = {
      {205, 40, 300}, {7, 35, 1100}, {13, 2100, 9}, {400, 150, 257},
      {1, 1, 600},    {1, 300, 5},   {300, 1, 5},   {601, 2051, 261}};
  for (const auto& [M, N, K] : shapes) {
    for (int kind = 0; kind < 8; ++kind) {
      Product p = {.M = M,
                   .N = N,
                   .K = K,
                   .a_transposed = (kind & 1) != 0,
                   .b_transposed = (kind & 2) != 0,
                   .accumulates = (kind & 4) != 0,
                   .slack = kind};
      p.fill(1000);
      CAPTURE(M);
      CAPTURE(N);
      CAPTURE(K);
      CAPTURE(kind);
      CHECK(same_bits(computed(p), sums(p)));
    }
  }
}

TEST_CASE("gemm: close to the product in double") {
  for (uint64_t site = 0; site < 40; ++site) {
    const Product p = random_product(500 + site, 260);
    const Floats got = computed(p);
    double worst = 0;
    for (int64_t i = 0; i < p.M; ++i) {
      for (int64_t j = 0; j < p.N; ++j) {
        const auto at = static_cast<size_t>(i * p.c_stride() + j);
        double want = p.accumulates ? p.c[at] : 0, size = std::fabs(want);
        for (int64_t k = 0; k < p.K; ++k) {
          const double term = static_cast<double>(p.A(i, k)) * p.B(k, j);
          want += term;
          size += std::fabs(term);
        }
        worst = std::max(worst, std::fabs(got[at] - want) / size);
      }
    }
    CAPTURE(site);
    CHECK(worst < 1e-6);
  }
}

TEST_CASE("gemm: bits depend on no split into parts") {
  for (uint64_t site = 0; site < 30; ++site) {
    const Product p = random_product(700 + site, 300);
    const Floats whole = computed(p);
    for (const int64_t parts : {2, 3, 4, 7, 16, 64}) {
      CAPTURE(site);
      CAPTURE(parts);
      CHECK(same_bits(whole, computed(p, parts)));
    }
  }
}

// Of a matrix that is wider than a block of columns, parts have narrower and so higher blocks.
TEST_CASE("gemm: a part has room in the whole's scratch") {
  const std::vector<std::array<int64_t, 3>> shapes = {
      {768, 7168, 300}, {1920, 3712, 300}, {600, 2100, 257}, {4000, 1100, 257}};
  for (const auto& [M, N, K] : shapes) {
    Product p = {.M = M, .N = N, .K = K, .accumulates = true};
    p.fill(750);
    const Floats whole = computed(p);
    for (const int64_t parts : {2, 3, 4, 8, 9}) {
      CAPTURE(M);
      CAPTURE(N);
      CAPTURE(parts);
      CHECK(same_bits(whole, computed(p, parts)));
    }
  }
}

TEST_CASE("gemm: parts need not end at tiles") {
  Product p = {.M = 100, .N = 90, .K = 40, .slack = 3};
  p.fill(800);
  const Floats whole = computed(p);
  Floats out = p.c;
  Memory scratch(gemm_scratch_bytes(p.M, p.N, p.K, p.accumulates));
  in_pieces(p.M, 1, [&](int64_t row_begin, int64_t row_end) {
    in_pieces(p.N, 2, [&](int64_t column_begin, int64_t column_end) {
      gemm(p.gemm(out.data()), {row_begin, row_end, column_begin, column_end},
           scratch.bytes.data());
    });
  });
  CHECK(same_bits(whole, out));
}

TEST_CASE("gemm: accumulating has the bits of a product and an addition") {
  Product p = {.M = 650, .N = 2060, .K = 600, .a_transposed = true};
  p.fill(900);
  const Floats product = computed(p);
  p.accumulates = true;
  Floats want = p.c;
  for (size_t i = 0; i < want.size(); ++i) want[i] += product[i];
  CHECK(same_bits(computed(p), want));
  CHECK(same_bits(computed(p, 6), want));
}

TEST_CASE("gemm: swapping the operands' roles gives the transpose, bit for bit") {
  Product p = {.M = 45, .N = 83, .K = 310};
  p.fill(901);
  Product q = {.M = p.N, .N = p.M, .K = p.K, .a_transposed = true, .b_transposed = true};
  q.fill(902);
  q.a = p.b;
  q.b = p.a;
  const Floats c = computed(p), transposed = computed(q);
  bool same = true;
  for (int64_t i = 0; i < p.M; ++i) {
    for (int64_t j = 0; j < p.N; ++j) {
      same = same &&
             c[static_cast<size_t>(i * p.N + j)] == transposed[static_cast<size_t>(j * p.M + i)];
    }
  }
  CHECK(same);
}

TEST_CASE("gemm: NaN and infinity reach their rows and columns and no others") {
  Product p = {.M = 20, .N = 37, .K = 30};
  p.fill(903);
  p.a[3 * 30 + 7] = std::numeric_limits<float>::quiet_NaN();
  p.b[11 * 37 + 36] = kInfinity;
  const Floats c = computed(p);
  for (int64_t i = 0; i < p.M; ++i) {
    for (int64_t j = 0; j < p.N; ++j) {
      const float x = c[static_cast<size_t>(i * p.N + j)];
      CHECK(std::isnan(x) == (i == 3));
      CHECK(std::isinf(x) == (i != 3 && j == 36));
    }
  }
  // An infinity times the zeros of a part's padding is no NaN of the result.
  p.a[19 * 30] = kInfinity;
  const Floats edge = computed(p);
  for (size_t j = 0; j < 36; ++j) CHECK(std::isinf(edge[19 * 37 + j]));
}

TEST_CASE("gemm: an empty sum is zero, or the old elements; elements between rows stay") {
  Product p = {.M = 9, .N = 21, .K = 0, .slack = 4};
  p.fill(904);
  const Floats c = computed(p);
  for (int64_t i = 0; i < p.M; ++i) {
    for (int64_t j = 0; j < std::min<int64_t>(25, static_cast<int64_t>(c.size()) - i * 25); ++j) {
      const auto at = static_cast<size_t>(i * 25 + j);
      CHECK(c[at] == (j < 21 ? 0.0f : p.c[at]));
    }
  }
  p.accumulates = true;
  CHECK(same_bits(computed(p), p.c));
}

TEST_CASE("gemm: the grid covers C once, and scratch stays small") {
  for (const int64_t parts : {1, 2, 3, 8, 30}) {
    for (const int64_t M : {1, 6, 100, 2048}) {
      for (const int64_t N : {1, 33, 512}) {
        const GemmGrid grid = gemm_grid(M, N, parts);
        int64_t elements = 0;
        for (int64_t i = 0; i < grid.parts(); ++i) {
          const GemmPart part = grid.part(i);
          CHECK(part.row_begin < part.row_end);
          CHECK(part.column_begin < part.column_end);
          elements += (part.row_end - part.row_begin) * (part.column_end - part.column_begin);
        }
        CHECK(elements == M * N);
      }
    }
  }
  CHECK(gemm_grid(2048, 512, 2).parts() == 2);
  CHECK(gemm_scratch_bytes(1 << 20, 1 << 20, 1 << 20, true) < size_t{8} << 20);
  CHECK(gemm_scratch_bytes(1 << 20, 1 << 20, 1 << 20, false) < size_t{3} << 20);
  CHECK(gemm_scratch_bytes(64, 64, 64, true) < size_t{64} << 10);
}

}  // namespace mw::kernels
