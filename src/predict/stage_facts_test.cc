// Facts of stages against those of a model whose blocks are known by heart.
#include "predict/stage_facts.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/test_close_to.h"

using namespace mw;
using namespace mw::predict;

namespace {

// Blocks at odd places of the whole model are of the second kind.
int64_t odd_places(int64_t place, int64_t blocks) { return (place + blocks) / 2 - place / 2; }

// A stage of such a model: what grows by the line, and the workspaces of one block at a time or,
// where one begins before the other ends, of two.
struct Model {
  double base = 100, block = 20, second = 0, first = 7, last = 300;
  int64_t at_once = 1;  // blocks in a workspace
  Facts stage(int64_t blocks, int64_t second_blocks, bool is_first, bool is_last) const {
    const double ends = (is_first ? first : 0) + (is_last ? last : 0);
    const auto sum = [&](int64_t n, int64_t of_second) {
      return base + static_cast<double>(n) * block + static_cast<double>(of_second) * second;
    };
    Facts facts{};
    for (size_t f = 0; f < kLeads; ++f)
      facts[f] = static_cast<double>(f + 1) * (sum(blocks, second_blocks) + ends);
    for (const Fact f : {kWorkspace, kSplitWorkspace}) {
      // What stands before or behind the blocks is larger than they are, or is not seen.
      facts[f] = sum(std::min(blocks, at_once), std::min(second_blocks, at_once)) + ends;
    }
    return facts;
  }
};

void check_alike(const Facts& shown, const Facts& known) {
  for (size_t f = 0; f < kLeads; ++f) {
    CAPTURE(f);
    CHECK(shown[f] == mw::test::close_to(known[f]));
  }
}

}  // namespace

TEST_CASE("two stages show a third, whose workspace is no larger than the larger one's") {
  const Model model{.at_once = 4};
  const StageFacts facts =
      StageFacts::of_two(model.stage(2, 0, false, false), 2, model.stage(4, 0, false, false), 2);
  for (const int64_t blocks : {1, 2, 3, 4, 9}) {
    CAPTURE(blocks);
    check_alike(facts.of(blocks, false, false), model.stage(blocks, 0, false, false));
  }
}

TEST_CASE("four stages show any stage and either end") {
  const Model model{.at_once = 2};
  const auto stages = [&](const std::vector<int64_t>& blocks) {
    std::vector<Facts> made;
    for (size_t s = 0; s < 4; ++s) made.push_back(model.stage(blocks[s], 0, s == 0, s == 3));
    return StageFacts::of_four(made, blocks);
  };
  // The ends were read off as many blocks as the second stage has, or as the third.
  for (const std::vector<int64_t>& blocks : {std::vector<int64_t>{2, 2, 3, 2}, {3, 2, 3, 3}}) {
    const StageFacts facts = stages(blocks);
    for (const int64_t n : {2, 3, 8}) {
      for (const bool first : {false, true}) {
        for (const bool last : {false, true})
          check_alike(facts.of(n, first, last), model.stage(n, 0, first, last));
      }
    }
  }
}

TEST_CASE("stages with blocks of either kind by turns show any of both") {
  const Model model{.second = 3};
  for (const std::vector<int64_t>& blocks :
       {std::vector<int64_t>{1, 1, 1, 1}, {2, 2, 4, 3, 2}, {4, 4, 6, 5, 4}}) {
    CAPTURE(blocks.size());
    std::vector<Facts> stages;
    int64_t place = 0;
    for (size_t s = 0; s < blocks.size(); ++s) {
      stages.push_back(
          model.stage(blocks[s], odd_places(place, blocks[s]), s == 0, s + 1 == blocks.size()));
      place += blocks[s];
    }
    const StageFacts facts = StageFacts::of_alternating(stages, blocks);
    // Of one block each: only such stages are known.
    const std::vector<int64_t> known =
        blocks.size() == 4 ? std::vector<int64_t>{1} : std::vector<int64_t>{2, 3, 7};
    for (const int64_t n : known) {
      for (const int64_t from : {0, 1}) {
        CAPTURE(n);
        CAPTURE(from);
        const int64_t second = odd_places(from, n);
        Facts shown = facts.of(n, false, false, second);
        Facts expected = model.stage(n, second, false, false);
        for (const Fact f : {kWorkspace, kSplitWorkspace}) shown[f] = expected[f] = 0;
        check_alike(shown, expected);
      }
    }
    CHECK(facts.most_blocks == (blocks.size() == 4 ? 1 : blocks[2]));
    CHECK(facts.most_second == (blocks.size() == 4 ? 1 : blocks[2] / 2));
  }
}

