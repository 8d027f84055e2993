// What a fragment does to the sums it is given, told of small fragments.
#include "pipeline/accumulation.h"

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "pipeline/test_sums.h"

namespace mw::pipeline {
namespace {

TEST_CASE("what becomes of a state follows from what its update is made of") {
  check_sums({
      {"no update", [](SmallSums& s) { s.zero(s.state(16)); }, ""},
      {"itself", [](SmallSums& s) { s.update(0, s.state(16)); }, "s0 added"},
      {"another state",
       [](SmallSums& s) {
         s.state(16);
         s.update(0, s.state(16));
       },
       "s0 replaced"},
      {"what is no sum", [](SmallSums& s) { s.update(0, s.plain(s.state(16))); }, "s0 replaced"},
      {"zeros", [](SmallSums& s) { s.update(0, s.zero(s.state(16))); }, "s0 cleared"},
      {"a constant 0",
       [](SmallSums& s) {
         s.state(16);
         s.update(0, s.constant(0));
       },
       "s0 cleared"},
      {"another constant",
       [](SmallSums& s) {
         s.state(16);
         s.update(0, s.constant(1));
       },
       "s0 replaced"},
  });
}

TEST_CASE("what is added to a state is added to it, wherever the sum began") {
  check_sums({
      {"a contribution that an op adds",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(sum, s.data(16)));
       },
       "s0 added 0-16; op 0: s0 0-16"},
      {"a contribution that is added as it is made",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add_scaled(sum, s.data(16), 2));
       },
       "s0 added 0-16; op 0: s0 0-16"},
      {"a contribution without the sum before it",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.zero(sum), s.data(16)));
       },
       "s0 replaced"},
      {"a contribution to what is no sum",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.plain(sum), s.data(16)));
       },
       "s0 replaced"},
      {"a sum that is added to what is no sum",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.plain(s.data(16)), sum));
       },
       "s0 replaced"},
      {"zeros that are added to what is no sum, as a contribution",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(sum, s.add(s.plain(s.data(16)), s.zero(sum))));
       },
       "s0 added 0-16; op 3: s0 0-16"},
      {"zeros that are added to it",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(sum, s.zero(sum)));
       },
       "s0 added"},
      {"what is added to zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.zero(sum), sum));
       },
       "s0 added"},
      {"zeros and zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.zero(sum), s.zero(sum)));
       },
       "s0 cleared"},
      {"another sum and its contributions",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), other = s.state(16);
         s.update(0, s.add(sum, s.add(other, s.data(16))));
         s.update(1, s.zero(other));
       },
       "s0 added 0-16; s1 cleared; op 0: s0 0-16"},
  });
}

TEST_CASE("a sum is not added to itself, and stays one when it is copied or summed over replicas") {
  check_sums({
      {"itself once more",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(sum, sum));
       },
       "s0 added; op 0 (accumulate -> %1) adds s0 to itself"},
      {"copies and reshapes",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.op(OpKind::kCopy, {}, {s.op(OpKind::kReshape, {}, {sum}, 16)}, 16));
       },
       "s0 added"},
      {"a sum over replicas",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.over(OpKind::kAllReduce, "dp", sum, 16));
       },
       "s0 added"},
  });
}

TEST_CASE("one contribution is added once to every element") {
  const auto twice = [](auto first, auto second) {
    return [=](SmallSums& s) {
      const ValueId sum = s.state(16), x = s.data(16), y = s.data(16);
      s.update(0, second(s, first(s, sum, x, y), x, y));
    };
  };
  const auto accumulate_x = [](SmallSums& s, ValueId sum, ValueId x, ValueId) {
    return s.add(sum, x);
  };
  const auto accumulate_y = [](SmallSums& s, ValueId sum, ValueId, ValueId y) {
    return s.add(sum, y);
  };
  const auto relu_x = [](SmallSums& s, ValueId sum, ValueId x, ValueId) {
    return s.add_relu(sum, x);
  };
  const auto twice_x = [](SmallSums& s, ValueId sum, ValueId x, ValueId) {
    return s.add_scaled(sum, x, 2);
  };
  const auto thrice_x = [](SmallSums& s, ValueId sum, ValueId x, ValueId) {
    return s.add_scaled(sum, x, 3);
  };
  const char* const kOnce = "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16";
  check_sums({
      {"of two values", twice(accumulate_x, accumulate_y), kOnce},
      {"of two kinds", twice(accumulate_x, relu_x), kOnce},
      {"with two factors", twice(twice_x, thrice_x), kOnce},
      {"the same value", twice(accumulate_x, accumulate_x),
       "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16; op 1 (accumulate -> %4) adds the same "
       "contribution as op 0 once more"},
      {"the same product", twice(twice_x, twice_x),
       "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16; op 1 (scale -> %4) adds the same "
       "contribution as op 0 once more"},
      {"behind another",
       [&](SmallSums& s) {
         const ValueId sum = s.state(16), x = s.data(16), y = s.data(16);
         s.update(0, s.add(s.add(s.add(sum, x), y), x));
       },
       "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16; op 2: s0 0-16; op 2 (accumulate -> %5) adds "
       "the same contribution as op 0 once more"},
      {"in two sums that are added",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), other = s.state(16), x = s.data(16);
         const ValueId added = s.add(sum, x);
         s.update(0, s.add(added, s.add(other, x)));
       },
       "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16; op 1 (accumulate -> %4) adds the same "
       "contribution as op 0 once more"},
  });
}

