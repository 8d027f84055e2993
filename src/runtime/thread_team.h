// ThreadTeam: the threads that help a rank through its loops. Work is handed out piece by piece, so
// that a helper that the system does not run, or runs late, holds nobody up: the rank's own thread
// takes what is left, and waits only for pieces that somebody has begun.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace mw::runtime {

class ThreadTeam {
 public:
  // REQUIRES: threads >= 1, the caller's own included. Throws RunError if the system has no more.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  using Piece = void (*)(void* context, int thread, int64_t piece);
  // Calls piece(context, thread, i) once for every i in [0, pieces), on any thread in any order;
  // returns when all have ended. Allocates nothing. REQUIRES: one call at a time, always from the
  // same thread, not from inside of a piece; `piece` does not throw; pieces < 65536.
  void run(int64_t pieces, Piece piece, void* context);

 private:
  ThreadTeam() = default;
  void help(int thread);
  // Claims a piece of the current job; -1 if there is none left, and then `seen` is the state.
  int64_t claim(uint64_t& seen);

  // The job's number (32 bits), its pieces (16), the next one to claim (16).
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int64_t> left_{0};  // pieces that have not ended
  std::atomic<bool> stops_{false};
  Piece piece_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> helpers_;
};

}  // namespace mw::runtime
