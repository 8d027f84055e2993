#include "predict/coarse.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/fs.h"
#include "base/rng.h"
#include "base/test_close_to.h"
#include "base/text.h"
#include "predict/test_request.h"
#include "solver/rank_correlation.h"

using namespace mw;
using namespace mw::predict;

namespace {

Request request_for(const std::string& model, const std::string& cluster, int64_t batch) {
  FileSystem& fs = posix_fs();
  const std::string root = MW_SOURCE_DIR;
  const std::string file = root + "/models/" + model + ".json";
  Request request;
  request.model = models::parse_config(fs.read_file(file), file);
  request.seq_len = std::min<int64_t>(2048, request.model.max_positions);
  request.cluster = cluster::load_cluster(fs, cluster, {root + "/clusters"});
  request.global_batch = batch;
  request.options.order_hash = request.options.program_hash = false;
  // As the profile of Megatron-LM on A100 has them.
  request.options.scatter_gather = true;
  request.options.overlap.messages = false;
  return request;
}

// What a stack does with messages.
struct Messages {
  std::string name;
  bool scatter_gather, overlap;
  double card;      // share of a network card
  uint64_t seed;    // of the plans
  double farthest;  // from the simulation
};

struct Random {
  uint64_t state;
  int64_t below(int64_t n) {
    state = mix_bits(state + 0x9e3779b97f4a7c15ULL);
    return static_cast<int64_t>(state % static_cast<uint64_t>(n));
  }
  template <typename T>
  T one_of(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }
};

// A plan that fits model and batch, with whole stages.
compile::Plan random_plan(const Request& base, Random& random, Coarse& coarse) {
  while (true) {
    compile::Plan plan;
    plan.tp = random.one_of<int64_t>({1, 2, 4, 8});
    plan.pp = random.one_of<int64_t>({1, 2, 3, 4, 6, 8, 12});
    plan.dp = random.one_of<int64_t>({1, 2, 4, 8, 16});
    plan.sp = plan.tp > 1 && random.below(2) == 0;
    plan.schedule = random.one_of(pipeline::schedule_kinds());
    plan.chunks = plan.pp == 1 ? 1 : random.one_of<int64_t>({1, 1, 2, 3, 4});
    plan.zero = plan.dp == 1 ? 0 : random.below(4);
    plan.recompute = random.one_of<compile::Recompute>(
        {compile::Recompute::kNone, compile::Recompute::kSelective, compile::Recompute::kFull});
    if (base.model.layers % plan.stages() != 0) continue;
    const int64_t share = base.global_batch / plan.dp;
    plan.microbatches = random.one_of<int64_t>({1, 2, 4, 8, 12, 16, 24, 32, 48, 64});
    if (base.global_batch % plan.dp != 0 || share % plan.microbatches != 0) continue;
    if (share / plan.microbatches > 8) continue;
    plan.regather = plan.sp && plan.microbatches % 4 == 0;
    Request request = base;
    request.plan = plan;
    if (!compile::plan_findings(plan, base.model.layers, model_shape(request)).empty()) continue;
    if (coarse.has_order(plan)) return plan;
  }
}

double amount(Bytes b) { return static_cast<double>(b.value); }

// The estimate of the request's plan is close to its simulation.
void check_step(Coarse& coarse, const Request& request, double epsilon) {
  CAPTURE(short_form(request.plan));
  CHECK(coarse.step(request.plan).value ==
        mw::test::close_to(predict::predict(request).step.value).epsilon(epsilon));
}

// Near the simulation, and not below the bounds.
void check_estimate(Coarse& coarse, const Request& request) {
  const predict::Prediction prediction = predict::predict(request);
  const Estimate estimate = coarse.estimate(request.plan), least = coarse.least(request.plan),
                 scheduled = coarse.least_scheduled(request.plan);
  CHECK(estimate.step.value == mw::test::close_to(prediction.step.value).epsilon(0.03));
  CHECK(static_cast<double>(estimate.peak.value) ==
        mw::test::close_to(static_cast<double>(prediction.needed().value)).epsilon(0.05));
  CHECK(least.step.value <= (1 + 1e-9) * estimate.step.value);
  CHECK(scheduled.step.value <= (1 + 1e-9) * estimate.step.value);
  CHECK(least.peak <= estimate.peak);
  CHECK(coarse.states(request.plan) <= least.peak);
}

}  // namespace

