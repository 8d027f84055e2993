#include "comm/thread_world.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "comm/thread_state.h"

namespace mw::comm {

ThreadWorldState::ThreadWorldState(int ranks, ThreadWorldOptions world_options)
    : options(world_options), spin(ranks <= static_cast<int>(std::thread::hardware_concurrency())) {
  for (int rank = 0; rank < ranks; ++rank) {
    endpoints.push_back(std::make_unique<ThreadEndpoint>(*this, RankId(rank)));
  }
}

ThreadWorld::ThreadWorld(int ranks, ThreadWorldOptions options) {
  MW_CHECK(ranks >= 1, "a world of {} ranks", ranks);
  state_ = std::make_unique<ThreadWorldState>(ranks, options);
}

ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const { return static_cast<int>(state_->endpoints.size()); }

Endpoint& ThreadWorld::endpoint(RankId rank) {
  MW_CHECK(rank.value >= 0 && rank.value < size(), "rank {} in a world of {}", rank.value, size());
  return *state_->endpoints[rank.index()];
}

void ThreadWorld::abort(std::string reason) { state_->abort.raise(std::move(reason)); }

std::vector<Waiting> ThreadWorld::waiting() const {
  std::vector<Waiting> all;
  for (const auto& endpoint : state_->endpoints) {
    for (Waiting& waiting : endpoint->waiting()) all.push_back(std::move(waiting));
  }
  return all;
}

std::vector<Waiting> ThreadEndpoint::waiting() const {
  std::vector<Waiting> list;
  std::lock_guard lock(mutex_);
  for (const ThreadHandle* handle : handles_) handle->append_waiting(list);
  return list;
}

void ThreadEndpoint::delay() {
  const ThreadWorldOptions& options = world_.options;
  if (!options.delay_seed) return;
  const uint64_t draw = mix_bits(
      *options.delay_seed ^ mix_bits(static_cast<uint64_t>(rank_.value)) ^ delays_.fetch_add(1));
  // A quarter of the operations is not delayed at all.
  if (draw % 4 == 0) return;
  const double fraction = static_cast<double>(draw >> 11) * 0x1p-53;
  std::this_thread::sleep_for(std::chrono::duration<double>(options.max_delay.value * fraction));
}

ThreadHandle::ThreadHandle(ThreadEndpoint& endpoint) : endpoint_(endpoint) {
  std::lock_guard lock(endpoint_.mutex_);
  endpoint_.handles_.push_back(this);
}

ThreadHandle::~ThreadHandle() {
  std::lock_guard lock(endpoint_.mutex_);
  std::erase(endpoint_.handles_, this);
}

void ThreadHandle::enter() {
  endpoint_.world().abort.check();
  endpoint_.delay();
}

void ThreadHandle::append_waiting(std::vector<Waiting>& list) const {
  sleep_.look([&](WaitKind kind, int64_t sequence, std::chrono::steady_clock::time_point since) {
    Waiting waiting{.rank = endpoint_.rank(), .kind = kind, .sequence = sequence};
    waiting.waited =
        Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count());
    describe_wait(waiting);
    list.push_back(std::move(waiting));
  });
}

}  // namespace mw::comm
