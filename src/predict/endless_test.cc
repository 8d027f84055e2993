#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "predict/predict.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::small;

// The most that a traced rank has of a category.
static Bytes most_of(const Prediction& p, size_t r, trace::MemoryCategory category) {
  Bytes most;
  for (const trace::MemorySample& sample : p.result.trace.memory) {
    if (sample.rank == p.result.ranks[r].rank && sample.category == category)
      most = std::max(most, sample.bytes);
  }
  return most;
}

TEST_CASE("PipeDream-2BW is 1F1B without its flush, with a second version of the weights") {
  Request request = small();
  request.options.trace = true;
  request.plan = compile::parse_plan("pp=4,dp=2,microbatches=8");
  const Prediction flushed = mw::predict::predict(request);
  request.plan.schedule = "pipedream-2bw";
  const Prediction endless = mw::predict::predict(request);
  CHECK(endless.step < flushed.step);
  CHECK(endless.bubble < flushed.bubble);
  CHECK(endless.tokens_per_s == mw::test::close_to(16 * 64 / endless.step.value));
  CHECK(endless.result.ranks[0].bytes_sent == flushed.result.ranks[0].bytes_sent);
  for (size_t r = 0; r < 4; ++r) {
    const simulate::RankResult& rank = endless.result.ranks[r];
    const double parts = (rank.compute + rank.total_exposed_comm() + rank.gaps + rank.idle).value;
    CHECK(parts == mw::test::close_to(endless.step.value));
    CHECK(rank.compute == flushed.result.ranks[r].compute);
    CHECK(rank.idle.value >= 0);
    const Bytes more = endless.memory[r].peak - flushed.memory[r].peak;
    CHECK(more == flushed.result.ranks[r].peak.by_category.at(pipeline::Category::kWeights));
    CHECK(endless.memory[r].alive - flushed.memory[r].alive == more);
    CHECK(rank.reserved - flushed.result.ranks[r].reserved == more);
    CHECK(rank.peak.time < endless.step);
    for (const auto category : {trace::MemoryCategory::kWeight, trace::MemoryCategory::kSaved,
                                trace::MemoryCategory::kOptimizer}) {
      const int64_t versions = category == trace::MemoryCategory::kWeight ? 2 : 1;
      CHECK(most_of(endless, r, category).value == versions * most_of(flushed, r, category).value);
    }
  }
  request.options.trace = false;
  // As few microbatches as ranks: those of two steps are under way, as many as 1F1B has.
  request.plan = compile::parse_plan("pp=4,microbatches=8");
  const std::vector<StageMemory> many = mw::predict::predict(request).memory;
  request.plan = compile::parse_plan("pp=4,microbatches=4,schedule=pipedream-2bw");
  request.global_batch = 8;
  const Prediction few = mw::predict::predict(request);
  for (size_t r = 0; r < 4; ++r) {
    CHECK(few.memory[r].peak > many[r].peak);
    CHECK(few.result.ranks[r].peak.time < few.step);
  }
  // Many microbatches hide the flush of 1F1B: then a step of both is the same.
  request.plan = compile::parse_plan("pp=4,microbatches=256");
  request.global_batch = 256;
  const double long_flushed = mw::predict::predict(request).step.value;
  request.plan.schedule = "pipedream-2bw";
  CHECK(mw::predict::predict(request).step.value == mw::test::close_to(long_flushed).epsilon(0.03));
}

// Where messages are slow, microbatches go round in bunches of as many as there are ranks; a step
// that ends within one must not take it for its own.
TEST_CASE("a step without a flush grows evenly with its microbatches") {
  Request request = small();
  request.cluster.links[0].bandwidth = request.cluster.links[0].bus_bandwidth =
      cluster::BytesPerSecond(2e8);
  std::vector<double> steps;
  for (int64_t m = 4; m <= 12; ++m) {
    request.plan =
        compile::parse_plan("pp=4,schedule=pipedream-2bw,microbatches=" + std::to_string(m));
    request.global_batch = m;
    steps.push_back(mw::predict::predict(request).step.value);
  }
  const double mean = (steps.back() - steps.front()) / static_cast<double>(steps.size() - 1);
  for (size_t i = 1; i < steps.size(); ++i) {
    CAPTURE(i);
    // In microbatches; measured over a step alone it is up to .25 off.
    const double more = (steps[i] - steps.front()) / mean;
    CHECK(std::abs(more - static_cast<double>(i)) < 0.15);
  }
}

