#include "runtime/thread_team.h"

#include "base/thread.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mw::runtime {
namespace {

// About 50 microseconds: longer than the gap between two loops of a step, shorter than what a
// system takes to put a thread to sleep and wake it a few times.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

template <typename T>
void wait_while(std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

constexpr uint64_t kNext = 0xffff;
uint64_t pieces_of(uint64_t state) { return state >> 16 & kNext; }
uint64_t next_of(uint64_t state) { return state & kNext; }
uint64_t new_job(uint64_t state, int64_t pieces) {
  return ((state >> 32) + 1) << 32 | static_cast<uint64_t>(pieces) << 16;
}

}  // namespace

// By way of the empty team, whose destructor ends those that have started where one cannot.
ThreadTeam::ThreadTeam(int threads) : ThreadTeam() {
  helpers_.reserve(static_cast<size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread)
    helpers_.push_back(start_thread([this, thread] { help(thread); }));
}

ThreadTeam::~ThreadTeam() {
  stops_ = true;
  state_ = new_job(state_, 0);
  state_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadTeam::run(int64_t pieces, Piece piece, void* context) {
  piece_ = piece;
  context_ = context;
  left_.store(pieces, std::memory_order_relaxed);
  uint64_t seen = new_job(state_.load(std::memory_order_relaxed), pieces);
  state_.store(seen, std::memory_order_release);
  state_.notify_all();
  for (int64_t i = claim(seen); i >= 0; i = claim(seen)) {
    piece(context, 0, i);
    left_.fetch_sub(1, std::memory_order_acq_rel);
  }
  for (int64_t left = left_.load(std::memory_order_acquire); left > 0;
       left = left_.load(std::memory_order_acquire)) {
    wait_while(left_, left);
  }
}

int64_t ThreadTeam::claim(uint64_t& seen) {
  seen = state_.load(std::memory_order_acquire);
  while (next_of(seen) < pieces_of(seen)) {
    if (state_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      return static_cast<int64_t>(next_of(seen));
    }
  }
  return -1;
}

void ThreadTeam::help(int thread) {
  uint64_t seen = 0;
  while (true) {
    for (int64_t i = claim(seen); i >= 0; i = claim(seen)) {
      piece_(context_, thread, i);
      if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_one();
    }
    // The last state is stored after stops_: who has seen it sees that too.
    if (stops_) return;
    wait_while(state_, seen);
  }
}

}  // namespace mw::runtime
