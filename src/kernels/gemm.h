// The f32 matrix product of linear layers: C (+)= op(A) op(B), row-major, with leading dimensions.
//
// Every element of C is the same sum for every K, in chunks of kGemmChunk products:
//   for each chunk, ascending:
//     s = +0; for k in the chunk, ascending: s = fma(A(i, k), B(k, j), s)
//     sum = sum + s (sum = s in the first chunk)
//   C(i, j) = accumulates ? C(i, j) + sum : sum
// (a product and a sum where the processor has no fused one). Its bits depend on its row of A, its
// column of B and its old value alone: not on M, N, its place, the leading dimensions, the
// transpositions, the split over threads, the blocking or the vectors' width. Two consequences:
// swapping the operands' roles changes no bit, and a product that accumulates has the bits of one
// that does not and an addition. The chunks keep the rounding error of a long sum near that of
// sqrt(kGemmChunk) products; one unbroken chain has three times as much at K=2048 and nine times at
// K=32768.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mw::kernels {

// A part of the definition of the sum: the same on every processor.
inline constexpr int64_t kGemmChunk = 256;

// An operand: element (row, column) of op(X) is data[row * stride + column], or
// data[column * stride + row] if transposed.
struct GemmOperand {
  const float* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

// REQUIRES: strides at least the length of a stored row; C overlaps neither A nor B.
struct Gemm {
  int64_t M = 0, N = 0, K = 0;
  GemmOperand a;  // op(A) is [M, K]
  GemmOperand b;  // op(B) is [K, N]
  float* c = nullptr;
  int64_t c_stride = 0;
  bool accumulates = false;  // to C's old elements
};

// A rectangle of C.
struct GemmPart {
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
};

// C cut into rows * columns parts of about the same work, all borders at whole tiles.
struct GemmGrid {
  int64_t M = 0, N = 0;
  int64_t rows = 1, columns = 1;
  int64_t parts() const { return rows * columns; }
  GemmPart part(int64_t i) const;
};

// The grid of at most `parts` parts that packs the least; fewer where C has not as many tiles.
GemmGrid gemm_grid(int64_t M, int64_t N, int64_t parts);

// Bytes of scratch for one call of gemm() on a part of at most M x N elements; no more than a few
// MiB.
size_t gemm_scratch_bytes(int64_t M, int64_t N, int64_t K, bool accumulates);

// Computes the part of C and touches nothing else of it. Calls on disjoint parts may run at once,
// each with a scratch of its own.
void gemm(const Gemm& g, const GemmPart& part, void* scratch);
// All of C.
void gemm(const Gemm& g, void* scratch);

}  // namespace mw::kernels
