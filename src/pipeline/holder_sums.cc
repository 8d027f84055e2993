#include "pipeline/holder_sums.h"

namespace mw::pipeline {

HolderSums::HolderSums(const Checked& checked)
    : checked_(checked), made_(checked.program.ranks.size()) {
  for (size_t r = 0; r < made_.size(); ++r) {
    const RankProgram& rank = checked.program.ranks[r];
    for (size_t c = 0; c < rank.commands.size(); ++c) {
      if (rank.commands[c].kind != Command::Kind::kCall) continue;
      const auto& sums = checked.accumulation[rank.commands[c].fragment.index()].holder_sums;
      for (size_t s = 0; s < sums.size(); ++s) made_[r][sums[s].state].push_back({c, s});
    }
  }
}

HolderSums::Contributions HolderSums::resolve(int32_t rank, size_t command,
                                              const std::vector<size_t>& sums) const {
  Contributions all;
  const FragmentId fragment = checked_.rank(rank).commands[command].fragment;
  for (const size_t sum : sums) {
    const std::string& state = checked_.accumulation[fragment.index()].holder_sums[sum].state;
    const std::vector<Made>& made = made_[static_cast<size_t>(rank)].at(state);
    size_t k = 0;
    while (made[k].command != command || made[k].sum != sum) ++k;
    resolve(state, k, 1, all);
  }
  return all;
}

// Ends: what goes into the k-th sum of a state was made by sums before it on the same rank.
void HolderSums::resolve(const std::string& state, size_t k, int times, Contributions& all) const {
  for (size_t r = 0; r < made_.size(); ++r) {
    const auto it = made_[r].find(state);
    if (it == made_[r].end() || it->second.size() <= k) continue;
    const Made& here = it->second[k];
    const Command& command = checked_.program.ranks[r].commands[here.command];
    const AccumulationInfo& info = checked_.accumulation[command.fragment.index()];
    const HolderSum& sum = info.holder_sums[here.sum];
    for (const size_t p : sum.ports) all[{static_cast<int32_t>(r), command.buffers[p]}] += times;
    for (const size_t earlier : sum.sums) {
      // Made in the same call.
      size_t j = k;
      while (j > 0) {
        --j;
        if (it->second[j].command == here.command && it->second[j].sum == earlier) break;
      }
      const bool found = it->second[j].command == here.command && it->second[j].sum == earlier;
      if (found && j < k) resolve(state, j, times, all);
    }
  }
}

}  // namespace mw::pipeline
