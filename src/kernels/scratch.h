// Scratch memory that a caller brings to a kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mw::kernels {

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Hands out 64-byte aligned parts of a caller's scratch memory; without memory it only counts.
class Scratch {
 public:
  explicit Scratch(void* memory) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    start_ = next_ = memory == nullptr ? 0 : (address + 63) / 64 * 64;
  }
  template <typename T>
  T* take(int64_t count) {
    const uintptr_t at = next_;
    next_ += static_cast<uintptr_t>(round_up(count * static_cast<int64_t>(sizeof(T)), 64));
    return reinterpret_cast<T*>(at);
  }
  // Bytes a caller must bring for what was taken.
  size_t bytes() const { return next_ - start_ + 64; }

 private:
  uintptr_t start_;
  uintptr_t next_;
};

}  // namespace mw::kernels
