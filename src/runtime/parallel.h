// Splitting a loop over a rank's threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace mw::runtime {

namespace detail {
// Calls body(context, thread, begin, end) for `threads` even ranges of [0, n) on as many threads;
// the caller is one. REQUIRES: 1 < threads; body does not throw.
void fork(int threads, int64_t n,
          void (*body)(void* context, int thread, int64_t begin, int64_t end), void* context);
}  // namespace detail

// Calls body(begin, end), or body(thread, begin, end) with thread < threads, for ranges that cover
// [0, n) once. A range has at least `grain` indices, so that small loops stay on the calling
// thread. Ranges begin at multiples of 16, so that no two threads write into one cache line of
// floats. Allocates nothing once the threads are there.
template <typename Body>
void parallel_for(int threads, int64_t n, int64_t grain, Body&& body) {
  const auto call = [&body](int thread, int64_t begin, int64_t end) {
    if (begin >= end) return;
    if constexpr (std::is_invocable_v<Body&, int, int64_t, int64_t>) {
      body(thread, begin, end);
    } else {
      body(begin, end);
    }
  };
  const auto used = static_cast<int>(std::min<int64_t>(threads, n / std::max<int64_t>(grain, 1)));
  if (used <= 1) return call(0, 0, n);
  detail::fork(
      used, n,
      [](void* context, int thread, int64_t begin, int64_t end) {
        (*static_cast<decltype(&call)>(context))(thread, begin, end);
      },
      const_cast<std::remove_const_t<decltype(call)>*>(std::addressof(call)));
}

// Elements that are worth a thread of their own in a streaming loop.
inline constexpr int64_t kGrain = 16384;
// Rows of `columns` elements that are.
inline int64_t row_grain(int64_t columns) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(columns, 1));
}

}  // namespace mw::runtime
