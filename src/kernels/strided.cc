#include "kernels/strided.h"

#include <algorithm>

namespace mw::kernels {
namespace {

struct Assign {
  template <typename T>
  void operator()(T& target, T source) const {
    target = source;
  }
};
struct Add {
  void operator()(float& target, float source) const { target += source; }
};

// Offsets of a row's first element.
struct Offsets {
  int64_t source = 0;
  int64_t target = 0;
};

Offsets row_offsets(const StridedCopy& copy, int64_t row) {
  Offsets offsets;
  for (int d = copy.rank - 2; d >= 0; --d) {
    const int64_t index = row % copy.size[d];
    row /= copy.size[d];
    offsets.source += index * copy.source_stride[d];
    offsets.target += index * copy.target_stride[d];
  }
  return offsets;
}

template <typename T, typename Store>
void one_row(const T* source, int64_t source_stride, T* target, int64_t target_stride, int64_t n,
             Store put) {
  if (source_stride == 1 && target_stride == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) put(target[i], source[i]);
    return;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) put(target[i * target_stride], source[i * source_stride]);
}

// Rows whose neighbours are adjacent in the source: in square tiles, so that a cache line of the
// source serves several rows.
template <typename T, typename Store>
void tiled_rows(const StridedCopy& copy, const T* source, T* target, int64_t rows, Store put) {
  constexpr int64_t kTile = 16;
  const int last = copy.rank - 1;
  const int64_t n = copy.size[last];
  const int64_t source_stride = copy.source_stride[last];
  const int64_t target_stride = copy.target_stride[last];
  const int64_t row_stride = copy.target_stride[last - 1];
  for (int64_t first = 0; first < rows; first += kTile) {
    const int64_t row_end = std::min(rows, first + kTile);
    for (int64_t column = 0; column < n; column += kTile) {
      const int64_t count = std::min(kTile, n - column);
      for (int64_t row = first; row < row_end; ++row) {
        one_row(source + row + column * source_stride, source_stride,
                target + row * row_stride + column * target_stride, target_stride, count, put);
      }
    }
  }
}

template <typename T, typename Store>
void copy_rows(const StridedCopy& copy, const T* source, T* target, int64_t begin, int64_t end,
               Store put) {
  if (copy.rank == 0) {
    if (begin < end) put(*target, *source);
    return;
  }
  const int last = copy.rank - 1;
  const bool transposes =
      copy.rank >= 2 && copy.source_stride[last - 1] == 1 && copy.source_stride[last] != 1;
  for (int64_t row = begin; row < end;) {
    const Offsets at = row_offsets(copy, row);
    int64_t rows = 1;
    if (transposes) {
      const int64_t size = copy.size[last - 1];
      rows = std::min(end - row, size - row % size);
      tiled_rows(copy, source + at.source, target + at.target, rows, put);
    } else {
      one_row(source + at.source, copy.source_stride[last], target + at.target,
              copy.target_stride[last], copy.size[last], put);
    }
    row += rows;
  }
}

}  // namespace

int64_t strided_rows(const StridedCopy& copy) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < copy.rank; ++d) rows *= copy.size[d];
  return rows;
}

void strided_copy(const StridedCopy& copy, const float* source, float* target, int64_t begin,
                  int64_t end) {
  copy_rows(copy, source, target, begin, end, Assign());
}
void strided_copy(const StridedCopy& copy, const double* source, double* target, int64_t begin,
                  int64_t end) {
  copy_rows(copy, source, target, begin, end, Assign());
}
void strided_copy(const StridedCopy& copy, const int32_t* source, int32_t* target, int64_t begin,
                  int64_t end) {
  copy_rows(copy, source, target, begin, end, Assign());
}
void strided_copy(const StridedCopy& copy, const int64_t* source, int64_t* target, int64_t begin,
                  int64_t end) {
  copy_rows(copy, source, target, begin, end, Assign());
}
void strided_copy(const StridedCopy& copy, const uint8_t* source, uint8_t* target, int64_t begin,
                  int64_t end) {
  copy_rows(copy, source, target, begin, end, Assign());
}
void strided_add(const StridedCopy& copy, const float* source, float* target, int64_t begin,
                 int64_t end) {
  copy_rows(copy, source, target, begin, end, Add());
}

}  // namespace mw::kernels