TEST_CASE("a plan of more units of work than a plan may have has no order") {
  Request request = predict::test::small();
  compile::Plan plan;
  plan.pp = plan.chunks = 2;
  plan.schedule = "interleaved-1f1b";
  plan.microbatches = compile::kMostUnits / plan.stages();
  request.global_batch = 2 * plan.microbatches;
  Coarse coarse(request);
  CHECK(coarse.has_order(plan));
  plan.microbatches *= 2;
  CHECK(!coarse.has_order(plan));
  CHECK(!coarse.takes_order(plan));
}

TEST_CASE("coarse estimates of random plans are close to the simulation and in its order") {
  const bool all = std::getenv("MESHWRIGHT_TEST_ALL") != nullptr;
  const int64_t plans = all ? 500 : 12;
  const char* verbose = std::getenv("MESHWRIGHT_TEST_VERBOSE");
  Request small = request_for("gpt-7.5b", "selene", 512);
  small.model.layers = 24;
  Messages messages;
  SUBCASE("") { messages = {"in parts, waited for", true, false, 0.5, 7, 0.03}; }
  SUBCASE("") { messages = {"whole, beside computation", false, true, 1, 8, 0.03}; }
  SUBCASE("") { messages = {"whole, waited for", false, false, 1, 9, 0.03}; }
  // As long as forwards: no profile has them so.
  SUBCASE("") { messages = {"whole, waited for, slow", false, false, 0.5, 9, 0.032}; }
  CAPTURE(messages.name);
  small.options.scatter_gather = messages.scatter_gather;
  small.options.overlap.messages = messages.overlap;
  small.cluster.device.attained.message_network_fraction = messages.card;
  Coarse coarse(small);
  Random random{messages.seed};
  std::vector<double> estimated, simulated;
  double worst = 0, sum = 0, worst_memory = 0;
  for (int64_t i = 0; i < plans; ++i) {
    Request request = small;
    request.plan = random_plan(small, random, coarse);
    const Estimate estimate = coarse.estimate(request.plan);
    const Prediction prediction = predict::predict(request);
    estimated.push_back(estimate.step.value);
    simulated.push_back(prediction.step.value);
    Bytes peak;
    for (const StageMemory& memory : prediction.memory) peak = std::max(peak, memory.peak);
    const double error = estimate.step.value / prediction.step.value - 1;
    const double memory =
        static_cast<double>(estimate.peak.value) / static_cast<double>(peak.value) - 1;
    if (verbose != nullptr) {
      MESSAGE(short_form(request.plan), " step ", prediction.step.value, " error ", 100 * error,
              " % memory ", format_bytes(peak.value), " error ", 100 * memory, " %");
    }
    worst = std::max(worst, std::abs(error));
    worst_memory = std::max(worst_memory, std::abs(memory));
    sum += std::abs(error);
  }
  const double order = solver::rank_correlation(estimated, simulated);
  MESSAGE(plans, " plans, messages ", messages.name, ": mean error ",
          100 * sum / static_cast<double>(plans), " %, worst ", 100 * worst, " %, memory worst ",
          100 * worst_memory, " %, rank correlation ", order);
  CHECK(order > 0.99);
  CHECK(sum / static_cast<double>(plans) < 0.005);
  CHECK(worst < messages.farthest);
  // What is alive comes out to a percent or two; the rest is how a step's buffers pack.
  CHECK(worst_memory < 0.07);
}