TEST_CASE("one contribution may be added to several parts of a sum") {
  check_sums({
      {"in two parts",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), x = s.data(8);
         s.update(0, s.assemble(sum, {0, 8},
                                {s.add(s.view(sum, 0, 8), x), s.add(s.view(sum, 8, 8), x)}));
       },
       "s0 added 0-16; op 0: s0 0-8; op 2: s0 8-16; op 1: s0 0-8; op 3: s0 8-16"},
      {"in parts of three sums, which touch",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), other = s.state(16), third = s.state(16);
         const ValueId x = s.data(4);
         const ValueId middle = s.with(sum, 4, x), low = s.with(other, 0, x);
         s.update(0, s.add(s.add(middle, low), s.with(third, 8, x)));
       },
       "s0 added 0-12; op 0: s0 4-8; op 3: s1 0-4; op 6: s2 8-12; op 1: s0 4-8; op 4: s0 0-4; "
       "op 7: s0 8-12"},
      {"to a part of what has it",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), x = s.data(8);
         const ValueId once = s.add(s.view(sum, 4, 8), x);
         s.update(0, s.assemble(sum, {4}, {s.add(once, x)}));
       },
       "s0 added 4-12; op 0: s0 4-12; op 1: s0 4-12; op 2: s0 4-12; op 2 (accumulate -> %4) adds "
       "the same contribution as op 1 once more"},
  });
}

TEST_CASE("a flat sum is put together from its parts") {
  check_sums({
      {"of two parts, the second first",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), x = s.data(4), y = s.data(4);
         const ValueId low = s.add(s.view(sum, 0, 4), x), high = s.add(s.view(sum, 8, 4), y);
         s.update(0, s.assemble(sum, {8, 0}, {high, low}));
       },
       "s0 added 0-4 8-12; op 0: s0 0-4; op 2: s0 8-12; op 1: s0 0-4; op 3: s0 8-12"},
      {"of a view of a view",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.assemble(sum, {6}, {s.add(s.view(s.view(sum, 4, 8), 2, 4), s.data(4))}));
       },
       "s0 added 6-10; op 0: s0 4-12; op 1: s0 6-10; op 2: s0 6-10"},
      {"of a part that is put together itself",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), part = s.view(sum, 4, 8);
         s.update(0, s.assemble(sum, {4}, {s.with(part, 2, s.data(4))}));
       },
       "s0 added 6-10; op 0: s0 4-12; op 1: s0 6-10; op 2: s0 6-10"},
      {"where it has contributions around the part, and in it",
       [](SmallSums& s) {
         const ValueId sum = s.add(s.state(16), s.data(16));
         s.update(0, s.assemble(sum, {4}, {s.add(s.view(sum, 4, 8), s.data(8))}));
       },
       "s0 added 0-16; op 1: s0 4-12; op 0: s0 0-4; op 0: s0 4-12; op 2: s0 4-12; op 0: s0 12-16"},
  });
}

TEST_CASE("a flat sum of which a part is replaced is no sum") {
  check_sums({
      {"of a part of other elements",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.assemble(sum, {8}, {s.view(sum, 0, 4)}));
       },
       "s0 replaced; op 0: s0 0-4"},
      {"of a part that is no sum",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.assemble(sum, {0}, {s.plain(s.view(sum, 0, 4))}));
       },
       "s0 replaced; op 0: s0 0-4"},
      {"of a part that holds what is no sum in a part",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), part = s.view(sum, 4, 8);
         const ValueId other = s.plain(s.data(4));
         s.update(0, s.assemble(sum, {4}, {s.assemble(part, {2}, {other})}));
       },
       "s0 replaced; op 0: s0 4-12"},
      {"of zeros, on zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         const ValueId zeros = s.zero(sum);
         s.update(0, s.assemble(zeros, {0}, {s.zero(s.view(sum, 0, 4))}));
       },
       "s0 cleared; op 1: s0 0-4"},
      {"of zeros, on what was added to zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), grown = s.add(s.zero(sum), s.data(16));
         s.update(0, s.assemble(grown, {0}, {s.zero(s.view(sum, 0, 4))}));
       },
       "s0 replaced; op 2: s0 0-4"},
      {"of the sum, on zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         const ValueId zeros = s.zero(sum);
         s.update(0, s.assemble(zeros, {0}, {s.view(sum, 0, 4)}));
       },
       "s0 replaced; op 1: s0 0-4"},
  });
}

