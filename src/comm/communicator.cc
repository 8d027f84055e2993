#include "comm/communicator.h"

#include <algorithm>
#include <utility>

namespace mw::comm {
namespace {

// Whether this rank sends in the operation; only permute leaves ranks out.
bool sends(const Collective& op, int rank) {
  if (op.kind != CollectiveKind::kPermute) return true;
  return std::any_of(op.pairs.begin(), op.pairs.end(),
                     [&](const PermutePair& pair) { return pair.first == rank; });
}

}  // namespace

Communicator::Communicator(std::string name, int rank, std::vector<RankId> members)
    : name_(std::move(name)), rank_(rank), members_(std::move(members)) {
  MW_CHECK(rank_ >= 0 && rank_ < size(), "group '{}' of {} has no position {}", name_, size(),
           rank_);
}

void Communicator::run(const Collective& op) {
  MW_CHECK(!started_, "group '{}': an operation before the started one is finished", name_);
  check_collective(op, size(), name_);
  do_run(op);
  count(op);
  operations_.fetch_add(1, std::memory_order_relaxed);
}

void Communicator::count(const Collective& op) {
  if (sends(op, rank_)) {
    bytes_sent_.fetch_add(collective_bytes_sent(op.kind, collective_bytes(op), size()).value,
                          std::memory_order_relaxed);
  }
}

void Communicator::start_all_reduce(std::span<const Buffer> buffers, DType dtype, ReduceOp reduce) {
  MW_CHECK(!started_, "group '{}': an operation before the started one is finished", name_);
  const Collective op{.kind = CollectiveKind::kAllReduce,
                      .dtype = dtype,
                      .op = reduce,
                      .in = buffers,
                      .out = buffers};
  check_collective(op, size(), name_);
  do_start(op);
  started_ = true;
  count(op);
}

void Communicator::finish() {
  MW_CHECK(started_, "group '{}': nothing was started", name_);
  do_finish();
  started_ = false;
  operations_.fetch_add(1, std::memory_order_relaxed);
}

void Communicator::all_reduce(std::span<const Buffer> buffers, DType dtype, ReduceOp op) {
  run({.kind = CollectiveKind::kAllReduce,
       .dtype = dtype,
       .op = op,
       .in = buffers,
       .out = buffers});
}

void Communicator::reduce_scatter(std::span<const Buffer> in, std::span<const Buffer> out,
                                  DType dtype, ReduceOp op) {
  run({.kind = CollectiveKind::kReduceScatter, .dtype = dtype, .op = op, .in = in, .out = out});
}

void Communicator::all_gather(std::span<const Buffer> in, std::span<const Buffer> out,
                              DType dtype) {
  run({.kind = CollectiveKind::kAllGather, .dtype = dtype, .in = in, .out = out});
}

void Communicator::all_to_all(std::span<const Buffer> in, std::span<const Buffer> out,
                              DType dtype) {
  run({.kind = CollectiveKind::kAllToAll, .dtype = dtype, .in = in, .out = out});
}

void Communicator::broadcast(std::span<const Buffer> buffers, DType dtype, int root) {
  run({.kind = CollectiveKind::kBroadcast,
       .dtype = dtype,
       .root = root,
       .in = buffers,
       .out = buffers});
}

void Communicator::permute(std::span<const Buffer> in, std::span<const Buffer> out, DType dtype,
                           std::span<const PermutePair> pairs) {
  run({.kind = CollectiveKind::kPermute, .dtype = dtype, .pairs = pairs, .in = in, .out = out});
}

void Communicator::barrier() { run({.kind = CollectiveKind::kBarrier}); }

Channel::Channel(RankId producer, RankId consumer, int32_t id, Bytes slot_bytes, int slots)
    : producer_(producer), consumer_(consumer), id_(id), slot_bytes_(slot_bytes), slots_(slots) {
  MW_CHECK(slot_bytes.value >= 0 && slots >= 1, "channel {} with {} slots of {} bytes", id, slots,
           slot_bytes.value);
}

}  // namespace mw::comm
