// Random single edits of compiled programs: the verifier rejects each and names the rank, or a run
// shows that all states are what they were. A sample here; all 500 with MESHWRIGHT_TEST_ALL=1.
#include <doctest/doctest.h>

#include <cstdlib>

#include "pipeline/test_edits.h"
#include "pipeline/verifier.h"
#include "training.h"

namespace mw {
namespace {

using equivalence::Net;
using pipeline::test::Edit;
using pipeline::test::editors;
using pipeline::test::Random;

struct Case {
  Net net;
  std::string plan;
};

std::vector<Case> cases() {
  return {{equivalence::small_gpt(), "dp=2,tp=2,pp=2,microbatches=2,sp,zero=1"},
          {equivalence::small_gpt(), "pp=2,chunks=2,microbatches=2,recompute=full"},
          {equivalence::small_gpt(), "dp=2,pp=2,microbatches=2,zero=3"},
          {equivalence::small_gpt(), "tp=2,pp=2,microbatches=2,recompute=selective"},
          {equivalence::shared_weight_net(4), "dp=2,pp=2,layers=2:3,microbatches=2,zero=1"}};
}

struct Tally {
  int rejected = 0, harmless = 0;
};

void check_edits(const Case& c, size_t number, int rounds, Tally& tally) {
  CAPTURE(c.plan);
  const compile::Plan plan = compile::parse_plan(c.plan);
  const ir::Module model = c.net.build(equivalence::kBatch / plan.units());
  const compile::CompiledPlan compiled = equivalence::compiled(c.net, model, plan);
  pipeline::VerifyOptions options;
  options.module = &compiled.module;
  REQUIRE(pipeline::verify(compiled.train, options).sound());
  const auto wanted = equivalence::states_after(c.net, compiled, compiled.train);
  for (size_t e = 0; e < editors().size(); ++e) {
    for (int round = 0, tries = 0; round < rounds && tries < 50 * rounds; ++tries) {
      const uint64_t seed = (number * 100 + e) * 100000 + static_cast<uint64_t>(tries);
      Random random{.seed = seed};
      pipeline::Program edited = compiled.train;
      const std::optional<Edit> edit = editors()[e].edit(edited, random);
      if (!edit) continue;
      ++round;
      const std::string what = fmt::format("seed {}, {}, {}", seed, editors()[e].name, edit->text);
      const pipeline::Verification verification = pipeline::verify(edited, options);
      if (!verification.sound()) {
        ++tally.rejected;
        const bool named =
            edit->rank < 0 || pipeline::test::names_rank(verification.findings, edit->rank);
        if (!named)
          FAIL_CHECK(what << ": no finding names the rank:\n" << verification.findings.front());
        continue;
      }
      ++tally.harmless;
      try {
        if (equivalence::states_after(c.net, compiled, edited) != wanted)
          FAIL_CHECK(what << ": accepted, but the states differ");
      } catch (const std::exception& error) {
        FAIL_CHECK(what << ": accepted, but " << error.what());
      }
    }
  }
}

TEST_CASE("a random edit of a compiled program is rejected, or changes nothing") {
  const bool all = std::getenv("MESHWRIGHT_TEST_ALL") != nullptr;
  Tally tally;
  const std::vector<Case> list = cases();
  for (size_t i = 0; i < list.size(); ++i) check_edits(list[i], i, all ? 5 : 1, tally);
  MESSAGE(tally.rejected, " edits rejected, ", tally.harmless, " harmless");
  CHECK(tally.rejected + tally.harmless >= (all ? 500 : 100));
  CHECK(tally.rejected > 3 * tally.harmless);
}

}  // namespace
}  // namespace mw
