// The clock of all pipeline ranks: runs their commands, messages and rendezvous in order of time.
// Private to room simulate.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "pipeline/figures.h"
#include "simulate/flat_program.h"
#include "simulate/fragment_walk.h"
#include "simulate/links.h"
#include "simulate/pair_cost.h"
#include "simulate/simulate.h"

namespace mw::simulate {

// A fragment's ops walked once from time 0, where no other rank is involved, on ranks whose groups
// lie alike.
struct TimedFragment {
  FragmentCost cost;
  FragmentTime time;
  std::vector<OpSpan> spans;  // [op]
  // [level] when its collectives have links that messages of the caller go over.
  std::vector<std::vector<Interval>> links;
  // [level of OpCost::fills] when its collectives have them.
  std::vector<std::vector<Interval>> taken;
};

// A call as it was run; the trace is made of these.
struct CallRecord {
  int32_t command = 0;
  int32_t timed = 0;  // FlatCall::timed
  double begin = 0, end = 0;
  int32_t walk = -1;  // index into RankLog::walks of a call that was walked anew
  // Of a pair: which (LoopInput::pairs), which of its two, and when both began; `end` of the first
  // and `begin` of the second divide its time as the two take it by themselves.
  int32_t pair = -1, which = 0;
  double pair_begin = 0;
};
// A message as it was sent.
struct MessageRecord {
  double begin = 0, arrival = 0;  // published; there
  int32_t command = -1;           // that published
  int32_t channel = 0;
};
struct MemoryRecord {
  double time = 0;
  pipeline::Category category = pipeline::Category::kActivations;
  int64_t bytes = 0;
};
struct RankLog {
  std::vector<CallRecord> calls;
  std::vector<std::vector<OpSpan>> walks;
  std::vector<Wait> waits;
  std::vector<MemoryRecord> memory;
};

// What a rank's run added up to.
struct RankSums {
  double waits[kWaitReasons] = {};
  int64_t messages_sent = 0;  // bytes
  double compute = 0, gaps = 0, end = 0, flops = 0, recomputed_flops = 0;
  double peak_time = 0;
  std::vector<double> comm, exposed;       // [label]
  std::vector<int64_t> sent, collectives;  // [label]
  int64_t instructions = 0;
  pipeline::OrderHash order;
};

struct LoopInput {
  const pipeline::Program& program;
  const FlatProgram& flat;
  const std::vector<TimedFragment>& fragments;  // by FlatCall::timed
  const std::vector<TimedPair>& pairs;          // by FlatCall::pair
  const std::vector<CrossGroup>& cross_groups;
  const cluster::Cluster& cluster;
  const Options& options;
  size_t labels;
  int32_t gather_label;    // of the channels' scatter/gather, -1: none
  uint32_t update_levels;  // link levels of the update's collectives, as bits
  // [pipeline rank] the last command before which gradients may be reduced early; null: all.
  const std::vector<int32_t>* last_early = nullptr;
};

class EventLoop {
 public:
  explicit EventLoop(const LoopInput& input);
  // CheckFailure where ranks wait for each other for ever.
  void run();

  const std::vector<RankSums>& sums() const { return sums_; }
  std::vector<RankLog>& logs() { return logs_; }
  // With a trace, by channel, in order there.
  std::vector<MessageRecord> messages() const;
  int64_t events() const { return events_; }
  double end() const;
  // [pipeline rank] the last command that waited for another rank's value or slot; -1: none.
  std::vector<int32_t> last_waits() const;

 private:
  // Whether gradients of the command's call may be reduced early: `last_early` of the last of
  // several calls holds for each of them.
  bool is_early(int32_t r, int32_t command) const;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // Where a rank is in one of its lists of changes.
  struct Cursor {
    uint32_t next = 0;
    int32_t command = -1;  // of the next change; -1: none is left
    void move_to(const std::vector<pipeline::LiveBytes>& changes, size_t to) {
      next = static_cast<uint32_t>(to);
      command = to < changes.size() ? changes[to].command : -1;
    }
  };
  // What every command reads and writes comes first, and fits a cache line: ranks take turns, and
  // there are many.
  struct alignas(64) RankState {
    std::span<const FlatCommand> commands;
    double now = 0;
    double sending_end = 0;  // its messages on their way, as if nobody shared their links
    double gather_end = 0;
    int32_t next = 0;      // command
    int32_t fullest = -1;  // Fullest::command
    int32_t slot = -1;     // that it waits for: to be filled or freed
    int32_t pair = -1;     // whose second call comes next
    bool blocked = false;
    bool sending = false;       // inside a publish that waits for its message
    bool walking = false;       // inside a call that meets other ranks
    uint32_t gather_fills = 0;  // OpCost::fills of its gathers
    Cursor born, died;          // in FlatRank::memory
    pipeline::BytesByCategory alive = {};
    // [level] when messages have the ports, as far as an update's collectives go there too.
    std::vector<std::vector<Interval>> messages;
    // Calls since the last update whose collectives have links, and when they began.
    std::vector<std::pair<double, const std::vector<std::vector<Interval>>*>> calls;
    std::vector<std::vector<Interval>> taken;  // WalkOptions::taken
    std::vector<double> state_ready;   // [buffer] when its last write ends; kNever: not early
    std::vector<double> gather_ready;  // [buffer] when its all-gather ends
    double pair_begin = 0;             // when the last pair's calls began
    // Of the call that meets other ranks:
    double call_begin = 0;
    std::vector<Wait> call_waits;  // of its streams for others
    Walk walk;
    std::vector<double> port_ready;  // [input port]

