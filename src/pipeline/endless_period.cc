#include "pipeline/endless_period.h"

#include <algorithm>

#include "base/error.h"

namespace mw::pipeline {
namespace {

// `to` of microbatch i + later ends at least `time` after `from` of microbatch i has.
struct Wait {
  size_t from, to;
  double time;
  int32_t later;
};

size_t forward_of(size_t rank) { return 2 * rank; }
size_t backward_of(size_t rank) { return 2 * rank + 1; }

// A rank's own part: its costs, and how many forwards it is ahead of its backwards.
struct Turn {
  double f, b;
  int32_t ahead;
};

std::vector<Turn> turns_of(const Schedule& schedule, const ScheduleCosts& costs) {
  std::vector<Turn> turns;
  for (const std::vector<Action>& actions : schedule.ranks) {
    const StageId stage = actions.front().stage;
    int32_t ahead = 0;
    while (actions[static_cast<size_t>(ahead)].kind == ActionKind::kF) ++ahead;
    turns.push_back({costs.f_of(stage), costs.b_of(stage) + costs.w_of(stage), ahead});
  }
  return turns;
}

// Down the ranks with F, then up with B, so that what follows from a wait is mostly behind it.
std::vector<Wait> waits_of(const std::vector<Turn>& turns, double comm) {
  std::vector<Wait> waits;
  for (size_t r = 0; r < turns.size(); ++r) {
    // B of microbatch i, F of i + ahead, B of i + 1, …
    waits.push_back({backward_of(r), forward_of(r), turns[r].f, turns[r].ahead});
    if (r > 0) waits.push_back({forward_of(r - 1), forward_of(r), turns[r].f + comm, 0});
  }
  for (size_t r = turns.size(); r-- > 0;) {
    waits.push_back({forward_of(r), backward_of(r), turns[r].b, 1 - turns[r].ahead});
    if (r + 1 < turns.size())
      waits.push_back({backward_of(r + 1), backward_of(r), turns[r].b + comm, 0});
    else
      waits.push_back({forward_of(r), backward_of(r), turns[r].b, 0});
  }
  return waits;
}

// Of circles that are often the slowest: a rank that never waits, and one that waits for what it
// sends to the last rank to come back.
double usual_rate(const std::vector<Turn>& turns, double comm) {
  double rate = 0, trip = 0;
  for (size_t r = turns.size(); r-- > 0;) {
    trip += turns[r].f + turns[r].b + (r + 1 < turns.size() ? 2 * comm : 0);
    rate = std::max({rate, turns[r].f + turns[r].b, trip / turns[r].ahead});
  }
  return rate;
}

// The time a microbatch of some circle of waits that takes longer than `rate`; `rate`: there is
// none.
double slower_circle(const std::vector<Wait>& waits, size_t nodes, double rate) {
  const double least = 1e-12 * rate;  // roundings
  std::vector<double> longest(nodes, 0);
  std::vector<const Wait*> last(nodes, nullptr);
  size_t changed = 0;
  for (size_t round = 0; round <= nodes; ++round) {
    bool any = false;
    for (const Wait& wait : waits) {
      const double there = longest[wait.from] + wait.time - rate * wait.later;
      if (there <= longest[wait.to] + least) continue;
      longest[wait.to] = there;
      last[wait.to] = &wait;
      changed = wait.to;
      any = true;
    }
    if (!any) return rate;
  }
  // Still growing after as many rounds as there are nodes: what is behind `changed` is a circle.
  for (size_t step = 0; step < nodes; ++step) changed = last[changed]->from;
  double time = 0;
  int32_t later = 0;
  size_t node = changed;
  do {
    time += last[node]->time;
    later += last[node]->later;
    node = last[node]->from;
  } while (node != changed);
  MW_CHECK(later > 0, "a microbatch waits for a later one");
  return time / later;
}

}  // namespace

// The largest ratio of time to microbatches of all circles of waits [Baccelli 1992, Synchronization
// and Linearity, section 2.3: the eigenvalue of a max-plus system]; found by going from a circle to
// one that is slower.
double endless_period(const Schedule& schedule, const ScheduleCosts& costs) {
  const std::vector<Turn> turns = turns_of(schedule, costs);
  const std::vector<Wait> waits = waits_of(turns, costs.comm);
  double rate = usual_rate(turns, costs.comm);
  for (double slower = rate;; rate = slower) {
    slower = slower_circle(waits, 2 * schedule.ranks.size(), rate);
    if (slower <= rate) return rate * schedule.microbatches;
  }
}

}  // namespace mw::pipeline
