// The channels of the threads backend: a ring of slots in memory that both sides see, or with the
// copying option one ring a side and a copy at publish, or under rendezvous at receive.
#include <cstring>
#include <new>
#include <utility>

#include "comm/thread_state.h"

namespace mw::comm {
namespace {

constexpr size_t kAlignment = 64;
constexpr int kPoison = 0xff;  // NaN in every floating dtype

SlotMemory allocate(size_t bytes) {
  SlotMemory memory(
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, std::max(bytes, kAlignment))));
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

RingState::RingState(AbortState& abort, Bytes bytes, int slots, bool copying)
    : slot_bytes(bytes),
      point(abort),
      table(static_cast<size_t>(slots)),
      stride_((static_cast<size_t>(bytes.value) + kAlignment - 1) / kAlignment * kAlignment) {
  producer_memory = allocate(stride_ * table.size());
  if (copying) consumer_memory = allocate(stride_ * table.size());
}

std::byte* RingState::slot(SlotMemory& memory, int64_t sequence) {
  return memory.get() + static_cast<size_t>(sequence) % table.size() * stride_;
}

namespace {

class ThreadChannel final : public Channel, private ThreadHandle {
 public:
  ThreadChannel(ThreadEndpoint& endpoint, std::shared_ptr<RingState> ring,
                ThreadWorldState::RingKey key)
      : Channel(std::get<0>(key), std::get<1>(key), std::get<2>(key), ring->slot_bytes,
                static_cast<int>(ring->table.size())),
        ThreadHandle(endpoint),
        ring_(std::move(ring)),
        key_(key),
        is_producer_(endpoint.rank() == producer()) {}

  ~ThreadChannel() override {
    ThreadWorldState& world = endpoint_.world();
    std::lock_guard lock(world.mutex);
    if (++ring_->closed == 2) world.rings.erase(key_);
  }

  void* acquire(int64_t sequence) override {
    check_order("acquire", true, sequence, acquired_);
    enter();
    wait_or_throw(ring_->point, WaitKind::kAcquire, sequence - slots(),
                  [&, free = sequence - slots()] {
                    return free < 0 || ring_->gates(sequence).released.load() == free;
                  });
    ++acquired_;
    std::byte* slot = ring_->producer_slot(sequence);
    if (ring_->consumer_memory) std::memset(slot, kPoison, bytes());
    return slot;
  }

  void publish(int64_t sequence) override {
    check_order("publish", true, sequence, published_);
    MW_CHECK(sequence < acquired_, "{}: publish({}) before acquire", where(), sequence);
    enter();
    const Sends sends = endpoint_.world().options.sends;
    if (sends == Sends::kBuffered) transfer(sequence);
    RingState::Slot& gates = ring_->gates(sequence);
    gates.published.store(sequence);
    ring_->point.notify();
    ++published_;
    count_publish();
    if (sends != Sends::kBlocking) return;
    wait_or_throw(ring_->point, WaitKind::kPublish, sequence,
                  [&] { return gates.received.load() >= sequence; });
  }

  const void* receive(int64_t sequence) override {
    check_order("receive", false, sequence, received_);
    enter();
    RingState::Slot& gates = ring_->gates(sequence);
    gates.received.store(sequence);
    ring_->point.notify();
    wait_or_throw(ring_->point, WaitKind::kReceive, sequence,
                  [&] { return gates.published.load() >= sequence; });
    if (endpoint_.world().options.sends != Sends::kBuffered) transfer(sequence);
    ++received_;
    return ring_->consumer_slot(sequence);
  }

  void release(int64_t sequence) override {
    MW_CHECK(!is_producer_, "{}: release({}) by the producer", where(), sequence);
    RingState::Slot& gates = ring_->gates(sequence);
    MW_CHECK(sequence >= 0 && sequence < received_ && gates.published.load() == sequence &&
                 gates.released.load() < sequence,
             "{}: release({}), which is not held; {} messages were received", where(), sequence,
             received_);
    enter();
    if (ring_->consumer_memory) std::memset(ring_->consumer_slot(sequence), kPoison, bytes());
    gates.released.store(sequence);
    ring_->point.notify();
  }

 private:
  // With copying: from the producer's slot to the consumer's. What the producer still does with its
  // pointer is seen by nobody, as after a send.
  void transfer(int64_t sequence) {
    if (!ring_->consumer_memory) return;
    std::memcpy(ring_->consumer_slot(sequence), ring_->producer_slot(sequence), bytes());
    std::memset(ring_->producer_slot(sequence), kPoison, bytes());
  }

  void check_order(const char* call, bool by_producer, int64_t sequence, int64_t next) const {
    MW_CHECK(by_producer == is_producer_, "{}: {}({}) by the {}", where(), call, sequence,
             is_producer_ ? "producer" : "consumer");
    MW_CHECK(sequence == next, "{}: {}({}), but the next message is {}", where(), call, sequence,
             next);
  }

  size_t bytes() const { return static_cast<size_t>(slot_bytes().value); }

  std::string where() const {
    return fmt::format("channel {} (rank {} to rank {})", id(), producer().value, consumer().value);
  }

  void describe_wait(Waiting& waiting) const override {
    waiting.where = where();
    waiting.peers.push_back(is_producer_ ? consumer() : producer());
  }

  std::shared_ptr<RingState> ring_;
  ThreadWorldState::RingKey key_;
  bool is_producer_;
  int64_t acquired_ = 0;  // number of calls that have returned, each
  int64_t published_ = 0;
  int64_t received_ = 0;
};

}  // namespace

std::unique_ptr<Channel> ThreadEndpoint::channel(RankId peer, int32_t id, Bytes slot_bytes,
                                                 int slots, bool is_producer, StreamHandle) {
  MW_CHECK(peer.value >= 0 && peer.value < world_size() && peer != rank_,
           "rank {} opens channel {} with rank {} in a world of {}", rank_.value, id, peer.value,
           world_size());
  MW_CHECK(slot_bytes.value >= 0 && slots >= 1, "channel {} with {} slots of {} bytes", id, slots,
           slot_bytes.value);
  const RankId producer = is_producer ? rank_ : peer, consumer = is_producer ? peer : rank_;
  ThreadWorldState::RingKey key{producer, consumer, id, 0};
  {
    std::lock_guard lock(mutex_);
    std::get<3>(key) = channels_made_[{producer, consumer, id}]++;
  }
  world_.abort.check();
  std::lock_guard lock(world_.mutex);
  std::shared_ptr<RingState>& ring = world_.rings[key];
  if (!ring)
    ring = std::make_shared<RingState>(world_.abort, slot_bytes, slots, world_.options.copying);
  const int there = static_cast<int>(ring->table.size());
  if (ring->slot_bytes != slot_bytes || there != slots) {
    throw RunError(
        fmt::format("channel {} (rank {} to rank {}): rank {} opens {} slots of {} bytes, rank {} "
                    "opened {} slots of {} bytes; "
                    "both sides must open the same ring",
                    id, producer.value, consumer.value, rank_.value, slots, slot_bytes.value,
                    peer.value, there, ring->slot_bytes.value));
  }
  return std::make_unique<ThreadChannel>(*this, ring, key);
}

}  // namespace mw::comm
