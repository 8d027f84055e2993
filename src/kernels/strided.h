// One copy between two strided views of the same sizes: transposes, permutes, slices, pads (fill,
// then copy into the middle) and broadcasts (a source stride of 0) of up to six dimensions.
#pragma once

#include <array>
#include <cstdint>

namespace mw::kernels {

inline constexpr int kMaxDims = 6;

// Sizes and strides in elements; dimension rank-1 varies fastest in the order of work.
struct StridedCopy {
  int rank = 0;
  std::array<int64_t, kMaxDims> size{};
  std::array<int64_t, kMaxDims> source_stride{};
  std::array<int64_t, kMaxDims> target_stride{};
};

// Rows of the copy: the product of all sizes but the last. 1 for rank 0.
int64_t strided_rows(const StridedCopy& copy);

// Copies the rows [begin, end). No two elements of the target are one; source and target do not
// overlap.
void strided_copy(const StridedCopy& copy, const float* source, float* target, int64_t begin,
                  int64_t end);
void strided_copy(const StridedCopy& copy, const double* source, double* target, int64_t begin,
                  int64_t end);
void strided_copy(const StridedCopy& copy, const int32_t* source, int32_t* target, int64_t begin,
                  int64_t end);
void strided_copy(const StridedCopy& copy, const int64_t* source, int64_t* target, int64_t begin,
                  int64_t end);
void strided_copy(const StridedCopy& copy, const uint8_t* source, uint8_t* target, int64_t begin,
                  int64_t end);
// target += source
void strided_add(const StridedCopy& copy, const float* source, float* target, int64_t begin,
                 int64_t end);

}  // namespace mw::kernels