TEST_CASE("a workspace is that of so many blocks, or of those beside an end and the end") {
  StageFacts facts;
  facts.base[kWorkspace] = 10;
  facts.block[kWorkspace] = 4;
  facts.second[kWorkspace] = 1;
  facts.last[kWorkspace] = 30;
  facts.most_blocks = 3;
  facts.most_second = 1;
  facts.last_blocks = 2;
  struct Case {
    int64_t blocks;
    bool first, last;
    int64_t second;
    double of_first, workspace;  // what stands before the blocks takes
  };
  for (const Case& c : {Case{1, false, false, 0, 7, 14}, Case{2, false, false, 0, 7, 18},
                        Case{3, false, false, 0, 7, 22}, Case{8, false, false, 0, 7, 22},
                        Case{8, false, false, 1, 7, 23}, Case{8, false, false, 5, 7, 23},
                        // Two blocks and the end, or three blocks.
                        Case{8, true, false, 0, 7, 25}, Case{8, true, false, 0, 3, 22},
                        Case{1, true, false, 0, 7, 21}, Case{8, false, true, 2, 7, 49},
                        Case{8, true, true, 0, 7, 55}, Case{1, true, true, 0, 7, 51}}) {
    CAPTURE(c.blocks);
    CAPTURE(c.second);
    facts.first[kWorkspace] = c.of_first;
    CHECK(facts.of(c.blocks, c.first, c.last, c.second)[kWorkspace] == c.workspace);
  }
}

TEST_CASE("more blocks behind the last stage's end have less gaps, as long as the host is ahead") {
  StageFacts facts;
  facts.last_blocks = 1;
  for (size_t i = 0; i < kWaiting.size(); ++i) {
    facts.base[kWaiting[i]] = 100;
    facts.block[kGaps + i] = 3;
    facts.last[kLeads + i] = 5;
  }
  for (const Fact f : kWaiting) {
    CHECK(facts.of(1, false, true)[f] == 100);
    CHECK(facts.of(2, false, true)[f] == 100 - 3);  // one block more
    CHECK(facts.of(4, false, true)[f] == 100 - 5);
    CHECK(facts.of(4, true, false)[f] == 100);
  }
}

TEST_CASE("where the host's lead falls from block to block, those behind its end have gaps") {
  // Of two blocks and of four: a block takes 10, and the host 3 more than that.
  Facts few{}, many{};
  for (size_t i = 0; i < kWaiting.size(); ++i) {
    few[kWaiting[i]] = 120, few[kLeads + i] = 12;
    many[kWaiting[i]] = 140, many[kLeads + i] = 6;
  }
  StageFacts facts = StageFacts::of_two(few, 2, many, 2);
  for (const Fact f : kWaiting) CHECK(facts.of(10, true, true)[f] == 200);
  facts.ahead_blocks = 2;
  for (const Fact f : kWaiting) {
    CHECK(facts.of(1, true, true)[f] == 110);
    CHECK(facts.of(4, true, true)[f] == 140);
    CHECK(facts.of(6, true, true)[f] == 160);  // where the lead ends
    CHECK(facts.of(7, true, true)[f] == 170 + 3);
    CHECK(facts.of(10, true, true)[f] == 200 + 12);
  }
  // The lead has ended within the third block.
  for (size_t i = 0; i < kWaiting.size(); ++i) {
    few[kLeads + i] = 2;
    many[kWaiting[i]] = 144, many[kGaps + i] = 4, many[kLeads + i] = 0;
  }
  facts = StageFacts::of_two(few, 2, many, 2);
  facts.ahead_blocks = 2;
  for (const Fact f : kWaiting) {
    CHECK(facts.of(4, true, true)[f] == 144);
    CHECK(facts.of(10, true, true)[f] == 120 + 8 * 10 + 8 * 3 - 2);
  }
}

TEST_CASE("blocks of a second kind differ in all but what one block works in at a time") {
  StageFacts ours, all;
  for (size_t f = 0; f < kFacts; ++f) {
    ours.base[f] = 50, ours.block[f] = 10;
    all.base[f] = 58, all.block[f] = 13;
  }
  StageFacts any = ours, four = ours;
  any.add_second(all);      // the base is of something else
  four.add_second(all, 4);  // stages of four blocks alone are known: it is theirs, too
  for (size_t f = 0; f < kFacts; ++f) {
    CAPTURE(f);
    const bool at_a_time = f == kWorkspace || f == kSplitWorkspace || f == kUpdateWorkspace;
    CHECK(any.second[f] == (at_a_time ? 0 : 3));
    CHECK(four.second[f] == (at_a_time ? 0 : 5));
    if (!at_a_time && f < kGaps) {
      CHECK(four.of(4, false, false, 4)[f] == all.of(4, false, false)[f]);
    }
  }
}