TEST_CASE("what is added touches, overlaps or lies apart") {
  const auto added = [](const std::vector<std::pair<int64_t, int64_t>>& ranges) {
    SmallSums s;
    ValueId sum = s.state(16);
    for (const auto& [begin, end] : ranges)
      sum = s.add(sum, s.with(s.state(16), begin, s.data(end - begin)));
    s.update(0, sum);
    const std::string text = told(s);
    return text.substr(0, text.find(';'));
  };
  CHECK(added({{0, 4}, {8, 12}}) == "s0 added 0-4 8-12");
  CHECK(added({{8, 12}, {0, 4}}) == "s0 added 0-4 8-12");
  CHECK(added({{0, 4}, {4, 12}}) == "s0 added 0-12");
  CHECK(added({{0, 8}, {4, 12}}) == "s0 added 0-12");
  CHECK(added({{0, 16}, {4, 8}, {14, 16}}) == "s0 added 0-16");
  CHECK(added({{0, 4}, {5, 6}}) == "s0 added 0-4 5-6");
}

TEST_CASE("what all shards of a split flat sum have is counted together") {
  check_sums({
      {"an addition to this device's part",
       [](SmallSums& s) {
         const ValueId sum = s.state(16, R"([{"dp"}])"), x = s.data(16, R"([{"dp"}])");
         s.update(0, s.op(OpKind::kAccumulate, {}, {sum, x}, 16, R"([{"dp"}])"));
       },
       "s0 added 0-16; op 0: s0 0-16"},
      {"a part behind which the whole is scattered and gathered",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         const ValueId part = s.assemble(sum, {12}, {s.add(s.view(sum, 12, 4), s.data(4))});
         const ValueId own = s.over(OpKind::kReduceScatter, "dp", part, 16, R"([{"dp"}])");
         s.update(0, s.over(OpKind::kAllGather, "dp", own, 16));
       },
       "s0 added 12-16; op 0: s0 12-16; op 1: s0 12-16"},
      {"contributions behind the last part of a split sum",
       [](SmallSums& s) {
         const std::string own = R"([{"dp"}])";
         const ValueId sum = s.state(16, own), x = s.data(16, own);
         const ValueId added = s.op(OpKind::kAccumulate, {}, {sum, x}, 16, own);
         ir::AssembleAttrs attrs{{0}};
         s.update(0, s.op(OpKind::kAssemble, attrs, {added, s.view(added, 0, 2)}, 16, own));
       },
       "s0 added 0-16; op 1: s0 0-2; op 0: s0 0-2; op 0: s0 2-16"},
  });
}

TEST_CASE("a sum over holders tells what this rank adds to it") {
  check_sums({
      {"a state", [](SmallSums& s) { s.holders_sum(s.state(16)); },
       "op 0 sums w of [0] and sums []"},
      {"two states",
       [](SmallSums& s) {
         const ValueId a = s.state(16), b = s.state(16);
         s.holders_sum(s.add(a, b));
       },
       "op 1 sums w of [0,1] and sums []"},
      {"what is no sum", [](SmallSums& s) { s.holders_sum(s.plain(s.state(16))); },
       "op 1 sums w of [] and sums [] and other"},
      {"zeros", [](SmallSums& s) { s.holders_sum(s.zero(s.state(16))); },
       "op 1 sums w of [] and sums []"},
      {"zeros with a part that is no sum",
       [](SmallSums& s) {
         const ValueId zeros = s.zero(s.state(16));
         s.holders_sum(s.assemble(zeros, {0}, {s.data(4)}));
       },
       "op 2 sums w of [] and sums [] and other"},
      {"a sum over holders and a state",
       [](SmallSums& s) {
         const ValueId a = s.state(16), b = s.state(16);
         s.holders_sum(s.add(b, s.holders_sum(a)));
       },
       "op 0 sums w of [0] and sums []; op 2 sums w of [1] and sums [0]"},
      {"that becomes the state", [](SmallSums& s) { s.update(0, s.holders_sum(s.state(16))); },
       "s0 replaced; op 0 sums w of [0] and sums []"},
  });
}

}  // namespace
}  // namespace mw::pipeline
