#include "compile/shared_sum.h"

#include <algorithm>

namespace mw::compile {

std::vector<SumRound> sum_rounds(const std::vector<int32_t>& rank_of_use) {
  const size_t uses = rank_of_use.size();
  const auto run_end = [&](size_t u) {
    size_t end = u + 1;
    while (end < uses && rank_of_use[end] == rank_of_use[u]) ++end;
    return end;
  };
  std::vector<SumRound> rounds;
  for (size_t u = 0; u < uses;) {
    SumRound round;
    int32_t highest = -1;
    while (u < uses) {
      const int32_t rank = rank_of_use[u];
      const size_t end = run_end(u);
      // Sums of two commute; from the third on, the all-reduce's order must be the model's. No rank
      // comes twice: the second's is not the first's, whose run has ended, and later ones ascend.
      const bool joins = end == u + 1 && (round.parts.size() == 1 || rank > highest);
      if (!round.parts.empty() && !joins) break;
      SumRound::Part part{rank, round.parts.empty() && !rounds.empty(), {}};
      for (; u < end; ++u) part.uses.push_back(u);
      highest = std::max(highest, rank);
      round.parts.push_back(std::move(part));
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

}  // namespace mw::compile
