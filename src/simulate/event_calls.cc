// Calls that meet no other rank, by themselves and in pairs: how long they take is known.
#include <algorithm>

#include "simulate/event_loop.h"

namespace mw::simulate {

void EventLoop::call_timed(int32_t r, const FlatCall& flat, const TimedFragment& fragment) {
  RankState& state = states_[static_cast<size_t>(r)];
  if (state.now < state.gather_end) {
    wait_for_gathers(r, flat, fragment.cost, fragment.spans, fragment.time.duration,
                     fragment.taken);
  }
  see_fullest(r);
  const double begin = state.now;
  take(r, fragment.time, fragment.links, fragment.taken);
  if (logs_calls()) {
    logs_[static_cast<size_t>(r)].calls.push_back({state.next, flat.timed, begin, state.now, -1});
  }
  see_writes(r, flat, fragment, fragment.spans, begin);
}

void EventLoop::take(int32_t r, const FragmentTime& time,
                     const std::vector<std::vector<Interval>>& links,
                     const std::vector<std::vector<Interval>>& taken) {
  RankState& state = states_[static_cast<size_t>(r)];
  RankSums& sums = sums_[static_cast<size_t>(r)];
  const double begin = state.now;
  if (!state.state_ready.empty() && !taken.empty()) state.calls.emplace_back(begin, &taken);
  state.now += time.duration;
  if (state.sending_end > begin) {
    const double beside = std::min(state.now, state.sending_end) - begin;
    const double longer = beside * (slowdown_beside(Beside::kMessages) - 1);
    state.now += longer;
    sums.gaps += longer;
  }
  sums.compute += time.compute;
  sums.gaps += time.gaps;
  for (size_t l = 0; l < time.comm.size(); ++l) {
    sums.comm[l] += time.comm[l];
    sums.exposed[l] += time.exposed[l];
  }
  for (size_t level = 0; level < links.size(); ++level) {
    for (const Interval& use : links[level])
      links_.occupy(r, level, begin + use.begin, begin + use.end);
  }
}

void EventLoop::see_writes(int32_t r, const FlatCall& flat, const TimedFragment& fragment,
                           const std::vector<OpSpan>& spans, double begin) {
  RankState& state = states_[static_cast<size_t>(r)];
  if (state.state_ready.empty()) return;
  const FlatRank& rank = in_.flat.ranks[static_cast<size_t>(r)];
  const bool early = in_.last_early == nullptr || is_early(r, state.next);
  for (size_t u = 0; u < fragment.cost.state_uses.size(); ++u) {
    const int32_t write = fragment.cost.state_uses[u].last_write;
    if (write < 0) continue;
    const int32_t buffer = rank.bindings[static_cast<size_t>(flat.bindings) + u];
    state.state_ready[static_cast<size_t>(buffer)] =
        early ? begin + spans[static_cast<size_t>(write)].end : kNever;
  }
}

// Both begin when what both read is there, and what they make is there when both have ended, as
// pipeline::timeline has it.
bool EventLoop::call_first(int32_t r, const FlatCall& flat, const TimedFragment& fragment) {
  RankState& state = states_[static_cast<size_t>(r)];
  int32_t last = -1;  // slot, of the messages for the second, the one that comes last
  for (int32_t c = state.next + 1; c < flat.paired; ++c) {
    const FlatCommand& command = state.commands[static_cast<size_t>(c)];
    if (command.kind != pipeline::Command::Kind::kReceive) continue;
    const SlotState& slot = slots_[static_cast<size_t>(command.index)];
    state.slot = command.index;
    if (!slot.filled) return false;
    if (last < 0 || slot.arrival > slots_[static_cast<size_t>(last)].arrival) last = command.index;
  }
  if (last >= 0) {
    const SlotState& slot = slots_[static_cast<size_t>(last)];
    wait(r, WaitReason::kReceive, slot.arrival, channel_of(slot).from, slot.command, slot.begin);
  }
  const TimedPair& pair = in_.pairs[static_cast<size_t>(flat.pair)];
  if (state.now < state.gather_end)
    wait_for_gathers(r, flat, fragment.cost, pair.spans[0], pair.time.duration, pair.taken);
  see_fullest(r);
  state.pair = flat.pair;
  state.pair_begin = state.now;
  take(r, pair.time, pair.links, pair.taken);
  if (logs_calls()) {
    const double alone = fragment.time.duration;
    const double both = alone + in_.fragments[static_cast<size_t>((&flat)[1].timed)].time.duration;
    const double split = state.pair_begin + (state.now - state.pair_begin) * alone / both;
    logs_[static_cast<size_t>(r)].calls.push_back(
        {state.next, flat.timed, state.pair_begin, split, -1, flat.pair, 0, state.pair_begin});
  }
  see_writes(r, flat, fragment, pair.spans[0], state.pair_begin);
  return true;
}

// Its time is the first's.
void EventLoop::call_second(int32_t r, const FlatCall& flat, const TimedFragment& fragment) {
  RankState& state = states_[static_cast<size_t>(r)];
  see_fullest(r);
  const TimedPair& pair = in_.pairs[static_cast<size_t>(state.pair)];
  if (logs_calls()) {
    std::vector<CallRecord>& calls = logs_[static_cast<size_t>(r)].calls;
    const double end = state.pair_begin + pair.time.duration;
    calls.push_back({state.next, flat.timed, calls.back().end, std::max(calls.back().end, end), -1,
                     state.pair, 1, state.pair_begin});
  }
  see_writes(r, flat, fragment, pair.spans[1], state.pair_begin);
  state.pair = -1;
}

}  // namespace mw::simulate