TEST_CASE(
    "with post-validation a step takes what its busiest rank takes, from its begin to its end") {
  Request request = small();
  request.model.tie_word_embeddings = false;
  // Four stages that take about the same.
  request.model.vocab_size = 16;
  request.plan = compile::parse_plan("pp=4,schedule=zb-h2,microbatches=16");
  const Prediction flushed = mw::predict::predict(request);
  request.plan.post_validation = true;
  const Prediction running = mw::predict::predict(request);
  double most = 0;
  for (size_t r = 0; r < 4; ++r) {
    const simulate::RankResult& rank = running.result.ranks[r];
    const double busy = (rank.compute + rank.total_exposed_comm() + rank.gaps).value;
    CHECK((rank.total_wait() + rank.idle).value + busy == mw::test::close_to(running.step.value));
    CHECK(rank.idle.value < 0.01 * running.step.value);
    CHECK(running.result.waits[r].empty() == (rank.total_wait().value == 0));
    most = std::max(most, busy);
    // Copies of weight, moments and gradient, f32.
    const pipeline::RankProgram program = compile_step(request).program.ranks[r];
    int64_t kept = 0;
    for (int32_t b = 0; b < program.states; ++b) {
      const pipeline::Buffer& buffer = program.buffers[static_cast<size_t>(b)];
      if (buffer.name().find('#') != std::string::npos) kept += buffer.bytes().value;
    }
    CHECK(kept > 0);
    CHECK(rank.reserved.value - flushed.result.ranks[r].reserved.value >= kept);
  }
  // Of 3 x 16 units of work and 3 of fill, nothing of the fill is left.
  CHECK(running.step.value < 1.02 * most);
  CHECK(running.step.value < 0.97 * flushed.step.value);
  CHECK(running.tokens_per_s == mw::test::close_to(16 * 64 / running.step.value));
  // 1F1B's first rank works from the first instant to the last: nothing to gain.
  request.plan = compile::parse_plan("pp=4,microbatches=16");
  const double one_by_one = mw::predict::predict(request).step.value;
  request.plan.post_validation = true;
  CHECK(mw::predict::predict(request).step.value == mw::test::close_to(one_by_one).epsilon(0.03));
  // The sum of a tied weight waits for its last holder, in every step.
  request.model.tie_word_embeddings = true;
  request.plan = compile::parse_plan("pp=4,schedule=zb-h2,microbatches=16");
  const double tied = mw::predict::predict(request).step.value;
  request.plan.post_validation = true;
  CHECK(mw::predict::predict(request).step.value == mw::test::close_to(tied).epsilon(0.03));
}

// Reductions that a rank waits for by itself are beside the next call's work among others.
TEST_CASE("sums where a rank waits are those of every call, however many run into one another") {
  Request request = small();
  request.model.tie_word_embeddings = false;
  request.cluster.links[0].bandwidth = request.cluster.links[0].bus_bandwidth =
      cluster::BytesPerSecond(1e9);
  const auto step = [&](const char* plan, bool early, bool idle) {
    request.options.overlap.grad_reduce = early;
    request.options.overlap.grad_reduce_idle = idle;
    request.plan = compile::parse_plan(plan);
    const Prediction running = mw::predict::predict(request);
    for (const simulate::RankResult& rank : running.result.ranks) {
      const double busy = (rank.compute + rank.total_exposed_comm() + rank.gaps).value;
      CHECK((rank.total_wait() + rank.idle).value + busy == mw::test::close_to(running.step.value));
    }
    return running.step.value;
  };
  for (const char* plan : {"pp=2,dp=2,schedule=zb-h1,microbatches=2,zero=2,post_validation",
                           "pp=4,dp=2,microbatches=8,bucket_mb=0,post_validation"}) {
    CAPTURE(plan);
    const double late = step(plan, false, false), idle = step(plan, true, true);
    CHECK(idle <= late * 1.0001);
  }
}

TEST_CASE("with post-validation work and waits are those of a call among others, and add up") {
  Request request = small();
  request.model.tie_word_embeddings = false;
  request.cluster.links[0].bandwidth = request.cluster.links[0].bus_bandwidth =
      cluster::BytesPerSecond(1e9);
  request.options.overlap.grad_reduce = request.options.overlap.grad_reduce_idle = true;
  request.plan = compile::parse_plan("pp=4,dp=2,microbatches=8,bucket_mb=0,post_validation");
  const Prediction running = mw::predict::predict(request);
  double exposed = 0;
  for (const simulate::RankResult& rank : running.result.ranks) {
    const double busy = (rank.compute + rank.total_exposed_comm() + rank.gaps).value;
    CHECK((rank.total_wait() + rank.idle).value + busy == mw::test::close_to(running.step.value));
    exposed += rank.total_exposed_comm().value / 4;
  }
  double told = 0;
  for (const auto& [group, time] : running.exposed_comm) told += time.value;
  CHECK(told == mw::test::close_to(exposed));
}
