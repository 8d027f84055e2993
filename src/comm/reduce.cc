#include "comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace mw::comm {
namespace {

// Arithmetic is on vectors of 32 bytes.
template <typename T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(32)));
};
template <typename T>
using Vector = typename VectorOf<T>::Type;

// Elements in memory (T) and in arithmetic (Acc), with exact widening and one rounding back.
template <typename T>
struct Plain {
  using Memory = T;
  using Acc = T;
  static Acc widen(T x) { return x; }
  static T narrow(Acc x) { return x; }
};

struct BFloat16 {
  using Memory = uint16_t;
  using Acc = float;
  static float widen(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
  static uint16_t narrow(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);  // quiet, never infinity
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

struct Float16 {
  using Memory = _Float16;
  using Acc = float;
  static float widen(_Float16 x) { return static_cast<float>(x); }
  static _Float16 narrow(float x) { return static_cast<_Float16>(x); }
};

// Each for scalars and for vectors. x != x is the NaN that max and min must keep; one in `a` stays
// by itself, because it compares false with everything.
struct Sum {
  template <typename V>
  static V apply(V a, V b) {
    return a + b;
  }
};
struct Max {
  template <typename V>
  static V apply(V a, V b) {
    return (b > a) | (b != b) ? b : a;
  }
};
struct Min {
  template <typename V>
  static V apply(V a, V b) {
    return (b < a) | (b != b) ? b : a;
  }
};

template <typename T>
Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <typename T>
void store(T* p, Vector<T> v) {
  std::memcpy(p, &v, sizeof(v));
}

template <typename T>
const T* input(std::span<const void* const> in, size_t k) {
  return static_cast<const T*>(in[k]);
}

// Elements [begin, end), one at a time: the tail, and the dtypes whose arithmetic is wider than
// their memory.
template <typename E, typename Op>
void reduce_scalars(std::span<const void* const> in, std::span<void* const> out, int64_t begin,
                    int64_t end) {
  using T = typename E::Memory;
  using Acc = typename E::Acc;
  constexpr int64_t kBlock = 64;
  Acc acc[kBlock];
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t count = std::min(kBlock, end - i);
    const T* first = input<T>(in, 0) + i;
    for (int64_t j = 0; j < count; ++j) acc[j] = E::widen(first[j]);
    for (size_t k = 1; k < in.size(); ++k) {
      const T* next = input<T>(in, k) + i;
      for (int64_t j = 0; j < count; ++j)
        acc[j] = Op::template apply<Acc>(acc[j], E::widen(next[j]));
    }
    for (void* target : out) {
      T* p = static_cast<T*>(target) + i;
      for (int64_t j = 0; j < count; ++j) p[j] = E::narrow(acc[j]);
    }
  }
}

// Blocks of four vectors stay in registers between the loads of all inputs and the stores to all
// outputs.
template <typename T, typename Op>
void reduce_vectors(std::span<const void* const> in, std::span<void* const> out, int64_t count) {
  using V = Vector<T>;
  constexpr int64_t kLanes = sizeof(V) / sizeof(T);
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    const T* p = input<T>(in, 0) + i;
    V a = load(p), b = load(p + kLanes), c = load(p + 2 * kLanes), d = load(p + 3 * kLanes);
    for (size_t k = 1; k < in.size(); ++k) {
      p = input<T>(in, k) + i;
      a = Op::apply(a, load(p));
      b = Op::apply(b, load(p + kLanes));
      c = Op::apply(c, load(p + 2 * kLanes));
      d = Op::apply(d, load(p + 3 * kLanes));
    }
    for (void* target : out) {
      T* q = static_cast<T*>(target) + i;
      store(q, a);
      store(q + kLanes, b);
      store(q + 2 * kLanes, c);
      store(q + 3 * kLanes, d);
    }
  }
  reduce_scalars<Plain<T>, Op>(in, out, i, count);
}

template <typename Op>
void reduce_with(DType dtype, std::span<const void* const> in, std::span<void* const> out,
                 int64_t count) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8: return reduce_vectors<uint8_t, Op>(in, out, count);
    case DType::kI32:
      // A sum wraps, which only unsigned arithmetic may.
      if constexpr (std::is_same_v<Op, Sum>) return reduce_vectors<uint32_t, Op>(in, out, count);
      return reduce_vectors<int32_t, Op>(in, out, count);
    case DType::kI64:
      if constexpr (std::is_same_v<Op, Sum>) return reduce_vectors<uint64_t, Op>(in, out, count);
      return reduce_vectors<int64_t, Op>(in, out, count);
    case DType::kBF16: return reduce_scalars<BFloat16, Op>(in, out, 0, count);
    case DType::kF16: return reduce_scalars<Float16, Op>(in, out, 0, count);
    case DType::kF32: return reduce_vectors<float, Op>(in, out, count);
    case DType::kF64: return reduce_vectors<double, Op>(in, out, count);
  }
}

}  // namespace

void reduce(DType dtype, ReduceOp op, std::span<const void* const> in, std::span<void* const> out,
            int64_t count) {
  MW_CHECK(!in.empty(), "a reduction of nothing");
  switch (op) {
    case ReduceOp::kSum: return reduce_with<Sum>(dtype, in, out, count);
    case ReduceOp::kMax: return reduce_with<Max>(dtype, in, out, count);
    case ReduceOp::kMin: return reduce_with<Min>(dtype, in, out, count);
  }
}

}  // namespace mw::comm
