// Forwards and backwards by hand, in whole seconds.
#include "simulate/pair_cost.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace mw::simulate {
namespace {

constexpr int32_t kExperts = 0, kTensors = 1, kWeights = 2;  // labels

// A chain, an op a word: "c3" computes for 3 s, "x2" exchanges, "t2" is a collective of tensor
// parallelism; each on what the one before it made. "w5" gathers weights that nothing waits for.
FragmentCost chain_of(const std::vector<std::string>& words) {
  FragmentCost cost;
  cost.streams = 4;
  int32_t last = -1;
  for (const std::string& word : words) {
    OpCost op;
    op.device = std::stod(word.substr(1));
    const auto collective = [&](int32_t label, Beside beside) {
      op.label = label;
      op.stream = label + 1;
      op.levels = op.links = uint32_t{1} << label;
      op.beside = beside;
    };
    if (word[0] == 'x') collective(kExperts, Beside::kOther);
    if (word[0] == 't') collective(kTensors, Beside::kTensor);
    if (word[0] == 'w') collective(kWeights, Beside::kParamGather);
    op.first_dep = static_cast<uint32_t>(cost.deps.size());
    const bool waits = last >= 0 && word[0] != 'w';
    op.deps = waits ? 1 : 0;
    if (waits) cost.deps.push_back(last);
    if (word[0] != 'w') last = static_cast<int32_t>(cost.ops.size());
    cost.ops.push_back(op);
    cost.kinds.push_back(op.label < 0 ? ir::OpKind::kDot : ir::OpKind::kAllToAll);
  }
  return cost;
}

constexpr Slowdowns kNone = {1, 1, 1, 1, 1, 1};

TimedPair timed(const FragmentCost& first, const FragmentCost& second,
                const Slowdowns& slowdowns = kNone) {
  return time_pair(first, second, slowdowns, ~uint32_t{0}, 3);
}
double alone(const FragmentCost& cost) {
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  REQUIRE_FALSE(advance(cost, walk, {}, meet));
  return walk.end;
}

}  // namespace

TEST_CASE("one computes while the other's exchanges are on their way") {
  struct Case {
    std::vector<std::string> first, second;
    double together;
  };
  const Case cases[] = {
      // Everything but the last exchange is beside computation.
      {{"c3", "x2", "c3", "x2"}, {"c3", "x2", "c3", "x2"}, 14},
      // Nothing to compute meanwhile but 1 s.
      {{"c1"}, {"c2", "x5", "c2"}, 9},
      // No longer than all exchanges, one behind the other on one link.
      {{"c1", "x6", "c1"}, {"c1", "x6", "c1"}, 14},
      // The second's exchanges take longer, so it comes first and computes when it can.
      {{"c2", "c2"}, {"c1", "x2", "c1", "x2", "c1"}, 7},
      // Whichever begins: the second's long tail is behind its exchange.
      {{"c4", "x3", "c1"}, {"c1", "x3", "c6"}, 12},
      {{"c1", "x3", "c6"}, {"c4", "x3", "c1"}, 12},
      // Without exchanges one after the other.
      {{"c2", "c1"}, {"c4"}, 7},
      // A collective of tensor parallelism holds up both.
      {{"c2", "t3", "c2"}, {"c2", "t1", "c2"}, 12},
      {{"c2", "t3", "c2"}, {"c1", "x4", "c1"}, 9},
      // A gather of weights neither.
      {{"w9", "c5"}, {"c5"}, 10},
  };
  for (const auto& [first, second, together] : cases) {
    CAPTURE(together);
    const TimedPair pair = timed(chain_of(first), chain_of(second));
    CHECK(pair.time.duration == together);
  }
}

