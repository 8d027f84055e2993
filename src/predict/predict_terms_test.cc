// Figures of a prediction that no other test tells apart.
#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/test_close_to.h"
#include "predict/predict.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::small;

TEST_CASE("a replica's microbatch is compared with those that were measured, ZeRO with replicas'") {
  Request request = small();  // 16 sequences
  request.cluster.stack.name = "measured";
  request.cluster.stack.measured = {{"microbatch", 2, 2}, {"zero", 1, 1}};
  const auto outside = [&](const char* plan) {
    request.plan = compile::parse_plan(plan);
    return outside_profile(request);
  };
  CHECK(outside("dp=2,microbatches=4,zero=1").empty());
  CHECK(outside("microbatches=8").empty());  // nothing that ZeRO would divide
  CHECK(outside("microbatches=4") == std::vector<std::string>{"microbatch 4 (measured 2)"});
  CHECK(outside("dp=2,microbatches=8") ==
        std::vector<std::string>{"microbatch 1 (measured 2)", "zero 0 (measured 1)"});
}

TEST_CASE("calls and waits of a trace add up to what is told of the step") {
  using trace::Category;
  Request request = small();
  request.options.trace = true;
  for (const char* plan : {"pp=4,microbatches=4", "dp=2,tp=2,pp=2,microbatches=4,zero=1",
                           "dp=2,pp=4,microbatches=4,zero=2"}) {
    CAPTURE(std::string(plan));
    request.plan = compile::parse_plan(plan);
    const simulate::Result result = mw::predict::predict(request).result;
    bool waits = false;
    for (const simulate::RankResult& rank : result.ranks) {
      std::map<Category, double> seconds;
      double nested = 0;  // of waits in an update
      trace::Span update;
      for (const trace::Span& span : result.trace.spans) {  // in order of their starts
        if (span.rank != rank.rank || span.stream != StreamId(0)) continue;
        seconds[span.category] += span.duration.value;
        if (span.category == Category::kUpdate) update = span;
        if (span.category == Category::kWait && span.start < update.end())
          nested += span.duration.value;
      }
      waits = waits || nested > 0;
      const double works = (rank.compute + rank.gaps + rank.total_exposed_comm()).value;
      CHECK(seconds[Category::kCompute] + seconds[Category::kUpdate] - nested ==
            mw::test::close_to(works));
      CHECK(seconds[Category::kWait] == mw::test::close_to(rank.total_wait().value));
    }
    CHECK(waits);
  }
}

TEST_CASE("what ranks of one memory need together is as much as there are numbers for") {
  Prediction prediction;
  prediction.sharing = 1000;
  prediction.memory.resize(4);
  for (StageMemory& rank : prediction.memory) rank.peak = Bytes(1 << 20);
  CHECK(prediction.needed().value == int64_t{1000} << 20);
  for (StageMemory& rank : prediction.memory) rank.peak = Bytes(int64_t{1} << 58);
  CHECK(prediction.needed().value == std::numeric_limits<int64_t>::max());
}

TEST_CASE("the FLOPs that a step's products run are the same however the sequence is divided") {
  Request request = small();
  const auto flops = [&](const char* plan) {
    request.plan = compile::parse_plan(plan);
    const Prediction p = mw::predict::predict(request);
    return p.hfu * p.step.value * static_cast<double>(p.devices) * p.peak.value;
  };
  const double one = flops("recompute=selective-op");
  for (const char* plan : {"cp=2,recompute=selective-op", "cp=4,recompute=selective-op",
                           "dp=2,cp=2,recompute=selective-op", "pp=2,recompute=selective-op"}) {
    CAPTURE(std::string(plan));
    CHECK(flops(plan) == mw::test::close_to(one).epsilon(1e-3));
  }
}

TEST_CASE("weights that go beside nothing show all that they take, in order and by data") {
  Request request = small();
  request.plan = compile::parse_plan("dp=2,microbatches=2,zero=3");
  for (const char* order : {"messages", "collectives"}) {
    CAPTURE(std::string(order));
    REQUIRE(simulate::set_overlap(request.options.overlap, order));
    const auto shown = [&](const char* word) {
      Request said = request;
      REQUIRE(simulate::set_overlap(said.options.overlap, word));
      const simulate::RankResult rank = mw::predict::predict(said).result.ranks[0];
      return rank.exposed_comm.at("dp").value / rank.comm.at("dp").value;
    };
    CHECK(shown("weights") < 0.9);
    CHECK(shown("no-weights") == doctest::Approx(1));
  }
}

TEST_CASE("a ring hides keys and values behind attention, and the sums of their gradients") {
  Request request = small();
  request.options.host = false;
  request.model.max_positions = request.seq_len = 1 << 15;  // attention is most of the work
  request.cluster.links[0].latency = Seconds(0);
  // Of sixteen microbatches: those of a step with more of them than of one with fewer, which both
  // sum their gradients over cp once.
  const auto exposed = [&](const char* word) {
    REQUIRE(simulate::set_overlap(request.options.overlap, word));
    const auto of = [&](int64_t microbatches) {
      request.global_batch = request.plan.microbatches = microbatches;
      return mw::predict::predict(request).result.ranks[0].exposed_comm.at("cp").value;
    };
    request.plan = compile::parse_plan("cp=4");
    return of(32) - of(16);
  };
  const double whole = exposed("no-ring");
  REQUIRE(whole > 0);
  CHECK(exposed("ring") < 0.1 * whole);
}