TEST_CASE("chunk after chunk, a slow last stage holds up more the more microbatches there are") {
  Request request = request_for("gpt-7.5b", "selene", 512);
  request.model.layers = 24;
  Coarse coarse(request);
  for (const std::string microbatches : {"64", "128", "256"}) {
    request.plan = compile::parse_plan("dp=1,tp=8,pp=8,schedule=looped-bfs,chunks=3,microbatches=" +
                                       microbatches);
    CAPTURE(microbatches);
    const double simulated = predict::predict(request).step.value;
    CHECK(coarse.step(request.plan).value == mw::test::close_to(simulated).epsilon(0.03));
  }
}

TEST_CASE("senders wait for slots where a message takes about as long as a forward") {
  Request request = request_for("gpt-7.5b", "selene", 512);
  request.model.layers = 24;
  request.options.scatter_gather = false;
  request.options.overlap.messages = true;
  request.cluster.device.attained.message_network_fraction = 1;
  Coarse coarse(request);
  request.plan = compile::parse_plan("dp=1,tp=8,pp=8,schedule=looped-bfs,chunks=3,microbatches=64");
  CHECK(coarse.step(request.plan).value ==
        mw::test::close_to(predict::predict(request).step.value).epsilon(0.01));
}

TEST_CASE("ends that share weights wait for each other, the others for neither") {
  // The last stage is done before the first, and has summed its blocks' gradients by then.
  Request request = request_for("gpt-7.5b", "selene", 512);
  request.model.layers = 24;
  for (const bool tied : {true, false}) {
    request.model.tie_word_embeddings = tied;
    Coarse coarse(request);
    for (const char* text : {"dp=16,tp=8,pp=12,schedule=zb-h2,microbatches=16",
                             "dp=16,tp=8,pp=4,schedule=zb-h2,microbatches=8",
                             "dp=16,tp=8,pp=2,schedule=zb-h2,microbatches=8,sp,regather",
                             "dp=16,tp=8,pp=4,schedule=zb-h1,microbatches=8"}) {
      request.plan = compile::parse_plan(text);
      CAPTURE(tied);
      check_step(coarse, request, 0.005);
    }
  }
}

TEST_CASE("a boundary that sequence parallelism divides goes whole, another in parts of it") {
  Request request = request_for("gpt-1.7b", "selene", 16);
  for (cluster::Link& link : request.cluster.links) {  // messages are much of a step
    if (link.kind != cluster::LinkKind::kNetwork) continue;
    link.bandwidth = link.bandwidth * 0.01;
    link.bus_bandwidth = link.bus_bandwidth * 0.01;
  }
  for (const char* plan : {"tp=8,pp=4,microbatches=16", "tp=8,pp=4,sp,microbatches=16"}) {
    CAPTURE(std::string(plan));
    request.plan = compile::parse_plan(plan);
    Coarse coarse(request);
    CHECK(coarse.step(request.plan).value ==
          mw::test::close_to(mw::predict::predict(request).step.value).epsilon(0.03));
  }
}

TEST_CASE("stages beside each other on one rank have no slots, and keep what passes to the end") {
  Request request = request_for("gpt-7.5b", "selene", 512);
  request.model.layers = 24;
  Coarse coarse(request);
  for (const std::string schedule : {"hanayo", "zb-v", "dualpipe-v"}) {
    request.plan = compile::parse_plan(
        "dp=4,tp=8,pp=12,chunks=2,microbatches=32,recompute=full,schedule=" + schedule);
    CAPTURE(schedule);
    Bytes peak;
    for (const StageMemory& memory : predict::predict(request).memory)
      peak = std::max(peak, memory.peak);
    CHECK(static_cast<double>(coarse.memory(request.plan).peak.value) ==
          mw::test::close_to(static_cast<double>(peak.value)).epsilon(0.05));
  }
}

