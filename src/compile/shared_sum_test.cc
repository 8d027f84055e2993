#include "compile/shared_sum.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include <fmt/core.h>

namespace mw::compile {
namespace {

// "0:u0+u1 1:u2 | 1:+u3": rounds, parts; a + before the uses carries the sum so far.
std::string text(const std::vector<int32_t>& rank_of_use) {
  std::string text;
  for (const SumRound& round : sum_rounds(rank_of_use)) {
    if (!text.empty()) text += " | ";
    for (const SumRound::Part& part : round.parts) {
      if (&part != &round.parts.front()) text += ' ';
      text += fmt::format("{}:{}", part.rank, part.carries ? "+" : "");
      for (const size_t use : part.uses)
        text += fmt::format("{}u{}", use == part.uses.front() ? "" : "+", use);
    }
  }
  return text;
}

TEST_CASE("uses on several ranks are summed in as few rounds as keep the model's order") {
  CHECK(text({0}) == "0:u0");
  CHECK(text({0, 1}) == "0:u0 1:u1");
  CHECK(text({1, 0}) == "1:u0 0:u1");
  CHECK(text({0, 1, 2, 3}) == "0:u0 1:u1 2:u2 3:u3");
  CHECK(text({0, 0, 1}) == "0:u0+u1 1:u2");
  CHECK(text({0, 0, 1, 1}) == "0:u0+u1 | 1:+u2+u3");
  CHECK(text({0, 1, 0, 1}) == "0:u0 1:u1 | 0:+u2 1:u3");
  CHECK(text({1, 0, 2}) == "1:u0 0:u1 2:u2");
  CHECK(text({0, 2, 1}) == "0:u0 2:u1 | 1:+u2");
}

TEST_CASE("rounds of any placement give the bits of the sum in model order") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto ranks = static_cast<int32_t>(1 + random() % 5);
    std::vector<int32_t> rank_of_use(1 + random() % 9);
    std::vector<float> uses;
    for (int32_t& rank : rank_of_use) {
      rank = static_cast<int32_t>(random() % static_cast<uint32_t>(ranks));
      uses.push_back(static_cast<float>(random()) / 7.0F - 3e8F);
    }
    float want = uses[0];
    for (size_t u = 1; u < uses.size(); ++u) want += uses[u];
    float sum = 0;
    for (const SumRound& r : sum_rounds(rank_of_use)) {
      std::vector<float> of_rank(static_cast<size_t>(ranks), 0);
      for (const SumRound::Part& part : r.parts) {
        float mine = part.carries ? sum : uses[part.uses.front()];
        for (size_t i = part.carries ? 0 : 1; i < part.uses.size(); ++i) mine += uses[part.uses[i]];
        of_rank[static_cast<size_t>(part.rank)] = mine;
      }
      sum = of_rank[0];
      for (size_t i = 1; i < of_rank.size(); ++i) sum += of_rank[i];
    }
    CAPTURE(text(rank_of_use));
    CHECK(sum == want);
  }
}

}  // namespace
}  // namespace mw::compile