TEST_CASE("computation and an exchange take as much longer as they are beside each other") {
  Slowdowns slowdowns = kNone;
  slowdowns[static_cast<size_t>(Beside::kOther)] = 1.5;
  const FragmentCost first = chain_of({"c4"}), second = chain_of({"c1", "x8", "c1"});
  const TimedPair pair = timed(first, second, slowdowns);
  CHECK(pair.time.duration == 12);
  CHECK(pair.time.compute == 8);            // 1 + 1.5 * 4 + 1
  CHECK(pair.time.exposed[kExperts] == 4);  // 8 less the 4 that are done in 6
  CHECK(pair.time.comm[kExperts] == 10);
  CHECK(pair.spans[0][0].start == 1);
  CHECK(pair.spans[0][0].end == 7);
  CHECK(pair.spans[1][1].start == 1);
  REQUIRE(pair.links.size() >= 1);
  REQUIRE(pair.links[kExperts].size() == 1);
  CHECK(pair.links[kExperts][0].begin == 1);
  CHECK(pair.links[kExperts][0].end == 11);
}

TEST_CASE("the host issues the ops of both, one after the other") {
  FragmentCost first = chain_of({"c1", "x1", "c1"}), second = chain_of({"c1", "c1"});
  for (FragmentCost* cost : {&first, &second}) {
    for (OpCost& op : cost->ops) op.host = 4;
  }
  CHECK(timed(first, second).time.duration == 5 * 4 + 1);
}

TEST_CASE("of ops in order of their streams, what follows a view waits as the view does") {
  // Streams in order: the second computation waits for nothing itself, but is behind a view of what
  // the exchange brings.
  FragmentCost first = chain_of({"c1", "x4", "c0", "c2"});
  first.in_order = true;
  first.ops[2].alias = true;
  first.ops[3].deps = 0;
  const FragmentCost second = chain_of({"c3"});
  const TimedPair pair = timed(first, second);
  CHECK(pair.spans[0][3].start == 5);
  CHECK(pair.time.duration == 7);
  // An op that waits for a view is behind what its stream did before.
  FragmentCost other = chain_of({"c3", "c0", "x1"});
  other.in_order = true;
  other.ops[1].alias = true;
  other.ops[1].deps = 0;
  CHECK(timed(other, second).spans[0][2].start >= 3);
}

TEST_CASE("whatever the two are, no order is broken and no time is lost") {
  std::mt19937 random(7);
  const auto pick = [&](int below) { return static_cast<int>(random() % below); };
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    std::vector<std::string> words[2];
    for (std::vector<std::string>& list : words) {
      const int count = 1 + pick(9);
      for (int i = 0; i < count; ++i) {
        const char kind = "cccxxtw"[pick(7)];
        list.push_back(std::string(1, kind) + std::to_string(1 + pick(5)));
      }
    }
    const FragmentCost first = chain_of(words[0]), second = chain_of(words[1]);
    const TimedPair pair = timed(first, second);
    const double apart = alone(first) + alone(second);
    double compute = 0, exchanges = 0, longest = std::max(alone(first), alone(second));
    for (size_t which = 0; which < 2; ++which) {
      const FragmentCost& cost = which == 0 ? first : second;
      REQUIRE(pair.spans[which].size() == cost.ops.size());
      for (size_t o = 0; o < cost.ops.size(); ++o) {
        const OpCost& op = cost.ops[o];
        const OpSpan& span = pair.spans[which][o];
        CHECK(span.end - span.start == op.device);
        for (uint32_t d = op.first_dep; d < op.first_dep + op.deps; ++d)
          CHECK(span.start >= pair.spans[which][static_cast<size_t>(cost.deps[d])].end);
        if (op.label < 0 || op.label == kTensors) compute += op.device;
        if (op.label == kExperts) exchanges += op.device;
        // Nothing else of either is computed meanwhile.
        for (const OpSpan& beside : pair.spans[1 - which]) {
          const auto b = static_cast<size_t>(&beside - pair.spans[1 - which].data());
          const OpCost& other = (which == 0 ? second : first).ops[b];
          const bool turns = (op.label < 0 || op.label == kTensors) &&
                             (other.label < 0 || other.label == kTensors);
          const bool same = op.label >= 0 && op.label == other.label;
          if (turns || same) CHECK((beside.end <= span.start || span.end <= beside.start));
        }
      }
    }
    CHECK(pair.time.duration <= apart);
    CHECK(pair.time.duration >= std::max({compute, exchanges, longest}));
  }
}

}  // namespace mw::simulate