TEST_CASE("behind the vocabulary's products the host is ahead, for as many blocks as it lasts") {
  Request request = request_for("gpt-7.5b", "selene", 512);
  request.model.layers = 24;
  Coarse coarse(request);
  for (const std::string stages : {"pp=2", "pp=8", "pp=12", "pp=4,chunks=6"}) {
    request.plan = compile::parse_plan("dp=8,tp=8,microbatches=64,recompute=selective," + stages);
    CAPTURE(stages);
    const double simulated = predict::predict(request).step.value;
    CHECK(coarse.step(request.plan).value == mw::test::close_to(simulated).epsilon(0.01));
  }
}

TEST_CASE("where the host is slower than a block, its lead behind the vocabulary ends after some") {
  for (const int64_t layers : {3, 6, 12, 24, 48}) {
    Request request = request_for("gpt-1.7b", "b200", 4);
    request.options = simulate::options_of(request.cluster.stack);
    request.model.layers = layers;
    request.seq_len = 1024;
    REQUIRE(set_precision(request, "fp8"));
    Coarse coarse(request);
    for (const char* plan : {"microbatches=4", "microbatches=4,recompute=full"}) {
      CAPTURE(layers);
      request.plan = compile::parse_plan(plan);
      check_step(coarse, request, layers < 12 ? 0.02 : 0.01);
    }
  }
}

