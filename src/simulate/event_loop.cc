#include "simulate/event_loop.h"

#include <algorithm>

#include "base/error.h"
#include "cost/collective.h"

namespace mw::simulate {
namespace {

using pipeline::Command;

std::vector<double> bandwidths(const cluster::Cluster& cluster) {
  std::vector<double> all;
  for (size_t l = 0; l < cluster.links.size(); ++l)
    all.push_back(cost::message_bandwidth(cluster, l).value);
  return all;
}
std::vector<double> latencies(const cluster::Cluster& cluster) {
  std::vector<double> all;
  for (size_t l = 0; l < cluster.links.size(); ++l)
    all.push_back(cost::message_latency(cluster, l).value);
  return all;
}

}  // namespace

EventLoop::EventLoop(const LoopInput& input)
    : in_(input),
      slowdowns_(slowdowns_of(input.options.overlap, input.cluster.device)),
      bandwidths_(bandwidths(input.cluster)),
      latencies_(latencies(input.cluster)),
      links_(input.flat.ranks.size(), input.cluster.port_levels(), bandwidths_, latencies_, queue_),
      states_(input.flat.ranks.size()),
      sums_(input.flat.ranks.size()),
      logs_(input.flat.ranks.size()),
      cross_(input.cross_groups.size()) {
  for (const int32_t channel : in_.flat.channel_of) slots_.emplace_back().channel = channel;
  for (const FlatChannel& channel : in_.flat.channels) {
    on_link_.push_back(static_cast<double>(channel.sent) / bandwidths_[channel.level]);
    ways_.push_back(links_.add_way(channel.from, channel.to, channel.level));
  }
  if (logs_calls()) messages_.resize(in_.flat.channels.size());
  for (size_t r = 0; r < states_.size(); ++r) {
    RankSums& sums = sums_[r];
    sums.comm.assign(in_.labels, 0);
    sums.exposed.assign(in_.labels, 0);
    sums.sent.assign(in_.labels, 0);
    sums.collectives.assign(in_.labels, 0);
    RankState& state = states_[r];
    const FlatRank& rank = in_.flat.ranks[r];
    state.commands = rank.commands;
    state.fullest = rank.fullest.command;
    logs_[r].waits.reserve(rank.may_wait);
    if (logs_calls()) begin_memory(rank.memory, state, logs_[r]);
    if (in_.options.overlap.grad_reduce)
      state.state_ready.assign(in_.program.ranks[r].buffers.size(), 0);
    if (in_.options.overlap.param_gather) prepare_gathers(static_cast<int32_t>(r));
  }
}

void EventLoop::run() {
  for (size_t r = 0; r < states_.size(); ++r) ready_.push_back(static_cast<int32_t>(r));
  while (true) {
    while (!ready_.empty()) {
      const int32_t r = ready_.back();
      ready_.pop_back();
      go(r);
    }
    if (queue_.empty()) break;
    const Event event = queue_.pop();
    if (!event.ends) {
      ++events_;
      const SlotState& slot = slots_[static_cast<size_t>(event.index)];
      links_.start(event.time, event.index, ways_[static_cast<size_t>(slot.channel)],
                   static_cast<double>(channel_of(slot).sent));
      continue;
    }
    double arrival = 0;
    const int32_t slot = links_.finish(event, arrival);
    if (slot == Links::kNone) continue;
    ++events_;
    arrive(slot, arrival);
  }
  for (size_t r = 0; r < states_.size(); ++r) {
    MW_CHECK(static_cast<size_t>(states_[r].next) == states_[r].commands.size(),
             "pipeline rank {} never gets beyond command {} of '{}'", r, states_[r].next,
             in_.program.name);
    sums_[r].end = states_[r].now;
  }
}

void EventLoop::arrive(int32_t number, double arrival) {
  SlotState& slot = slots_[static_cast<size_t>(number)];
  slot.arrival = arrival;
  slot.filled = true;
  if (logs_calls())
    messages_[static_cast<size_t>(slot.channel)].push_back(
        {slot.begin, arrival, slot.command, slot.channel});
  const FlatChannel& channel = channel_of(slot);
  const RankState& receiver = states_[static_cast<size_t>(channel.to)];
  if (receiver.blocked && receiver.slot == number) wake(channel.to);
  const RankState& sender = states_[static_cast<size_t>(channel.from)];
  if (sender.sending && sender.slot == number) wake(channel.from);
}

std::vector<MessageRecord> EventLoop::messages() const {
  std::vector<MessageRecord> all;
  for (const std::vector<MessageRecord>& channel : messages_)
    all.insert(all.end(), channel.begin(), channel.end());
  return all;
}

double EventLoop::end() const {
  double end = 0;
  for (const RankSums& sums : sums_) end = std::max(end, sums.end);
  return end;
}

std::vector<int32_t> EventLoop::last_waits() const {
  std::vector<int32_t> last;
  for (const RankLog& log : logs_) {
    last.push_back(-1);
    for (const Wait& wait : log.waits) {
      if (wait.reason != WaitReason::kCollective && wait.reason != WaitReason::kGather)
        last.back() = std::max(last.back(), wait.command);
    }
  }
  return last;
}

bool EventLoop::is_early(int32_t r, int32_t command) const {
  const int32_t of_call =
      static_cast<int32_t>(in_.flat.ranks[static_cast<size_t>(r)].commands.size()) /
      in_.options.calls;
  // Where the last call has no wait, no call has.
  const int32_t last =
      (*in_.last_early)[static_cast<size_t>(r)] - (in_.options.calls - 1) * of_call;
  return command % of_call < last;
}

void EventLoop::go(int32_t r) {
  RankState& state = states_[static_cast<size_t>(r)];
  const pipeline::BufferLives& memory = in_.flat.ranks[static_cast<size_t>(r)].memory;
  RankLog& log = logs_[static_cast<size_t>(r)];
  state.blocked = false;
  for (; static_cast<size_t>(state.next) < state.commands.size(); ++state.next) {
    const FlatCommand& command = state.command();
    if (state.born.command == state.next) change_memory(state, memory.born, state.born, 1, log);
    if (!step(r, command)) {
      state.blocked = true;
      prefetch(r);
      return;
    }
    if (command.kind != Command::Kind::kCall) see_fullest(r);
    if (state.died.command == state.next) change_memory(state, memory.died, state.died, -1, log);
    ++events_;
  }
}

// Other ranks come first: what this one reads and writes next is on its way meanwhile.
void EventLoop::prefetch(int32_t r) const {
  constexpr size_t kLine = 64;  // bytes
  const RankState& state = states_[static_cast<size_t>(r)];
  const std::vector<Wait>& waits = logs_[static_cast<size_t>(r)].waits;
  const size_t ahead = std::min(static_cast<size_t>(state.next) + kLine / sizeof(FlatCommand),
                                state.commands.size());
  __builtin_prefetch(state.commands.data() + ahead);
  __builtin_prefetch(waits.data() + waits.size(), 1);
}

bool EventLoop::step(int32_t r, const FlatCommand& command) {
  switch (command.kind) {
    case Command::Kind::kLoad: return true;
    case Command::Kind::kCall: return call(r, next_call(r));
    case Command::Kind::kAcquire: return acquire(r, command.index);
    case Command::Kind::kPublish: return publish(r, command.index);
    case Command::Kind::kReceive: return receive(r, command.index);
    case Command::Kind::kRelease: release(r, command.index); return true;
  }
  return true;
}

bool EventLoop::acquire(int32_t r, int32_t number) {
  SlotState& slot = slots_[static_cast<size_t>(number)];
  states_[static_cast<size_t>(r)].slot = number;
  if (!slot.free) return false;
  slot.free = false;
  wait(r, WaitReason::kSlot, slot.freed, channel_of(slot).to, slot.freed_by, slot.freed);
  return true;
}

bool EventLoop::publish(int32_t r, int32_t number) {
  RankState& state = states_[static_cast<size_t>(r)];
  SlotState& slot = slots_[static_cast<size_t>(number)];
  if (state.sending) {
    state.sending = false;
    wait(r, WaitReason::kSend, slot.arrival, r, slot.command, slot.begin);
    return true;
  }
  slot.command = state.next;
  slot.begin = state.now;
  const FlatChannel& channel = channel_of(slot);
  sums_[static_cast<size_t>(r)].messages_sent += channel.sent;
  const double begin = std::max(state.now, state.sending_end), end = begin + on_link(slot);
  see_message(state, channel, {begin, end});
  state.sending_end = end;
  queue_.push(state.now, false, number);
  if (in_.options.overlap.messages) return true;
  state.slot = number;
  state.sending = true;
  return false;
}

bool EventLoop::receive(int32_t r, int32_t number) {
  RankState& state = states_[static_cast<size_t>(r)];
  const SlotState& slot = slots_[static_cast<size_t>(number)];
  state.slot = number;
  if (!slot.filled) return false;
  const FlatChannel& channel = channel_of(slot);
  wait(r, WaitReason::kReceive, slot.arrival, channel.from, slot.command, slot.begin);
  // The link's latency and the last of the bytes' time, for they go one message after the other.
  const double takes = on_link(slot);
  const double begin = slot.arrival - latencies_[channel.level] - takes;
  see_message(state, channel, {begin, begin + takes});
  if (channel.gather > 0) {
    const auto label = static_cast<size_t>(in_.gather_label);
    state.now += channel.gather;
    sums_[static_cast<size_t>(r)].exposed[label] += channel.gather;
    sums_[static_cast<size_t>(r)].comm[label] += channel.gather;
  }
  return true;
}

bool EventLoop::is_past(const RankState& state, const Interval& message) {
  const bool early = !state.state_ready.empty();  // collectives may begin before their call
  return !early && message.end <= state.now;
}
void EventLoop::forget_past(const RankState& state, std::vector<Interval>& messages) {
  std::erase_if(messages, [&](const Interval& i) { return is_past(state, i); });
}

// The update's collectives, which are run behind all messages of their rank, leave them the ports.
void EventLoop::see_message(RankState& state, const FlatChannel& channel, Interval when) const {
  if ((in_.update_levels >> channel.level & 1) == 0) return;
  if (is_past(state, when)) return;
  if (state.messages.size() <= channel.level) state.messages.resize(channel.level + 1);
  std::vector<Interval>& here = state.messages[channel.level];
  if (here.size() == here.capacity()) {
    forget_past(state, here);
    here.reserve(2 * here.size() + 1);  // so that it is not looked through at every message
  }
  here.push_back(when);
}

void EventLoop::release(int32_t r, int32_t number) {
  const RankState& state = states_[static_cast<size_t>(r)];
  SlotState& slot = slots_[static_cast<size_t>(number)];
  slot.filled = false;
  slot.free = true;
  slot.freed = state.now;
  slot.freed_by = state.next;
  const int32_t producer = channel_of(slot).from;
  const RankState& other = states_[static_cast<size_t>(producer)];
  if (other.blocked && other.slot == number && other.command().kind == Command::Kind::kAcquire)
    wake(producer);
}

void EventLoop::wait(int32_t r, WaitReason reason, double until, int32_t peer, int32_t peer_command,
                     double peer_time) {
  RankState& state = states_[static_cast<size_t>(r)];
  if (until <= state.now) return;
  sums_[static_cast<size_t>(r)].waits[static_cast<size_t>(reason)] += until - state.now;
  logs_[static_cast<size_t>(r)].waits.push_back({state.next, reason, Seconds(state.now),
                                                 Seconds(until), peer, peer_command,
                                                 Seconds(peer_time)});
  state.now = until;
}

bool EventLoop::call(int32_t r, const FlatCall& flat) {
  const TimedFragment& fragment = in_.fragments[static_cast<size_t>(flat.timed)];
  const bool early = in_.options.overlap.grad_reduce &&
                     in_.program.fragments[static_cast<size_t>(flat.fragment)].kind ==
                         pipeline::ActionKind::kUpdate;
  if (states_[static_cast<size_t>(r)].pair >= 0) {
    call_second(r, flat, fragment);
  } else if (flat.pair >= 0 && in_.options.overlap.pairs) {
    if (!call_first(r, flat, fragment)) return false;
  } else if (fragment.cost.crosses || early) {
    if (!walk_call(r, flat, fragment)) return false;
  } else {
    call_timed(r, flat, fragment);
  }
  count_call(r, static_cast<size_t>(states_[static_cast<size_t>(r)].next), fragment.cost);
  return true;
}

bool EventLoop::walk_call(int32_t r, const FlatCall& flat, const TimedFragment& fragment) {
  RankState& state = states_[static_cast<size_t>(r)];
  if (!state.walking) begin_walk(r, flat, fragment);
  double at = 0;
  const WalkOptions options{slowdowns_, state.port_ready.empty() ? nullptr : &state.port_ready,
                            &state.messages, &state.taken};
  if (advance(fragment.cost, state.walk, options, at)) {
    meet(r, fragment, at);
    return false;
  }
  end_walk(r, fragment);
  return true;
}

void EventLoop::begin_walk(int32_t r, const FlatCall& flat, const TimedFragment& fragment) {
  RankState& state = states_[static_cast<size_t>(r)];
  see_fullest(r);
  state.walking = true;
  state.call_begin = state.now;
  state.call_waits.clear();
  state.slot = -1;
  state.walk.begin(fragment.cost, state.now);
  state.port_ready.clear();
  for (std::vector<Interval>& messages : state.messages) {
    forget_past(state, messages);
    messages = joined(std::move(messages));
  }
  if (state.state_ready.empty()) return;
  // Collectives may have begun when their gradients were complete.
  std::fill(state.walk.streams.begin() + 1, state.walk.streams.end(), 0.0);
  const FlatRank& rank = in_.flat.ranks[static_cast<size_t>(r)];
  state.port_ready.assign(in_.program.fragments[static_cast<size_t>(flat.fragment)].inputs.size(),
                          0);
  for (size_t u = 0; u < fragment.cost.state_uses.size(); ++u) {
    const int32_t buffer = rank.bindings[static_cast<size_t>(flat.bindings) + u];
    state.port_ready[static_cast<size_t>(fragment.cost.state_uses[u].port)] =
        std::min(state.now, state.state_ready[static_cast<size_t>(buffer)]);
  }
  if (fragment.cost.update) see_taken(state);
}

void EventLoop::see_taken(RankState& state) const {
  state.taken = state.messages;
  double first = state.now;  // gradient that is there; what no call writes has 0
  for (const double ready : state.port_ready) first = ready > 0 ? std::min(first, ready) : first;
  double next = state.now;  // call's begin
  for (size_t c = state.calls.size(); c-- > 0 && next > first;) {
    const auto& [begin, links] = state.calls[c];
    if (state.taken.size() < links->size()) state.taken.resize(links->size());
    for (size_t level = 0; level < links->size(); ++level) {
      for (const Interval& use : (*links)[level])
        state.taken[level].push_back({begin + use.begin, begin + use.end});
    }
    next = begin;
  }
  state.calls.clear();
  for (std::vector<Interval>& level : state.taken) level = joined(std::move(level));
}

void EventLoop::meet(int32_t r, const TimedFragment& fragment, double at) {
  const RankState& state = states_[static_cast<size_t>(r)];
  const OpCost& op = fragment.cost.ops[state.walk.next];
  CrossState& cross = cross_[static_cast<size_t>(op.cross)];
  cross.members.emplace_back(r, at);
  // Of those that come at one time, the first rank is the one that was waited for.
  if (cross.arrived == 0 || at > cross.start || (at == cross.start && r < cross.last_rank)) {
    cross.start = at;
    cross.last_rank = r;
    cross.last_command = state.next;
  }
  ++cross.arrived;
  if (cross.arrived < in_.cross_groups[static_cast<size_t>(op.cross)].ranks.size()) return;
  for (const auto& [member, came] : cross.members) {
    RankState& other = states_[static_cast<size_t>(member)];
    const double begin = std::max(came, other.call_begin);
    if (begin < cross.start) {
      other.call_waits.push_back({other.next, WaitReason::kCollective, Seconds(begin),
                                  Seconds(cross.start), cross.last_rank, cross.last_command,
                                  Seconds(cross.start)});
    }
    finish_cross(in_.fragments[static_cast<size_t>(next_call(member).timed)].cost, other.walk,
                 cross.start, cross.start + op.device);
    wake(member);
  }
  // go() marks this rank as blocked behind this call; run() takes it from the ready ranks.
  cross = CrossState{};
}

void EventLoop::end_walk(int32_t r, const TimedFragment& fragment) {
  RankState& state = states_[static_cast<size_t>(r)];
  RankSums& sums = sums_[static_cast<size_t>(r)];
  double end = std::max(state.call_begin, state.walk.end);
  double before = 0;  // what communication beside the calls before this one cost those
  for (size_t o = 0; o < fragment.cost.ops.size(); ++o) {
    const OpCost& op = fragment.cost.ops[o];
    if (op.label < 0 || op.alias) continue;
    const OpSpan& span = state.walk.spans[o];
    const double beside = std::max(0.0, std::min(span.end, state.call_begin) - span.start);
    // Not while it stands still.
    before += std::min(beside, op.device) * (slowdown_beside(op.beside) - 1);
  }
  end += before;
  const FragmentTime time = divide(fragment.cost, state.walk, state.call_begin, end, in_.labels);
  sums.compute += time.compute;
  sums.gaps += std::max(0.0, time.gaps - log_waits(r, fragment.cost, end));
  for (size_t l = 0; l < in_.labels; ++l) {
    sums.comm[l] += time.comm[l];
    sums.exposed[l] += time.exposed[l];
  }
  state.now = end;
  state.walking = false;
  if (!logs_calls()) return;
  RankLog& log = logs_[static_cast<size_t>(r)];
  log.calls.push_back({state.next, next_call(r).timed, state.call_begin, end,
                       static_cast<int32_t>(log.walks.size())});
  log.walks.push_back(state.walk.spans);
}

double EventLoop::log_waits(int32_t r, const FragmentCost& cost, double end) {
  RankState& state = states_[static_cast<size_t>(r)];
  std::vector<Wait>& waits = state.call_waits;
  if (waits.empty()) return 0;
  std::stable_sort(waits.begin(), waits.end(),
                   [](const Wait& a, const Wait& b) { return a.begin < b.begin; });
  const std::vector<Interval> standing = still(cost, state.walk, state.call_begin, end);
  double sum = 0, covered = state.call_begin;  // several streams may wait at a time
  for (const Wait& wait : waits) {
    for (const Interval& open : standing) {
      Wait part = wait;
      part.begin = Seconds(std::max({wait.begin.value, open.begin, covered}));
      part.end = Seconds(std::min(wait.end.value, open.end));
      if (part.end <= part.begin) continue;
      sum += (part.end - part.begin).value;
      covered = part.end.value;
      logs_[static_cast<size_t>(r)].waits.push_back(part);
    }
  }
  sums_[static_cast<size_t>(r)].waits[static_cast<size_t>(WaitReason::kCollective)] += sum;
  return sum;
}

// The update's last all-gathers of the step before, one after the other from the step's start.
void EventLoop::prepare_gathers(int32_t r) {
  RankState& state = states_[static_cast<size_t>(r)];
  RankSums& sums = sums_[static_cast<size_t>(r)];
  const FlatRank& rank = in_.flat.ranks[static_cast<size_t>(r)];
  state.gather_ready.assign(in_.program.ranks[static_cast<size_t>(r)].buffers.size(), 0);
  for (const FlatCall& flat : rank.calls) {
    const pipeline::Fragment& fragment = in_.program.fragments[static_cast<size_t>(flat.fragment)];
    if (fragment.kind != pipeline::ActionKind::kUpdate) continue;
    const FragmentCost& cost = in_.fragments[static_cast<size_t>(flat.timed)].cost;
    const auto ready = [&](size_t binding) {
      const int32_t buffer = rank.bindings[static_cast<size_t>(flat.bindings) + binding];
      state.gather_ready[static_cast<size_t>(buffer)] = state.gather_end;
    };
    for (const int32_t o : cost.gathers) {
      const OpCost& op = cost.ops[static_cast<size_t>(o)];
      state.gather_end += op.device;
      state.gather_fills |= op.fills;
      sums.comm[static_cast<size_t>(op.label)] += op.device;
      for (size_t u = 0; u < cost.state_uses.size(); ++u) {
        if (cost.state_uses[u].last_write == o) ready(u);
      }
      for (const FragmentCost::Gathered& gathered : cost.gathered) {
        if (gathered.op == o) ready(cost.state_uses.size() + static_cast<size_t>(gathered.output));
      }
    }
  }
}

// They stand still while the call's collectives take most of their links.
void EventLoop::wait_for_gathers(int32_t r, const FlatCall& flat, const FragmentCost& cost,
                                 const std::vector<OpSpan>& spans, double seconds,
                                 const std::vector<std::vector<Interval>>& taken) {
  RankState& state = states_[static_cast<size_t>(r)];
  const FlatRank& rank = in_.flat.ranks[static_cast<size_t>(r)];
  double begin = state.now;
  std::vector<Interval> still;  // from the call's begin on
  for (size_t level = 0; level < taken.size(); ++level) {
    if ((state.gather_fills >> level & 1) != 0)
      still.insert(still.end(), taken[level].begin(), taken[level].end());
  }
  still = joined(std::move(still));
  const auto idle_before = [&](double time) {  // of their links, since the call began
    double idle = time;
    for (const Interval& use : still) idle -= std::max(0.0, std::min(use.end, time) - use.begin);
    return idle;
  };
  for (size_t u = 0; u < cost.state_uses.size(); ++u) {
    const int32_t read = cost.state_uses[u].first_read;
    if (read < 0) continue;
    const int32_t buffer = rank.bindings[static_cast<size_t>(flat.bindings) + u];
    const double ready = state.gather_ready[static_cast<size_t>(buffer)];
    if (ready > begin)
      begin = std::max(begin, ready - idle_before(spans[static_cast<size_t>(read)].start));
  }
  const auto later = [&](double ready) {
    return ready > begin ? begin + takes_beside(still, 0, ready - begin) : ready;
  };
  const double sending = state.gather_end - begin;
  for (double& ready : state.gather_ready) ready = later(ready);
  state.gather_end = later(state.gather_end);
  wait(r, WaitReason::kGather, begin, r, state.next, 0);
  const double beside = std::max(0.0, std::min(seconds, sending));
  const double longer = beside * (slowdown_beside(Beside::kParamGather) - 1);
  state.now += longer;
  sums_[static_cast<size_t>(r)].gaps += longer;
}

void EventLoop::count_call(int32_t r, size_t command, const FragmentCost& cost) {
  RankSums& sums = sums_[static_cast<size_t>(r)];
  sums.flops += cost.flops;
  sums.recomputed_flops += cost.recomputed_flops;
  if (!in_.options.figures) return;
  sums.instructions += static_cast<int64_t>(cost.ops.size());
  if (in_.options.order_hash) {
    for (size_t o = 0; o < cost.kinds.size(); ++o)
      sums.order.add(static_cast<int64_t>(command), static_cast<int64_t>(o), cost.kinds[o]);
  }
  for (size_t l = 0; l < cost.sent.size(); ++l) {
    sums.sent[l] += cost.sent[l];
    sums.collectives[l] += cost.collectives[l];
  }
}

void EventLoop::begin_memory(const pipeline::BufferLives& memory, RankState& state, RankLog& log) {
  state.born.move_to(memory.born, 0);
  state.died.move_to(memory.died, 0);
  state.alive = memory.fixed;
  for (size_t c = 0; c < pipeline::kCategories; ++c) {
    if (state.alive[c] > 0)
      log.memory.push_back({0, static_cast<pipeline::Category>(c), state.alive[c]});
  }
}

void EventLoop::change_memory(RankState& state, const std::vector<pipeline::LiveBytes>& changes,
                              Cursor& at, int64_t sign, RankLog& log) const {
  size_t next = at.next;
  for (; next < changes.size() && changes[next].command == at.command; ++next) {
    const pipeline::LiveBytes& change = changes[next];
    int64_t& here = state.alive[static_cast<size_t>(change.category)];
    here += sign * change.bytes;
    log.memory.push_back({state.now, change.category, here});
  }
  at.move_to(changes, next);
}

}  // namespace mw::simulate
