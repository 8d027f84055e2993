// How the ranks of one run talk to each other: collectives within ordered groups (Communicator),
// the ring of slots of one pipeline boundary (Channel) and one rank's entrance to both (Endpoint).
//
// A rank is a thread, a process or a GPU, and what is written on these interfaces does not know
// which. Every blocking wait is abortable: after Endpoint::abort, every wait and every later
// operation of every rank throws Aborted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/stream.h"
#include "comm/collective.h"
#include "comm/waiting.h"

namespace mw::comm {

// The run was given up; what() is the reason that abort was called with. Never the cause itself.
class Aborted : public RunError {
 public:
  using RunError::RunError;
};

// One rank's handle of one ordered group of ranks. Not thread-safe: one thread at a time.
//
// Every member calls the same operations in the same order; a member whose operation differs in
// kind, dtype, op, counts, root or pairs makes the operation throw RunError on all members, naming
// two ranks and both operations, and the group is unusable from then on. An operation returns when
// this rank may read its results and overwrite its inputs; a caller must not rely on it to return
// before every member has called it.
//
// A reduction adds in ascending rank order, ((r0 + r1) + r2) + …, for every element whatever its
// position, in the dtype (bf16 and f16: in fp32, rounded once at the end; integers wrap). max and
// min return NaN if any input is. So the bits are the same on all members and for all splits of a
// tensor into buffers.
//
// Errors: CheckFailure if the buffers do not fit the operation (see Collective), RunError on a
// mismatch, Aborted.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Position of this rank in the group, and the number of members.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::string& name() const { return name_; }
  // World ranks by position.
  const std::vector<RankId>& members() const { return members_; }

  // Reduces each buffer over the members, in place.
  void all_reduce(std::span<const Buffer> buffers, DType dtype, ReduceOp op);
  // The same in two calls, on all members: start does not wait for those that come later, and other
  // work may be done before finish. REQUIRES: the group's next call is finish(); nobody touches the
  // buffers before, and should finish never come, they outlive the other members' calls.
  void start_all_reduce(std::span<const Buffer> buffers, DType dtype, ReduceOp op);
  void finish();
  // Splits each `in` in size() equal contiguous parts and reduces part rank() of all members into
  // `out`.
  void reduce_scatter(std::span<const Buffer> in, std::span<const Buffer> out, DType dtype,
                      ReduceOp op);
  // Concatenates the members' `in` in rank order.
  void all_gather(std::span<const Buffer> in, std::span<const Buffer> out, DType dtype);
  // Part j of member i's `in` becomes part i of member j's `out`.
  void all_to_all(std::span<const Buffer> in, std::span<const Buffer> out, DType dtype);
  // Copies the root's buffers into those of all members.
  void broadcast(std::span<const Buffer> buffers, DType dtype, int root);
  // `out` becomes the `in` of the pair's source; zeros where this rank is the destination of no
  // pair (as in HLO).
  void permute(std::span<const Buffer> in, std::span<const Buffer> out, DType dtype,
               std::span<const PermutePair> pairs);
  void barrier();

  // Any of the above as a value: checks it, runs it and counts its bytes.
  void run(const Collective& op);

  // What this rank has sent by the rule of collective_bytes_sent, not what the backend moved: the
  // verifier predicts it exactly.
  Bytes bytes_sent() const { return Bytes(bytes_sent_.load(std::memory_order_relaxed)); }
  // Operations completed by this rank.
  int64_t operations() const { return operations_.load(std::memory_order_relaxed); }

 protected:
  // REQUIRES: 0 <= rank < members.size().
  Communicator(std::string name, int rank, std::vector<RankId> members);

  // Runs an operation that has passed check_collective.
  virtual void do_run(const Collective& op) = 0;
  // An all-reduce in two parts; a backend without one runs it at once.
  virtual void do_start(const Collective& op) { do_run(op); }
  virtual void do_finish() {}

 private:
  std::string name_;
  int rank_;
  std::vector<RankId> members_;
  std::atomic<int64_t> bytes_sent_ = 0;
  std::atomic<int64_t> operations_ = 0;
  bool started_ = false;