TEST_CASE("ten thousand coarse estimates a second, as a ratio to one simulation") {
  Request base = request_for("gpt-7.5b", "selene", 512);
  base.model.layers = 24;
  Coarse coarse(base);
  Random random{11};
  std::vector<compile::Plan> plans;
  while (plans.size() < 200) {
    const compile::Plan plan = random_plan(base, random, coarse);
    if (std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(plan);
  }
  // Compiles what they need; each is estimated once, so that nothing is remembered of it.
  coarse.prepare_scheduled(plans, 2);
  coarse.prepare_exact(plans, 2);
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double total = 0;
  for (const compile::Plan& plan : plans) total += coarse.estimate(plan).step.value;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  Request one = base;
  one.plan = plans.front();
  const auto again = Clock::now();
  predict::predict(one);
  const double simulation = std::chrono::duration<double>(Clock::now() - again).count();
  const double rate = static_cast<double>(plans.size()) / seconds;
  MESSAGE(rate, " estimates a second; one simulation takes ", simulation, " s");
  CHECK(total > 0);
  CHECK(simulation * rate > 20);
}

TEST_CASE("pipeline ranks that lie differently on nodes are estimated by the slowest between") {
  Request request = request_for("gpt-1.7b", "selene", 48);
  Coarse coarse(request);
  // Nodes of eight: of the second node's pipeline ranks only some have groups that straddle it.
  for (const char* text :
       {"tp=6,pp=4,microbatches=24", "tp=3,pp=8,microbatches=24", "tp=3,pp=4,dp=2,microbatches=12",
        "tp=2,pp=4,dp=3,microbatches=8,zero=1", "pp=8,dp=3,microbatches=8,zero=1",
        "pp=8,dp=3,microbatches=8,zero=2", "tp=2,pp=4,dp=3,microbatches=8,zero=1,schedule=zb-v",
        "tp=12,pp=4,microbatches=12"}) {
    CAPTURE(std::string(text));
    request.plan = compile::parse_plan(text);
    const double step = predict::predict(request).step.value;
    const double estimate = coarse.estimate(request.plan).step.value;
    CHECK(estimate > 0.99 * step);
    CHECK(estimate < 1.3 * step);
  }
}

TEST_CASE("every microbatch's gradients are reduced in the stack's format, as in the simulation") {
  // In 4 bytes an element, though the weights have 2; what is reduced takes longer than the work.
  Request request = request_for("gpt-1.7b", "v100-p3", 64);
  request.model.layers = 8;
  Coarse coarse(request);
  for (const std::string text : {"dp=8,tp=2", "dp=8,tp=2,pp=2", "dp=8,pp=2,sp,tp=2"}) {
    for (const std::string zero : {"zero=1,grad_reduce=microbatch", "zero=2", "zero=3"}) {
      request.plan = compile::parse_plan(text + ",microbatches=8," + zero);
      check_step(coarse, request, 0.03);
    }
  }
}

TEST_CASE("blocks with an attention window at every other place are told apart") {
  Request request = request_for("gpt-oss-120b", "selene", 64);
  request.model.layers = 24;
  Coarse coarse(request);
  for (const char* text :
       {"tp=2,sp,pp=8,microbatches=32", "pp=4,chunks=2,microbatches=32,recompute=full",
        "tp=2,sp,pp=24,microbatches=32", "dp=4,pp=8,microbatches=16,zero=2,schedule=zb-h1",
        "dp=4,pp=24,microbatches=16,zero=3", "tp=2,sp,pp=5,layers=5:5:5:5:4,microbatches=32"}) {
    request.plan = compile::parse_plan(text);
    check_step(coarse, request, 0.02);
  }
}

TEST_CASE("blocks with one MLP before those with experts are told apart") {
  Request request = request_for("deepseek-v3", "dgx-h100", 64);
  request.model.layers = 12;
  Coarse coarse(request);
  for (const char* text :
       {"tp=8,sp,pp=4,microbatches=32", "pp=4,chunks=3,microbatches=32,recompute=full",
        "tp=2,sp,pp=12,microbatches=32", "dp=4,pp=4,microbatches=16,zero=2,schedule=zb-h1",
        "dp=4,pp=12,microbatches=16,zero=3", "dp=2,pp=6,microbatches=16,zero=3",
        "dp=8,microbatches=2,zero=1", "pp=4,microbatches=16,schedule=chimera"}) {
    request.plan = compile::parse_plan(text);
    CAPTURE(std::string(text));
    const predict::Prediction prediction = predict::predict(request);
    const Estimate estimate = coarse.estimate(request.plan), least = coarse.least(request.plan);
    CHECK(estimate.step.value == mw::test::close_to(prediction.step.value).epsilon(0.02));
    CHECK(static_cast<double>(estimate.peak.value) ==
          mw::test::close_to(static_cast<double>(prediction.needed().value)).epsilon(0.05));
    CHECK(least.step.value <= estimate.step.value * (1 + 1e-12));  // the same, but for rounding
    CHECK(least.peak <= estimate.peak);
  }
}

TEST_CASE("experts that a part of dp divides") {
  struct Case {
    const char* model;
    int64_t layers;
    std::vector<const char*> plans;
  };
  const std::vector<Case> cases = {
      {"deepseek-v3",
       12,
       {
           "dp=8,ep=8,tp=2,sp,pp=4,microbatches=8",
           "dp=8,ep=4,pp=4,microbatches=8,recompute=full",
           "dp=8,ep=2,pp=4,microbatches=4,zero=1",
           "dp=16,ep=8,pp=4,microbatches=4,zero=2",
           "dp=16,ep=4,pp=2,microbatches=4,zero=3",
           "dp=8,ep=8,pp=4,microbatches=8,zero=3",
           "dp=32,ep=32,microbatches=2,zero=1",
           "dp=8,ep=8,pp=4,microbatches=8,schedule=dualpipe",
       }},
      {"mixtral-8x7b",
       8,
       {"dp=8,ep=8,pp=4,microbatches=8,schedule=zb-h1", "dp=16,ep=4,microbatches=4,zero=3",
        "dp=8,ep=2,tp=4,sp,pp=2,chunks=2,microbatches=8,zero=1",
        "dp=4,ep=4,pp=4,microbatches=16,schedule=chimera"}}};
  for (const Case& of : cases) {
    Request request = request_for(of.model, "dgx-h100", 64);
    request.model.layers = of.layers;
    for (const char* word : {"weights", "no-weights"}) {
      REQUIRE(simulate::set_overlap(request.options.overlap, word));
      Coarse coarse(request);
      for (const char* text : of.plans) {
        request.plan = compile::parse_plan(text);
        CAPTURE(std::string(text));
        REQUIRE(coarse.has_order(request.plan));
        check_estimate(coarse, request);
      }
    }
  }
}

TEST_CASE("a forward and a backward that a schedule lays together") {
  Request request = request_for("deepseek-v3", "dgx-h100", 1024);
  request.model.layers = 24;
  Request apart_request = request;
  REQUIRE(simulate::set_overlap(apart_request.options.overlap, "no-pairs"));
  Coarse coarse(request), apart_coarse(apart_request);
  for (const char* text : {"dp=16,ep=16,pp=4,microbatches=64,schedule=dualpipe",
                           "dp=16,ep=16,pp=4,microbatches=16,schedule=dualpipe,recompute=full",
                           "dp=32,ep=32,pp=2,microbatches=16,schedule=dualpipe-v",
                           "dp=64,ep=64,pp=8,microbatches=16,schedule=dualpipe,zero=1",
                           "dp=16,ep=16,pp=4,microbatches=16,schedule=dualpipe-v,zero=1"}) {
    request.plan = compile::parse_plan(text);
    CAPTURE(std::string(text));
    REQUIRE(coarse.has_order(request.plan));
    check_estimate(coarse, request);
    Request apart = apart_request;
    apart.plan = request.plan;
    const double together = predict::predict(request).step.value;
    CHECK(together < 0.98 * predict::predict(apart).step.value);
    check_estimate(apart_coarse, apart);
  }
}

TEST_CASE("stages that the blocks do not come out even on") {
  Request request = request_for("gpt-3.6b", "selene", 64);
  request.model.layers = 14;
  Coarse coarse(request);
  for (const char* text : {"pp=4,microbatches=16", "tp=2,pp=8,dp=2,microbatches=16,zero=1",
                           "pp=4,schedule=interleaved-1f1b,chunks=2,microbatches=16",
                           "pp=8,dp=2,microbatches=8,zero=3",
                           "pp=4,schedule=zb-v,chunks=2,microbatches=16,recompute=full",
                           "pp=4,schedule=chimera,microbatches=16"}) {
    request.plan = compile::parse_plan(text);
    CAPTURE(std::string(text));
    check_estimate(coarse, request);
  }
}

TEST_CASE("gradients are summed over each stage's own replicas, which lie differently on a torus") {
  Request request = request_for("gpt-7.5b", "tpu-v4", 512);
  request.model.layers = 24;
  request.options.scatter_gather = false;
  request.options.overlap.messages = true;
  Coarse coarse(request);
  for (const char* text :
       {"dp=16,tp=4,pp=12,schedule=dualpipe,microbatches=32,sp,zero=1,recompute=selective",
        "dp=8,pp=6,schedule=chimera-halving,microbatches=8,recompute=full"}) {
    request.plan = compile::parse_plan(text);
    CAPTURE(std::string(text));
    CHECK(coarse.step(request.plan).value ==
          mw::test::close_to(predict::predict(request).step.value).epsilon(0.03));
  }
}

TEST_CASE("slices are told apart by how many there are, and bounded by the whole's parts") {
  struct Cluster {
    const char *model, *name;
    int64_t devices;
  };
  for (const Cluster& on : {Cluster{"gpt-7.5b", "selene", 512}, {"gpt-1.7b", "v100-p3", 64}}) {
    Request request = request_for(on.model, on.name, on.devices);
    request.model.layers = 24;
    Coarse coarse(request);
    for (const char* slices : {"8", "2", "4"}) {
      for (const char* rest :
           {"pp=4,microbatches=16,recompute=selective", "pp=8,microbatches=4,zero=2,recompute=full",
            "tp=4,pp=2,sp,microbatches=8"}) {
        const std::string text = fmt::format("dp=4,schedule=seq-1f1b,slices={},{}", slices, rest);
        CAPTURE(text);
        request.plan = compile::parse_plan(text);
        check_step(coarse, request, 0.03);
        const Estimate exact = coarse.estimate(request.plan),
                       least = coarse.least_scheduled(request.plan);
        CHECK(least.step <= exact.step);
        CHECK(least.step.value > 0.3 * exact.step.value);
        CHECK(least.peak <= exact.peak);
      }
    }
  }
}

TEST_CASE("weights' gradients hold two blocks' gathered values, of however many blocks") {
  Request request = request_for("llama3-70b", "dgx-h100", 256);
  Coarse coarse(request);
  for (const char* mesh : {"dp=16,tp=8,pp=2", "dp=8,tp=8,pp=4", "dp=16,tp=4,pp=4"}) {
    for (const char* schedule : {"zb-h1", "1f1b", "interleaved-zb,chunks=2"}) {
      for (const char* zero : {"1", "2", "3"}) {
        const std::string text =
            fmt::format("{},schedule={},microbatches=8,sp,regather,zero={}", mesh, schedule, zero);
        CAPTURE(text);
        request.plan = compile::parse_plan(text);
        const double memory = amount(coarse.memory(request.plan).peak);
        CHECK(amount(coarse.least_scheduled(request.plan).peak) <= memory * 1.0001);
        CHECK(memory ==
              mw::test::close_to(amount(predict::predict(request).needed())).epsilon(0.04));
      }
    }
  }
}

TEST_CASE("bounds lie below the estimates of random plans, and ZeRO's collectives are in them") {
  const int64_t plans = std::getenv("MESHWRIGHT_TEST_ALL") != nullptr ? 500 : 60;
  Request base = request_for("gpt-7.5b", "selene", 512);
  base.model.layers = 24;
  Request serial_base = base;
  REQUIRE(simulate::set_overlap(serial_base.options.overlap, "no-weights"));
  Coarse coarse(base), serial(serial_base);
  Random random{11};
  for (int64_t i = 0; i < plans; ++i) {
    const compile::Plan plan = random_plan(base, random, coarse);
    Coarse& of = i % 2 == 0 ? coarse : serial;
    const Estimate exact = of.estimate(plan), least = of.least(plan),
                   scheduled = of.least_scheduled(plan);
    CAPTURE(short_form(plan));
    CHECK(least.step.value <= exact.step.value * 1.0001);
    CHECK(scheduled.step.value <= exact.step.value * 1.0001);
    CHECK(amount(least.peak) <= amount(exact.peak) * 1.0001);
    CHECK(amount(scheduled.peak) <= amount(exact.peak) * 1.0001);
  }
  // One sequence of work beside the weights of 2.5 billion parameters over the network, three
  // times.
  compile::Plan plan = compile::parse_plan("tp=8,dp=64,zero=3,microbatches=8");
  compile::Plan bare = plan;
  bare.zero = 1;
  CHECK(coarse.least(plan).step > coarse.least(bare).step);
  CHECK(coarse.least(plan).step <= coarse.step(plan));
  // In a pipeline each forward and backward takes as long as its own collectives, and the first
  // gather of a forward is beside nothing.
  plan = compile::parse_plan("tp=8,pp=2,dp=32,zero=3,microbatches=8,schedule=1f1b");
  const Seconds scheduled = coarse.least_scheduled(plan).step;
  CHECK(scheduled.value > 1.1 * coarse.least(plan).step.value);
  CHECK(scheduled <= coarse.step(plan));
  // Beside nothing they come on top.
  CHECK(serial.least(plan).step > coarse.least(plan).step);
  CHECK(serial.least_scheduled(plan).step > scheduled);
  CHECK(serial.least_scheduled(plan).step <= serial.step(plan));
}
