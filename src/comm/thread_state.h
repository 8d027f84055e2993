// Inside the threads backend: what the ranks share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "comm/communicator.h"
#include "comm/thread_world.h"
#include "comm/wait_point.h"

namespace mw::comm {

class ThreadEndpoint;

// What a member wrote down about its operation for the others to read; owned by the group, so that
// it outlives the member's stack.
struct Posted {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  bool split = false;  // started, to be finished later
  std::vector<PermutePair> pairs;
  std::vector<Buffer> in;
  std::vector<Buffer> out;

  // Keeps the vectors' memory: no allocation once the largest operation was seen.
  void assign(const Collective& op, bool is_split);
  Collective view() const { return {kind, dtype, op, root, pairs, in, out}; }
  // describe(view()), and whether it was started.
  std::string text() const;
  // Same operation, whatever the addresses.
  bool matches(const Posted& other) const;
};

// A group. A synchronization is complete when `arrivals` has grown by the number of members; no
// member can begin the next before that, so one ever-growing counter serves them all.
struct GroupState {
  GroupState(AbortState& abort, std::string name, std::vector<RankId> members);

  // Makes the group unusable; the first text stands.
  void fail(std::string text);
  // Throws the RunError of fail().
  void check() const;

  struct alignas(64) Member {
    std::atomic<int64_t> arrived = 0;  // synchronizations
    std::atomic<bool> joined = false;
    // By parity of the operation: a member may post the next one while another still compares this
    // one.
    Posted posted[2];
  };

  const std::string name;
  const std::vector<RankId> members;
  WaitPoint point;
  std::vector<Member> table;
  alignas(64) std::atomic<int64_t> arrivals = 0;
  std::atomic<int> joined = 0;
  std::atomic<int> closed = 0;
  std::atomic<bool> failed = false;

 private:
  mutable std::mutex mutex_;
  std::string failure_;
};

struct FreeDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};
using SlotMemory = std::unique_ptr<std::byte[], FreeDeleter>;

// A channel. Each slot names the last message that passed each of its three gates.
struct RingState {
  RingState(AbortState& abort, Bytes slot_bytes, int slots, bool copying);

  struct alignas(64) Slot {
    std::atomic<int64_t> published = -1;
    std::atomic<int64_t> received = -1;  // receive was called
    std::atomic<int64_t> released = -1;
  };

  std::byte* producer_slot(int64_t sequence) { return slot(producer_memory, sequence); }
  std::byte* consumer_slot(int64_t sequence) {
    return slot(consumer_memory ? consumer_memory : producer_memory, sequence);
  }
  Slot& gates(int64_t sequence) { return table[static_cast<size_t>(sequence) % table.size()]; }

  const Bytes slot_bytes;
  WaitPoint point;
  std::vector<Slot> table;
  SlotMemory producer_memory;
  SlotMemory consumer_memory;  // with copying only
  int closed = 0;              // handles gone; under ThreadWorldState::mutex

 private:
  std::byte* slot(SlotMemory& memory, int64_t sequence);
  size_t stride_;
};

struct ThreadWorldState {
  ThreadWorldState(int ranks, ThreadWorldOptions options);

  using RingKey =
      std::tuple<RankId, RankId, int32_t, int64_t>;  // producer, consumer, id, k-th call
  using GroupKey = std::pair<std::string, int64_t>;  // name, k-th call

  const ThreadWorldOptions options;
  const bool spin;  // only while every rank has a core of its own
  AbortState abort;
  std::mutex mutex;  // of the maps
  std::map<GroupKey, std::vector<std::shared_ptr<GroupState>>> groups;
  std::map<RingKey, std::shared_ptr<RingState>> rings;
  std::vector<std::unique_ptr<ThreadEndpoint>> endpoints;
};

// A handle of a rank, seen by its endpoint's waiting().
class ThreadHandle {
 public:
  explicit ThreadHandle(ThreadEndpoint& endpoint);
  virtual ~ThreadHandle();
  ThreadHandle(const ThreadHandle&) = delete;
  ThreadHandle& operator=(const ThreadHandle&) = delete;

  void append_waiting(std::vector<Waiting>& list) const;

 protected:
  // Throws Aborted, or sleeps the random delay: the beginning of every operation.
  void enter();
  template <typename Done>
  bool wait(WaitPoint& point, WaitKind kind, int64_t sequence, Done done, bool abortable = true);
  // As wait(), and throws Aborted where that returns false.
  template <typename Done>
  void wait_or_throw(WaitPoint& point, WaitKind kind, int64_t sequence, Done done);

  ThreadEndpoint& endpoint_;

 private:
  // Where, operation and peers of a sleep that is going on.
  virtual void describe_wait(Waiting& waiting) const = 0;

  Sleep sleep_;
};

class ThreadEndpoint final : public Endpoint {
 public:
  ThreadEndpoint(ThreadWorldState& world, RankId rank) : world_(world), rank_(rank) {}

  RankId rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(world_.endpoints.size()); }
  using Endpoint::channel;
  using Endpoint::group;
  std::unique_ptr<Communicator> group(std::vector<RankId> members, std::string name,
                                      StreamHandle stream) override;
  std::unique_ptr<Channel> channel(RankId peer, int32_t id, Bytes slot_bytes, int slots,
                                   bool is_producer, StreamHandle stream) override;
  void abort(std::string reason) override { world_.abort.raise(std::move(reason)); }
  std::vector<Waiting> waiting() const override;

  ThreadWorldState& world() { return world_; }
  void delay();

 private:
  friend class ThreadHandle;

  ThreadWorldState& world_;
  const RankId rank_;
  std::atomic<uint64_t> delays_ = 0;
  mutable std::mutex mutex_;  // of the below
  std::vector<const ThreadHandle*> handles_;
  std::map<std::string, int64_t> groups_made_;
  std::map<std::tuple<RankId, RankId, int32_t>, int64_t> channels_made_;
};

template <typename Done>
bool ThreadHandle::wait(WaitPoint& point, WaitKind kind, int64_t sequence, Done done,
                        bool abortable) {
  return point.wait(sleep_, kind, sequence, endpoint_.world().spin, abortable, done);
}

template <typename Done>
void ThreadHandle::wait_or_throw(WaitPoint& point, WaitKind kind, int64_t sequence, Done done) {
  if (!wait(point, kind, sequence, done)) endpoint_.world().abort.check();
}

}  // namespace mw::comm
