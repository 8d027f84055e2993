// Splitting a loop over a rank's threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace mw::runtime {

namespace detail {
// Calls body(context, thread, begin, end) for `pieces` even ranges of [0, n), on `threads` threads
// of which the caller is one. REQUIRES: body does not throw.
void fork(int threads, int64_t n, int64_t pieces,
          void (*body)(void* context, int thread, int64_t begin, int64_t end), void* context);
}  // namespace detail

// Ranges that a loop is cut into for every thread: what one thread is late with, another does.
inline constexpr int64_t kPiecesPerThread = 4;

// Calls body(begin, end), or body(thread, begin, end) with thread < threads, for ranges that cover
// [0, n) once; a thread may get several of them. A range has about `grain` indices or more, so that
// small loops stay on the calling thread. Those of long loops begin at multiples of 16, so that no
// two threads write into one cache line of floats. Allocates nothing once the threads are there.
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
  const int64_t pieces =
      std::min<int64_t>(threads * kPiecesPerThread, n / std::max<int64_t>(grain, 1));
  if (threads <= 1 || pieces <= 1) return call(0, 0, n);
  detail::fork(
      threads, n, pieces,
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
