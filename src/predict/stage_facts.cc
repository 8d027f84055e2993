#include "predict/stage_facts.h"

#include <algorithm>

namespace mw::predict {

namespace {

constexpr std::array<Fact, 2> kOneAtATime = {kWorkspace, kSplitWorkspace};

}  // namespace

Facts StageFacts::of(int64_t blocks, bool is_first, bool is_last, int64_t second_blocks) const {
  // The planner asks millions of times: loops without conditions.
  Facts facts;
  const auto n = static_cast<double>(blocks);
  const auto more = static_cast<double>(second_blocks);
  for (size_t f = 0; f < kFacts; ++f) facts[f] = base[f] + n * block[f] + more * second[f];
  if (is_first) {
    for (size_t f = 0; f < kFacts; ++f) facts[f] += first[f];
  }
  if (is_last) {
    for (size_t f = 0; f < kFacts; ++f) facts[f] += last[f];
  }
  const auto counted = static_cast<double>(std::min(blocks, most_blocks)),
             beside_ends = static_cast<double>(std::min({blocks, last_blocks, most_blocks}));
  for (const Fact f : kOneAtATime) {
    const double kinds = static_cast<double>(std::min(second_blocks, most_second)) * second[f],
                 ends = (is_first ? first[f] : 0) + (is_last ? last[f] : 0);
    const double inside = base[f] + counted * block[f] + kinds;
    facts[f] = is_first || is_last
                   ? std::max(inside, base[f] + beside_ends * block[f] + kinds + ends)
                   : inside;
  }
  for (double& fact : facts) fact = std::max(0.0, fact);
  if (ahead_blocks > 0 && blocks > ahead_blocks) add_gaps_behind(blocks, facts);
  if (!is_last || blocks <= last_blocks) return facts;
  for (size_t i = 0; i < kWaiting.size(); ++i) {
    const double gaps = static_cast<double>(blocks - last_blocks) * block[kGaps + i];
    const double lead = last[kLeads + i];
    facts[kWaiting[i]] -= std::clamp(lead, 0.0, std::max(0.0, gaps));
  }
  return facts;
}

// What the host is ahead of the device behind the first blocks lasts for some more of them, in
// which there are fewer gaps than later.
void StageFacts::add_gaps_behind(int64_t blocks, Facts& facts) const {
  const auto more = static_cast<double>(blocks - ahead_blocks);
  for (size_t i = 0; i < kWaiting.size(); ++i) {
    const double grows = block[kLeads + i], gaps = block[kGaps + i];
    const double lead = base[kLeads + i] + static_cast<double>(ahead_blocks) * grows;
    if (grows < 0) facts[kWaiting[i]] += std::max(0.0, more * (gaps - grows) - lead) - more * gaps;
  }
}

StageFacts StageFacts::of_two(const Facts& few, int64_t blocks, const Facts& many, int64_t more) {
  StageFacts facts;
  for (size_t f = 0; f < kFacts; ++f) {
    facts.block[f] = (many[f] - few[f]) / static_cast<double>(more);
    facts.base[f] = few[f] - static_cast<double>(blocks) * facts.block[f];
  }
  facts.most_blocks = blocks + more;
  return facts;
}

StageFacts StageFacts::of_four(const std::vector<Facts>& stages,
                               const std::vector<int64_t>& blocks) {
  StageFacts facts = of_two(stages[1], blocks[1], stages[2], 1);
  const size_t like = blocks[0] == blocks[1] ? 1 : 2;
  for (size_t f = 0; f < kFacts; ++f) {
    facts.first[f] = stages[0][f] - stages[like][f];
    facts.last[f] = stages[3][f] - stages[like][f];
  }
  facts.last_blocks = blocks[3];
  return facts;
}

StageFacts StageFacts::of_alternating(const std::vector<Facts>& stages,
                                      const std::vector<int64_t>& blocks) {
  StageFacts facts;
  facts.last_blocks = blocks.back();
  const bool single = stages.size() == 4;
  facts.most_blocks = single ? 1 : blocks[2];
  facts.most_second = single ? 1 : blocks[2] / 2;
  // Stages that have as many blocks of either kind as the first and the last.
  const Facts& like_first = stages[single ? 2 : 1];
  const Facts& like_last = stages[1];
  for (size_t f = 0; f < kFacts; ++f) {
    facts.first[f] = stages.front()[f] - like_first[f];
    facts.last[f] = stages.back()[f] - like_last[f];
    if (single) {
      facts.base[f] = stages[2][f];
      facts.second[f] = stages[1][f] - stages[2][f];
      continue;
    }
    const double both = stages[2][f] - stages[1][f];
    facts.block[f] = stages[3][f] - stages[1][f];
    facts.second[f] = both - 2 * facts.block[f];
    facts.base[f] = stages[1][f] - static_cast<double>(blocks[1] / 2) * both;
  }
  return facts;
}

void StageFacts::add_second(const StageFacts& all, int64_t blocks) {
  const auto n = static_cast<double>(blocks);
  for (size_t f = 0; f < kFacts; ++f) {
    second[f] = all.block[f] - block[f];
    if (blocks > 0) second[f] += (all.base[f] - base[f]) / n;
  }
  for (const Fact one : {kWorkspace, kSplitWorkspace, kUpdateWorkspace}) second[one] = 0;
}

}  // namespace mw::predict
