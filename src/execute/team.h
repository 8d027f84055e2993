// Team: threads that are started once and do one job after another together.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mw::execute {

class Team {
 public:
  // Throws RunError if the system has no more threads.
  explicit Team(int members);
  // Waits for the job in progress.
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  // Calls job(member) once on every thread and returns when all have returned. REQUIRES: job does
  // not throw; one caller.
  void run(const std::function<void(int)>& job);

 private:
  Team() = default;
  void work(int member);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* job_ = nullptr;  // valid while busy_ > 0
  uint64_t generation_ = 0;
  int busy_ = 0;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mw::execute
