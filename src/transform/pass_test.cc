#include "transform/pass.h"

#include <functional>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "transform/test_models.h"

namespace mw::transform {
namespace {

using test::microbatch;

TEST_CASE("passes are listed by name") {
  std::vector<std::string> names;
  for (const Pass& pass : passes()) names.emplace_back(pass.name);
  CHECK(names ==
        std::vector<std::string>{"autodiff", "cse", "recompute", "dead_code", "fold_accumulate"});
  for (const std::string& name : default_passes()) CHECK(find_pass(name).name == name);
}

TEST_CASE("unknown passes are an error with the near miss, all together") {
  ir::Module module = test::mlp(1);
  RunOptions run;
  run.disabled = {"recomputee"};
  try {
    run_passes(module, {"autodif", "cse"}, {}, run);
    CHECK(false);
  } catch (const Error& error) {
    const std::string list = "; there are autodiff, cse, recompute, dead_code, fold_accumulate";
    CHECK(error.findings() ==
          std::vector<std::string>{"unknown pass 'autodif', did you mean 'autodiff'?" + list,
                                   "unknown pass 'recomputee', did you mean 'recompute'?" + list});
  }
}

TEST_CASE("passes run in order, timed and dumped, but for those switched off") {
  ir::Module module = test::gpt(0);
  FakeClock clock;
  PassOptions options;
  options.recompute = recompute_all(module, Recompute::kFull);
  RunOptions run;
  run.disabled = {"cse"};
  run.clock = &clock;
  std::vector<std::string> dumped;
  run.dump = [&](const std::string& name, const ir::Module&) {
    dumped.push_back(name);
    clock.advance(Seconds(100));  // outside of the time of passes
  };
  const std::vector<PassRun> runs = run_passes(module, default_passes(), options, run);
  CHECK(dumped == std::vector<std::string>{"autodiff", "recompute", "dead_code"});
  REQUIRE(runs.size() == 3);
  CHECK(runs[0].ops_before < runs[0].ops_after);
  CHECK(runs[1].ops_before == runs[0].ops_after);
  CHECK(runs[1].ops_after > runs[1].ops_before);
  CHECK(runs[2].time.value == 0);
}

// Every look at it takes a second.
class SlowClock : public Clock {
 public:
  Seconds now() const override { return Seconds(seconds_ += 1); }

 private:
  mutable double seconds_ = 0;
};

TEST_CASE("a pass takes the time from its start to its end") {
  ir::Module module = test::mlp(1);
  const SlowClock clock;
  RunOptions run;
  run.clock = &clock;
  for (const PassRun& pass : run_passes(module, {"cse", "dead_code"}, {}, run))
    CHECK(pass.time.value == 1);
}

TEST_CASE("what a pass leaves is verified, its types too, unless nobody asks for it") {
  const auto run = [](bool verify, const std::function<void(ir::Graph&)>& edit) {
    ir::Module module = test::mlp(1);
    edit(microbatch(module));
    RunOptions options;
    options.verify = verify;
    run_passes(module, {"dead_code"}, {}, options);
  };
  const auto layer = [](ir::Graph& graph) { graph.ops[0].layer = LayerId(99); };
  const auto type = [](ir::Graph& graph) {
    graph.value(graph.ops[0].results[0]).type = ir::make_type(DType::kF32, {3, 6});
  };
  CHECK_THROWS(run(true, layer));
  CHECK_THROWS(run(true, type));
  run(false, layer);
  run(false, type);
}

TEST_CASE("all passes together give the gradients that autodiff alone gives") {
  ir::Module plain = test::gpt(0.2), all = plain;
  differentiate(plain);
  const std::vector<ops::Tensor> inputs = test::inputs_of(microbatch(plain));
  const auto expected = test::outcome(plain, microbatch(plain), inputs);
  PassOptions options;
  options.recompute = recompute_all(all, Recompute::kFull);
  std::vector<std::string> names = default_passes();
  names.emplace_back("fold_accumulate");
  run_passes(all, names, options);
  const auto result = test::outcome(all, microbatch(all), inputs);
  REQUIRE(result.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      CHECK(result.at(name).values[i] == mw::test::close_to(tensor.values[i]).epsilon(1e-13));
    }
  }
}

}  // namespace
}  // namespace mw::transform
