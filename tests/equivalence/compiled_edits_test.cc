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

// Moves what a fragment reads of gathered weights, and what the optimizer takes for a parameter.
TEST_CASE("parts of flat weights and gradients are the optimizer's parameters") {
  using namespace pipeline;
  const Net net = equivalence::small_gpt();
  for (const char* text : {"dp=2,pp=2,microbatches=2,zero=3", "dp=2,microbatches=2,zero=2"}) {
    CAPTURE(std::string(text));
    const compile::Plan plan = compile::parse_plan(text);
    const ir::Module model = net.build(equivalence::kBatch / plan.units());
    const compile::CompiledPlan compiled = equivalence::compiled(net, model, plan);
    VerifyOptions options;
    options.module = &compiled.module;
    REQUIRE(verify(compiled.train, options).sound());
    int edits = 0;
    const auto refused = [&](const Program& edited) {
      ++edits;
      const Verification made = verify(edited, options);
      return std::any_of(made.findings.begin(), made.findings.end(), [](const std::string& f) {
        return f.find("knows no parameter in the elements") != std::string::npos;
      });
    };
    for (size_t f = 0; f < compiled.train.fragments.size(); ++f) {
      const Fragment& fragment = compiled.train.fragments[f];
      for (size_t o = 0; o < fragment.graph.ops.size(); ++o) {
        const ir::Op& op = fragment.graph.ops[o];
        const bool updates = op.kind == ir::OpKind::kAdamW;
        if (!updates && (op.kind != ir::OpKind::kView || fragment.kind != ActionKind::kF)) continue;
        Program edited = compiled.train;
        ir::Op& changed = edited.fragments[f].graph.ops[o];
        if (updates) {
          ir::FlatAttrs attrs = op.as<ir::FlatAttrs>();
          for (auto& group : attrs.groups) group.back().end -= 1;
          changed.attrs = attrs;
        } else {
          changed.attrs = ir::ViewAttrs{op.as<ir::ViewAttrs>().offset + 1};
        }
        CHECK(refused(edited));
      }
    }
    CHECK(edits > 0);
  }
}

// Gives every call of a microbatch, for what it gets from another stage, nameless values of the
// same type and microbatch.
TEST_CASE("a value without a name is known by the stage that it came from before") {
  using namespace pipeline;
  const Net net = equivalence::shared_weight_net(4);
  const compile::Plan plan = compile::parse_plan(
      "pp=2,schedule=zb-v,chunks=2,microbatches=4,zero=3,grad_reduce=microbatch,layers=2:0:1:2");
  const ir::Module model = net.build(equivalence::kBatch / plan.units());
  const compile::CompiledPlan compiled = equivalence::compiled(net, model, plan);
  VerifyOptions options;
  options.module = &compiled.module;
  REQUIRE(verify(compiled.train, options).sound());
  int edits = 0;
  for (size_t r = 0; r < compiled.train.ranks.size(); ++r) {
    const RankProgram& rank = compiled.train.ranks[r];
    for (size_t c = 0; c < rank.commands.size(); ++c) {
      const Command& command = rank.commands[c];
      if (command.kind != Command::Kind::kCall || command.action.first != 2) continue;
      const Fragment& fragment = compiled.train.fragments[command.fragment.index()];
      for (size_t p = 0; p < fragment.inputs.size(); ++p) {
        const Buffer& wanted = rank.buffers[command.buffers[p].index()];
        if (fragment.inputs[p].kind != PortKind::kBoundary) continue;
        for (size_t b = 0; b < rank.buffers.size(); ++b) {
          const Buffer& other = rank.buffers[b];
          const bool fits = other.value.str()[0] == '%' && other.microbatch == 2 &&
                            other.name() != wanted.name() && other.type() == wanted.type() &&
                            other.storage.kind == Storage::Kind::kArena;
          if (!fits) continue;
          Program edited = compiled.train;
          edited.ranks[r].commands[c].buffers[p] = BufferId(static_cast<int64_t>(b));
          CAPTURE(wanted.name());
          CAPTURE(other.name());
          CHECK(!verify(edited, options).sound());
          ++edits;
        }
      }
    }
  }
  CHECK(edits > 0);
}

}  // namespace
}  // namespace mw