    // The next one. REQUIRES: there is one.
    const FlatCommand& command() const { return commands[static_cast<size_t>(next)]; }
  };
  // A slot of a channel's ring, and the message that is in it.
  struct SlotState {
    int32_t channel = 0;
    bool free = true;       // to be written
    bool filled = false;    // its message has arrived
    int32_t command = -1;   // that published
    int32_t freed_by = -1;  // of the consumer
    double begin = 0, arrival = 0, freed = 0;
  };
  struct CrossState {
    size_t arrived = 0;
    double start = 0;
    int32_t last_rank = -1, last_command = -1;
    std::vector<std::pair<int32_t, double>> members;  // rank, when it came
  };

  void go(int32_t r);
  bool step(int32_t r, const FlatCommand& command);  // whether the rank can go on
  void prefetch(int32_t r) const;
  bool acquire(int32_t r, int32_t slot);
  bool publish(int32_t r, int32_t slot);
  bool receive(int32_t r, int32_t slot);
  void release(int32_t r, int32_t slot);
  void arrive(int32_t slot, double arrival);
  bool call(int32_t r, const FlatCall& flat);
  void call_timed(int32_t r, const FlatCall& flat, const TimedFragment& fragment);
  bool call_first(int32_t r, const FlatCall& flat, const TimedFragment& fragment);  // of a pair
  void call_second(int32_t r, const FlatCall& flat, const TimedFragment& fragment);
  // Moves the rank's clock on, beside messages for longer, and counts the time.
  void take(int32_t r, const FragmentTime& time, const std::vector<std::vector<Interval>>& links,
            const std::vector<std::vector<Interval>>& taken);
  void see_writes(int32_t r, const FlatCall& flat, const TimedFragment& fragment,
                  const std::vector<OpSpan>& spans, double begin);
  bool walk_call(int32_t r, const FlatCall& flat, const TimedFragment& fragment);
  void begin_walk(int32_t r, const FlatCall& flat, const TimedFragment& fragment);
  // Links that messages and the calls before have while the walk's collectives may go on.
  void see_taken(RankState& state) const;
  void end_walk(int32_t r, const TimedFragment& fragment);
  // Logs the call's waits as far as nothing runs on any stream meanwhile; their seconds.
  double log_waits(int32_t r, const FragmentCost& cost, double end);
  void see_message(RankState& state, const FlatChannel& channel, Interval when) const;
  // Whether no collective of a later call meets the message.
  static bool is_past(const RankState& state, const Interval& message);
  static void forget_past(const RankState& state, std::vector<Interval>& messages);
  void meet(int32_t r, const TimedFragment& fragment, double at);
  // `spans` of the call's ops, `seconds` and `taken` of what begins: the call, or its pair.
  void wait_for_gathers(int32_t r, const FlatCall& flat, const FragmentCost& cost,
                        const std::vector<OpSpan>& spans, double seconds,
                        const std::vector<std::vector<Interval>>& taken);
  void prepare_gathers(int32_t r);
  const FlatChannel& channel_of(const SlotState& slot) const {
    return in_.flat.channels[static_cast<size_t>(slot.channel)];
  }
  double on_link(const SlotState& slot) const {
    return on_link_[static_cast<size_t>(slot.channel)];
  }
  // REQUIRES: the rank's next command is a call.
  const FlatCall& next_call(int32_t r) const {
    const FlatRank& rank = in_.flat.ranks[static_cast<size_t>(r)];
    return rank.calls[static_cast<size_t>(states_[static_cast<size_t>(r)].command().index)];
  }
  double slowdown_beside(Beside beside) const { return slowdowns_[static_cast<size_t>(beside)]; }
  void wait(int32_t r, WaitReason reason, double until, int32_t peer, int32_t peer_command,
            double peer_time);
  void count_call(int32_t r, size_t command, const FragmentCost& cost);
  // The memory curve: what is always there, then what comes alive before, or dies behind, a
  // command.
  static void begin_memory(const pipeline::BufferLives& memory, RankState& state, RankLog& log);
  void change_memory(RankState& state, const std::vector<pipeline::LiveBytes>& changes, Cursor& at,
                     int64_t sign, RankLog& log) const;
  // Whether the rank holds the most now that its next command is at work.
  void see_fullest(int32_t r) {
    const RankState& state = states_[static_cast<size_t>(r)];
    if (state.next == state.fullest) sums_[static_cast<size_t>(r)].peak_time = state.now;
  }
  void wake(int32_t r) {
    states_[static_cast<size_t>(r)].blocked = false;
    ready_.push_back(r);
  }
  bool logs_calls() const { return in_.options.trace; }

  const LoopInput in_;
  const Slowdowns slowdowns_;
  EventQueue queue_;
  const std::vector<double> bandwidths_;  // [level] of messages
  const std::vector<double> latencies_;   // the same
  std::vector<double> on_link_;           // [channel] seconds of a message's bytes
  std::vector<int32_t> ways_;             // [channel] of links_
  Links links_;
  std::vector<RankState> states_;
  std::vector<RankSums> sums_;
  std::vector<RankLog> logs_;
  std::vector<SlotState> slots_;
  std::vector<std::vector<MessageRecord>> messages_;  // [channel] with a trace
  std::vector<CrossState> cross_;
  std::vector<int32_t> ready_;
  int64_t events_ = 0;
};

}  // namespace mw::simulate
