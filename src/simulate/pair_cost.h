// A forward and a backward that a schedule lays together (Action::paired_with), as one list of ops:
// while the experts' exchanges of one are on their way, the other computes [DeepSeek-AI 2024,
// arXiv:2412.19437, section 3.2.1]. Private to room simulate.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "simulate/fragment_cost.h"
#include "simulate/fragment_walk.h"

namespace mw::simulate {

bool has_exchanges(const FragmentCost& cost);

struct PairCost {
  FragmentCost cost;                             // of both, their ops in order of their starts
  std::array<std::vector<int32_t>, 2> place_of;  // [which][op] where it is among cost.ops
};

// What both do takes turns on the device, the one that `begins` (0 or 1) first: each goes on until
// what it needs is on its way, and where both could, the one whose exchanges still take longer
// does. Exchanges (Beside::kOther) and the gathers and reductions of weights go on beside the
// other's computation, all other collectives hold that up as they hold up their own. Of `cost` only
// what the clock reads is set. REQUIRES: neither meets other pipeline ranks.
PairCost pair_cost(const FragmentCost& first, const FragmentCost& second, size_t begins);

// Its ops walked once from time 0, with whichever begins if both are done sooner. `links`: as
// link_use() has them, of these levels; `taken` as TimedFragment::taken.
struct TimedPair {
  FragmentTime time;
  std::array<std::vector<OpSpan>, 2> spans;  // [which][op]
  std::vector<std::vector<Interval>> links, taken;
};
TimedPair time_pair(const FragmentCost& first, const FragmentCost& second,
                    const Slowdowns& slowdowns, uint32_t levels, size_t labels);

}  // namespace mw::simulate
