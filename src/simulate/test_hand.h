// For this room's tests: what the event loop is given, made command by command.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/event_loop.h"
#include "simulate/test_programs.h"

namespace mw::simulate {

inline OpCost computes(double seconds) {
  OpCost op;
  op.device = seconds;
  return op;
}
// On a stream of its own, over link level 0.
inline OpCost reduces(double seconds, int32_t stream, int32_t cross = -1) {
  OpCost op = computes(seconds);
  op.stream = stream;
  op.label = 0;
  op.levels = op.links = 1;
  op.cross = cross;
  op.beside = Beside::kGradReduce;
  return op;
}
inline FragmentCost made_of(std::vector<OpCost> ops) {
  FragmentCost cost;
  for (const OpCost& op : ops) {
    cost.streams = std::max(cost.streams, op.stream + 1);
    cost.crosses = cost.crosses || op.cross >= 0;
  }
  cost.ops = std::move(ops);
  return cost;
}
inline void wait_for(FragmentCost& cost, size_t op, const std::vector<int32_t>& before) {
  cost.ops[op].first_dep = static_cast<uint32_t>(cost.deps.size());
  cost.ops[op].deps = static_cast<uint32_t>(before.size());
  cost.deps.insert(cost.deps.end(), before.begin(), before.end());
}
inline void read_state(FragmentCost& cost, size_t op, int32_t port) {
  cost.ops[op].first_state = static_cast<uint32_t>(cost.state_reads.size());
  cost.ops[op].states = 1;
  cost.state_reads.push_back(port);
}

// What the loop is given, made command by command.
class Hand {
 public:
  using Kind = pipeline::Command::Kind;
  explicit Hand(size_t ranks) {
    program.mesh = cluster::Mesh({{"pp", static_cast<int64_t>(ranks)}});
    program.ranks.resize(ranks);
    flat.ranks.resize(ranks);
    for (pipeline::RankProgram& rank : program.ranks) rank.buffers.resize(4);
  }

  int32_t fragment(pipeline::ActionKind kind, FragmentCost cost, size_t ports = 0) {
    pipeline::Fragment made;
    made.kind = kind;
    made.inputs.resize(ports);
    program.fragments.push_back(std::move(made));
    cost.update = kind == pipeline::ActionKind::kUpdate;
    TimedFragment timed;
    if (!cost.crosses) {
      Walk walk;
      walk.begin(cost, 0);
      double meet = 0;
      REQUIRE_FALSE(advance(cost, walk, {}, meet));
      timed.time = divide(cost, walk, 0, walk.end, 1);
      timed.taken = link_use(cost, walk.spans, ~uint32_t{0}, &OpCost::fills);
      timed.spans = walk.spans;
    }
    timed.cost = std::move(cost);
    fragments.push_back(std::move(timed));
    return static_cast<int32_t>(fragments.size()) - 1;
  }
  // A channel of one slot for messages of `bytes` from a rank to another: its slot.
  int32_t message(int32_t from, int32_t to, int64_t bytes) {
    FlatChannel channel;
    channel.from = from;
    channel.to = to;
    channel.bytes = channel.sent = bytes;
    flat.channels.push_back(channel);
    flat.channel_of.push_back(static_cast<int32_t>(flat.channels.size()) - 1);
    return static_cast<int32_t>(flat.channel_of.size()) - 1;
  }
  // A call's state ports have these buffers.
  void call(size_t rank, int32_t fragment, const std::vector<int32_t>& buffers = {}) {
    std::vector<int32_t>& bindings = flat.ranks[rank].bindings;
    std::vector<FlatCall>& calls = flat.ranks[rank].calls;
    add(rank, {Kind::kCall, static_cast<int32_t>(calls.size())});
    calls.push_back({fragment, fragment, static_cast<int32_t>(bindings.size())});
    bindings.insert(bindings.end(), buffers.begin(), buffers.end());
  }
  // The rank's last call and the one before it are a pair that takes so long.
  void pair_last(size_t rank, double seconds) {
    std::vector<FlatCall>& calls = flat.ranks[rank].calls;
    FlatCall& first = calls[calls.size() - 2];
    first.paired = static_cast<int32_t>(flat.ranks[rank].commands.size()) - 1;
    first.pair = static_cast<int32_t>(pairs.size());
    TimedPair& pair = pairs.emplace_back();
    pair.time.duration = pair.time.compute = seconds;
    pair.time.comm = pair.time.exposed = {0};
    for (size_t i = 0; i < 2; ++i) {
      const int32_t timed = calls[calls.size() - 2 + i].timed;
      pair.spans[i].resize(fragments[static_cast<size_t>(timed)].cost.ops.size());
    }
  }
  void acquire(size_t rank, int32_t slot) { add(rank, {Kind::kAcquire, slot}); }
  void release(size_t rank, int32_t slot) { add(rank, {Kind::kRelease, slot}); }
  void publish(size_t rank, int32_t slot) { add(rank, {Kind::kPublish, slot}); }
  void receive(size_t rank, int32_t slot) { add(rank, {Kind::kReceive, slot}); }
  void load(size_t rank) { add(rank, {Kind::kLoad, -1}); }

  struct Ran {
    std::vector<RankSums> sums;
    std::vector<RankLog> logs;
    std::vector<MessageRecord> messages;
    std::vector<int32_t> last_waits;
    double wait(size_t rank, WaitReason reason) const {
      return sums[rank].waits[static_cast<size_t>(reason)];
    }
  };
  Ran run() {
    const cluster::Cluster cluster = unit_cluster(latency, 1);
    EventLoop loop({program, flat, fragments, pairs, cross_groups, cluster, options, 1, 0,
                    update_levels, last_early.empty() ? nullptr : &last_early});
    loop.run();
    return {loop.sums(), loop.logs(), loop.messages(), loop.last_waits()};
  }
  void slow_down(Beside beside, double factor) {
    options.overlap.slowdown.fill(1);
    options.overlap.slowdown[static_cast<size_t>(beside)] = factor;
  }

  pipeline::Program program;
  FlatProgram flat;
  std::vector<TimedFragment> fragments;
  std::vector<TimedPair> pairs;
  std::vector<CrossGroup> cross_groups;
  Options options;
  uint32_t update_levels = 1;
  std::vector<int32_t> last_early;  // empty: all
  double latency = 0;               // of messages

 private:
  void add(size_t rank, const FlatCommand& command) {
    flat.ranks[rank].commands.push_back(command);
    program.ranks[rank].commands.emplace_back();
  }
};

}  // namespace mw::simulate