  void count(const Collective& op);
};

// One side's handle of one direction of a pipeline boundary: a ring of slots() buffers of
// slot_bytes() each that the pair owns, aligned to 64 bytes. Message `sequence` (0, 1, 2, …) lies
// in slot sequence % slots().
//
//   producer   acquire(s)  waits until the slot is free, that is until message s - slots() was
//   released; the bytes
//                          are undefined
//              publish(s)  hands the bytes over and does not wait for the consumer; under the
//              weakest
//                          semantics they move only in receive(s). The pointer is dead from then
//                          on.
//   consumer   receive(s)  waits for publish(s) and returns the bytes, to be read in place
//              release(s)  returns the slot; the pointer is dead from then on
//
// acquire, publish and receive are called in ascending order of sequence without gaps, acquire may
// run ahead of publish, and release may come in any order. Not thread-safe: one thread at a time.
// Errors: CheckFailure if called out of order or on the wrong side, Aborted.
class Channel {
 public:
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  virtual void* acquire(int64_t sequence) = 0;
  virtual void publish(int64_t sequence) = 0;
  virtual const void* receive(int64_t sequence) = 0;
  virtual void release(int64_t sequence) = 0;

  RankId producer() const { return producer_; }
  RankId consumer() const { return consumer_; }
  int32_t id() const { return id_; }
  Bytes slot_bytes() const { return slot_bytes_; }
  int slots() const { return slots_; }
  // slot_bytes() for every message published by this side.
  Bytes bytes_sent() const { return Bytes(bytes_sent_.load(std::memory_order_relaxed)); }

 protected:
  // REQUIRES: slot_bytes >= 0, slots >= 1.
  Channel(RankId producer, RankId consumer, int32_t id, Bytes slot_bytes, int slots);
  void count_publish() { bytes_sent_.fetch_add(slot_bytes_.value, std::memory_order_relaxed); }

 private:
  RankId producer_;
  RankId consumer_;
  int32_t id_;
  Bytes slot_bytes_;
  int slots_;
  std::atomic<int64_t> bytes_sent_ = 0;
};

// One rank's entrance. abort() and waiting() may be called from any thread, the rest from the
// threads of the rank. The handles that it gives must not outlive it.
//
// On a device, buffers and slots are the device's memory, and a handle's operations are work of the
// stream that it was made with: what they read must be ready, and what they write is ready, in that
// stream's order.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual RankId rank() const = 0;
  virtual int world_size() const = 0;

  // Collective over the members: returns when all of them have called it with the same name and
  // members. Members are in the group's order. The k-th call with a name on one member matches the
  // k-th on the others; groups without a common member may share a name.
  // REQUIRES: members are distinct ranks of the world, this rank among them.
  // Errors: RunError naming two ranks whose members differ, Aborted.
  virtual std::unique_ptr<Communicator> group(std::vector<RankId> members, std::string name,
                                              StreamHandle stream) = 0;
  std::unique_ptr<Communicator> group(std::vector<RankId> members, std::string name) {
    return group(std::move(members), std::move(name), StreamHandle{});
  }

  // This rank's side of the channel `id` in one direction between it and `peer`; ids of the two
  // directions are independent. Does not wait for the peer. The k-th call on one side matches the
  // k-th on the other.
  // Errors: RunError if the peer's side has another size or number of slots, Aborted.
  virtual std::unique_ptr<Channel> channel(RankId peer, int32_t id, Bytes slot_bytes, int slots,
                                           bool is_producer, StreamHandle stream) = 0;
  std::unique_ptr<Channel> channel(RankId peer, int32_t id, Bytes slot_bytes, int slots,
                                   bool is_producer) {
    return channel(peer, id, slot_bytes, slots, is_producer, StreamHandle{});
  }

  // Makes every rank throw Aborted(reason); the first reason stands.
  virtual void abort(std::string reason) = 0;

  // What the threads of this rank are blocked on at this moment.
  virtual std::vector<Waiting> waiting() const = 0;
};

}  // namespace mw::comm
