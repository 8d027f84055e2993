#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "base/test_close_to.h"
#include "pipeline/verifier.h"
#include "predict/precision.h"
#include "predict/predict.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::kPlans;
using mw::predict::test::mixture;
using mw::predict::test::small;
using mw::predict::test::train_of;

TEST_CASE("a simulated step sends, runs and holds what the verifier proves of the program") {
  for (const char* plan : kPlans) {
    CAPTURE(std::string(plan));
    Request request = small();
    request.plan = compile::parse_plan(plan);
    const pipeline::Program program = train_of(request);
    const pipeline::Verification proved = pipeline::verify(program);
    REQUIRE(proved.sound());
    const simulate::Result result = simulate::simulate(program, request.cluster);
    for (size_t r = 0; r < program.ranks.size(); ++r) {
      CHECK(result.ranks[r].bytes_sent == proved.ranks[r].bytes_sent);
      CHECK(result.ranks[r].instructions == proved.ranks[r].instructions);
      CHECK(result.ranks[r].order_hash == proved.ranks[r].order_hash);
      CHECK(result.ranks[r].bytes_by_group == proved.ranks[r].bytes_by_group);
      CHECK(result.ranks[r].peak.by_category == proved.ranks[r].peak_by_category);
    }
  }
}

// Queries without a narrow vector, and experts that are no multiple of a token's: 3 tokens are 2
// rows of each.
Request uneven_mixture() {
  Request request = mixture();
  request.model.latent.query_rank = 0;
  request.model.mixture.experts = 6;
  request.model.mixture.top_k = 4;
  request.seq_len = 48;
  return request;
}

TEST_CASE("programs with context and expert parallelism are sound, and simulated as they are") {
  struct Case {
    Request request;
    const char* plan;
  };
  for (const Case& c : {Case{small(), "dp=2,cp=2,pp=2,microbatches=4,zero=1"},
                        Case{small(), "cp=2,tp=2,sp,microbatches=4,zero=3,recompute=full"},
                        Case{mixture(), "dp=4,ep=2,pp=2,microbatches=2,zero=1"},
                        Case{mixture(), "dp=2,ep=2,tp=2,sp,pp=2,microbatches=4,zero=1"},
                        Case{mixture(), "dp=4,ep=4,cp=2,microbatches=2,recompute=selective"},
                        Case{mixture(), "dp=4,ep=2,tp=2,sp,microbatches=2,zero=3"},
                        Case{uneven_mixture(), "dp=2,ep=2,tp=2,sp,pp=2,microbatches=4,zero=1"},
                        Case{uneven_mixture(), "dp=2,ep=2,cp=4,microbatches=2"}}) {
    CAPTURE(std::string(c.plan));
    Request request = c.request;
    request.precision = DType::kF32;
    request.plan = compile::parse_plan(c.plan);
    const pipeline::Program program = program_of(request);
    const pipeline::Verification proved = pipeline::verify(program);
    REQUIRE(proved.sound());
    const simulate::Result result = simulate::simulate(program, request.cluster);
    for (size_t r = 0; r < program.ranks.size(); ++r) {
      CHECK(result.ranks[r].bytes_sent == proved.ranks[r].bytes_sent);
      CHECK(result.ranks[r].bytes_by_group == proved.ranks[r].bytes_by_group);
      CHECK(result.ranks[r].peak.by_category == proved.ranks[r].peak_by_category);
    }
  }
}

TEST_CASE("experts are exchanged over ep, two all-to-alls forward and two backward a layer") {
  Request request = mixture();
  request.precision = DType::kF32;
  request.plan = compile::parse_plan("dp=4,ep=4");
  const simulate::Result result = simulate::simulate(program_of(request), request.cluster);
  // Three layers; 2 rows of 64 f32 for each of 16 x 64 / 4 tokens, 3 of 4 parts leave the device.
  const int64_t rows = 2 * 16 * 64 / 4;
  CHECK(result.ranks[0].bytes_by_group.at("ep").value >= 3 * 4 * rows * 64 * 4 * 3 / 4);
}

TEST_CASE("keys and values go around a ring beside attention, unless they are gathered before it") {
  Request request = small();
  request.plan = compile::parse_plan("cp=2");
  const pipeline::Program program = program_of(request);
  const simulate::Result ring = simulate::simulate(program, request.cluster);
  simulate::Options options;
  REQUIRE(simulate::set_overlap(options.overlap, "no-ring"));
  const simulate::Result gathered = simulate::simulate(program, request.cluster, options);
  CHECK(ring.step < gathered.step);
  CHECK(ring.ranks[0].bytes_sent == gathered.ranks[0].bytes_sent);
  // With attention that takes no time all of it is seen.
  request.cluster.device.attained.attention_fraction = 1;
  request.cluster.device.attained.launch = Seconds(0);
  request.cluster.device.peaks = {{"bf16", cluster::FlopsPerSecond(1e30)}};
  request.cluster.device.memory_bandwidth = cluster::BytesPerSecond(1e30);
  for (const simulate::Options& way : {simulate::Options(), options}) {
    const simulate::RankResult rank = simulate::simulate(program, request.cluster, way).ranks[0];
    // But for what goes beside another collective.
    const Seconds exposed = rank.exposed_comm.at("cp") + rank.exposed_comm.at("dp");
    CHECK(exposed.value > 0.95 * rank.comm.at("cp").value);
  }
}

TEST_CASE("products in parts hide nothing of what goes over another kind of link") {
  Request request = small();
  cluster::Cluster& c = request.cluster;
  c.links[0].devices = 2;
  c.links.push_back(c.links[0]);
  c.links[1].devices = 0;
  const auto gained = [&](const char* plan) {  // seconds
    request.plan = compile::parse_plan(plan);
    const pipeline::Program program = program_of(request);
    const auto step = [&](const char* word) {
      simulate::Options options;
      REQUIRE(simulate::set_overlap(options.overlap, word));
      return simulate::simulate(program, c, options).step.value;
    };
    return step("collectives") - step("async-tp");
  };
  CHECK(gained("tp=4,sp") > 0);
  c.links[1].kind = cluster::LinkKind::kNetwork;
  CHECK(gained("tp=4,sp") == 0);
  CHECK(gained("tp=2,sp,dp=2") > 0);
  c.links[0].kind = cluster::LinkKind::kNetwork;  // nothing but a network
  CHECK(gained("tp=4,sp") > 0);
}

TEST_CASE(
    "products in parts hide their own gathers and scatters, and fp8 halves what is gathered") {
  Request request = small();
  request.plan = compile::parse_plan("tp=2,sp");
  request.cluster.device.peaks.emplace_back("fp8", cluster::FlopsPerSecond(1e30));
  const pipeline::Program program = program_of(request);
  simulate::Options waits, beside, parts;
  REQUIRE(simulate::set_overlap(waits.overlap, "collectives"));
  REQUIRE(simulate::set_overlap(waits.overlap, "no-tensor"));
  REQUIRE(simulate::set_overlap(beside.overlap, "collectives"));
  REQUIRE(simulate::set_overlap(parts.overlap, "async-tp"));
  const auto run = [&](const simulate::Options& options) {
    return simulate::simulate(program, request.cluster, options);
  };
  CHECK(run(parts).step < run(beside).step);
  CHECK(run(beside).step <= run(waits).step);
  CHECK(run(parts).ranks[0].bytes_sent == run(waits).ranks[0].bytes_sent);
  const auto links = [&] { return run(waits).ranks[0].comm.at("tp").value; };
  const double whole = links();
  waits.fp8 = cost::Fp8::kTensor;
  CHECK(links() < whole);
  // With products that take no time nothing hides.
  request.cluster.device.attained.launch = Seconds(0);
  request.cluster.device.peaks = {{"bf16", cluster::FlopsPerSecond(1e30)}};
  request.cluster.device.memory_bandwidth = cluster::BytesPerSecond(1e30);
  CHECK(run(parts).step.value == mw::test::close_to(run(beside).step.value));
  // But each device adds up its part of a scattered sum from all devices' shares, read whole and
  // written once.
  request.cluster.device.memory_bandwidth = cluster::BytesPerSecond(1e6);
  request.cluster.device.peaks = {{"bf16", cluster::FlopsPerSecond(1e9)}};
  request.cluster.links[0].bus_bandwidth = cluster::BytesPerSecond(1e30);
  request.cluster.links[0].latency = Seconds(0);
  simulate::Options slow = parts;
  slow.overlap.slowdown.fill(1);
  const double summed =
      run(slow).ranks[0].comm.at("tp").value - run(beside).ranks[0].comm.at("tp").value;
  double bytes = 0;
  for (const pipeline::Fragment& fragment : program.fragments) {
    for (const ir::Op& op : fragment.graph.ops) {
      if (op.kind != ir::OpKind::kReduceScatter) continue;
      const OpId made = fragment.graph.value(op.operands[0]).producer;
      if (!made.valid() || fragment.graph.op(made).kind != ir::OpKind::kDot) continue;
      bytes += static_cast<double>(fragment.graph.type(op.operands[0]).bytes().value);
    }
  }
  REQUIRE(bytes > 0);
  CHECK(summed == mw::test::close_to(bytes * 1.5 / 1e6).epsilon(1e-3));
}

TEST_CASE("gathers over a list of tensors cost each member's part, and copies of the whole") {
  Request request = small();
  request.plan = compile::parse_plan("dp=2,zero=3,grad_reduce=microbatch");
  const pipeline::Program program = program_of(request);
  const auto comm = [&] {
    return simulate::simulate(program, request.cluster).ranks[0].comm.at("dp").value;
  };
  const double plain = comm();
  cluster::Attained& attained = request.cluster.device.attained;
  attained.collective_copies = 2;
  const double copied = comm() - plain;
  CHECK(copied > 0);
  attained.collective_copies = 4;
  CHECK(comm() - plain == mw::test::close_to(2 * copied));
  attained.collective_copies = 0;
  attained.collective_member = Seconds(1);
  const double calls = (comm() - plain) / 2;  // of two members
  CHECK(calls == mw::test::close_to(std::round(calls)));
  CHECK(calls >= 3);
}

TEST_CASE("a stage's costs are the times of its F, I and W") {
  Request request = small();
  request.plan = compile::parse_plan("pp=4,schedule=zb-h1,microbatches=8");
  const std::vector<double> costs = stage_costs(request);
  REQUIRE(costs.size() == 3);
  // One block a stage. What a rank in the middle does more for eight more microbatches.
  const auto busy = [&] {
    const simulate::RankResult rank = mw::predict::predict(request).result.ranks[2];
    return (rank.compute + rank.gaps).value;
  };
  const double eight = busy();
  request.global_batch *= 2;
  request.plan = compile::parse_plan("pp=4,schedule=zb-h1,microbatches=16");
  CHECK(busy() - eight == mw::test::close_to(8 * (costs[0] + costs[1] + costs[2])).epsilon(0.001));
  request.global_batch /= 2;
  request.plan = compile::parse_plan("pp=4,schedule=1f1b,microbatches=8");
  CHECK(stage_costs(request) == costs);
}

TEST_CASE("gradients of complete layers are reduced beside the rest of the backward pass") {
  Request request = small();
  request.cluster.links[0].bandwidth = request.cluster.links[0].bus_bandwidth =
      cluster::BytesPerSecond(10e9);
  const auto exposed = [&](const char* plan, bool overlap) {
    request.plan = compile::parse_plan(plan);
    request.options.overlap.grad_reduce = overlap;
    return mw::predict::predict(request).exposed_comm.at("dp").value;
  };
  for (const std::string plan :
       {"dp=4", "dp=4,zero=1", "dp=4,pp=2,microbatches=2", "dp=4,tp=2,sp", "dp=4,tp=2,sp,zero=1"}) {
    CAPTURE(plan);
    const std::string layers = plan + ",bucket_mb=0";
    // One bucket is complete with the first layer's gradients, and hides nothing; with sequence
    // parallelism those of norms are apart from it.
    const double one = exposed(plan.c_str(), false);
    CHECK(exposed(plan.c_str(), true) <= mw::test::close_to(one));
    CHECK(exposed(plan.c_str(), true) > 0.9 * one);
    CHECK(exposed(layers.c_str(), true) < 0.8 * exposed(layers.c_str(), false));
  }
}

TEST_CASE("gradients are reduced early only where the rank then waits, if so asked") {
  Request request = small();
  request.cluster.links[0].bandwidth = request.cluster.links[0].bus_bandwidth =
      cluster::BytesPerSecond(10e9);
  const auto step = [&](const char* overlap) {
    request.options = {};
    REQUIRE(simulate::set_overlap(request.options.overlap, "none"));
    REQUIRE(simulate::set_overlap(request.options.overlap, overlap));
    return mw::predict::predict(request).step.value;
  };
  struct Case {
    const char* plan;
    bool idle;  // after the last backward of some stage that is not the rank's last
  };
  const std::vector<Case> cases = {
      {"dp=4,bucket_mb=0", false},
      {"dp=2,pp=4,microbatches=4,bucket_mb=0", false},
      // Ranks 0 and 3 are done with stage 3 long before stage 0, whose gradients come from afar.
      {"dp=2,pp=4,microbatches=4,schedule=chimera", true},
      {"dp=2,pp=4,microbatches=8,schedule=dualpipe", true},
      // The first chunk's backward of the last microbatch comes last, and the rank waits for it.
      {"dp=2,pp=2,microbatches=2,schedule=interleaved-1f1b,chunks=2,bucket_mb=0", true}};
  for (const Case& c : cases) {
    CAPTURE(std::string(c.plan));
    request.plan = compile::parse_plan(c.plan);
    const double late = step("none"), idle = step("grad_reduce_idle"), early = step("grad_reduce");
    CHECK(early <= idle);
    CHECK(idle <= mw::test::close_to(late));
    if (c.idle) {
      CHECK(idle < 0.98 * late);
    } else {
      CHECK(idle > 0.995 * late);  // its collectives wait for what they read alone
      CHECK(early < 0.999 * idle);
    }
  }
}

TEST_CASE("a stack without sums over all ranks has neither the norm's nor the loss's") {
  for (const char* plan : {"dp=2", "pp=2,microbatches=2", "dp=2,pp=2,microbatches=2",
                           "dp=2,tp=2,pp=2,microbatches=2", "dp=2,pp=2,microbatches=2,zero=1"}) {
    CAPTURE(plan);
    Request request = small();
    request.plan = compile::parse_plan(plan);
    const auto result = [&](bool sums) {
      request.cluster.stack.global_sums = sums;
      return simulate::simulate(program_of(request), request.cluster, request.options);
    };
    const simulate::Result with = result(true), without = result(false);
    CHECK(without.step.value < with.step.value);
    for (size_t r = 0; r < with.ranks.size(); ++r) {
      std::map<std::string, int64_t> left = with.ranks[r].collectives_by_group;
      // One all-reduce each: of the loss over pp and dp, of the norm over pp and tp; with ZeRO the
      // blocks' sums are gathered over dp before.
      const compile::Plan& p = request.plan;
      --left[p.pp > 1 ? p.dp > 1 ? "pp,dp" : "pp" : "dp"];
      if (p.pp > 1) --left[p.tp > 1 ? "pp,tp" : "pp"];
      if (p.zero > 0) --left["dp"];
      std::erase_if(left, [](const auto& entry) { return entry.second == 0; });
      CHECK(without.ranks[r].collectives_by_group == left);
    }
  }
}

TEST_CASE("messages and collectives of one link wait for each other") {
  // tp inside of units of two devices or across them; the pipeline's messages go the other way.
  // Links are so slow that collectives are bytes, not latency, which leaves their links free.
  Request request = small();
  request.cluster.links.push_back(request.cluster.links[0]);
  request.cluster.links[0].devices = 2;
  // Slow: a collective leaves a link free for its latency, and has it for its bytes.
  for (cluster::Link& link : request.cluster.links)
    link.bandwidth = link.bus_bandwidth = cluster::BytesPerSecond(2e8);
  request.options.trace = true;
  // How long messages are under way, all together, beside tp's collectives on the same links.
  const auto under_way = [&](const char* plan, int64_t devices) {
    request.cluster.links[0].devices = devices;
    request.plan = compile::parse_plan(plan);
    double sum = 0;
    for (const trace::Span& span : mw::predict::predict(request).result.trace.spans)
      sum += span.flow_out >= 0 ? span.duration.value : 0;
    return sum;
  };
  const char* plan = "tp=2,pp=2,microbatches=4";
  CHECK(under_way(plan, 4) > 1.2 * under_way(plan, 2));
}

TEST_CASE("MFU is the model's FLOPs over step, devices and the dense peak that is named") {
  Request request = small();
  request.plan = compile::parse_plan("dp=2,tp=2,pp=2,microbatches=4");
  const Prediction p = mw::predict::predict(request);
  const double flops = models::model_flops_per_token(request.model, 64).training.value * 16 * 64;
  CHECK(p.mfu == mw::test::close_to(flops / p.step.value / 8 / 100e12));
  CHECK(p.peak_format == "bf16");
  CHECK(p.tokens_per_s == mw::test::close_to(16 * 64 / p.step.value));
  CHECK(p.devices == 8);
  CHECK(p.memory.size() == 2);
  request.plan.recompute = compile::Recompute::kFull;
  const Prediction full = mw::predict::predict(request);
  // Recomputation is hardware's work alone: once more the layers' forward pass, attention's core
  // counted once more as a whole.
  CHECK(p.hfu == p.mfu);
  CHECK(full.mfu * full.step.value == mw::test::close_to(p.mfu * p.step.value));
  const models::ModelFlops token = models::model_flops_per_token(request.model, 64);
  CHECK(full.hfu / full.mfu ==
        mw::test::close_to(token.full_recompute.value / token.training.value));
  request.plan.recompute = compile::Recompute::kSelective;
  const Prediction selective = mw::predict::predict(request);
  CHECK(selective.hfu / selective.mfu ==
        mw::test::close_to(token.selective_recompute.value / token.training.value));
  CHECK(full.causal_mfu / full.mfu ==
        mw::test::close_to(1 - token.masked.value / token.training.value));
  // Told where it makes a difference, or leads to more than there is.
  for (const auto& [hfu, causal_mfu, is_told] :
       {std::tuple(0.6, 0.46, false), {0.6, 0.44, true}, {1.1, 0.46, true}}) {
    Prediction told = full;
    told.mfu = 0.5;
    told.hfu = hfu;
    told.causal_mfu = causal_mfu;
    const std::string text = remarks_text(told);
    const std::string remark = fmt::format("; with that half MFU is {:.1f} %\n", 100 * causal_mfu);
    CHECK((text.find(remark) != std::string::npos) == is_told);
  }
}

// With tp none of these: what is summed over tp is saved.
TEST_CASE("HFU counts of every second product what is made again") {
  Request request = small();
  request.model.hidden_size = 256;
  const double none = models::model_flops_per_token(request.model, 64).training.value;
  const double all = models::model_flops_per_token(request.model, 64).full_recompute.value;
  double first = 0;
  for (const char* plan :
       {"microbatches=4", "dp=4,zero=3,microbatches=2", "dp=2,pp=2,microbatches=2"}) {
    CAPTURE(std::string(plan));
    request.plan = compile::parse_plan(std::string(plan) + ",recompute=selective-op");
    const Prediction op = mw::predict::predict(request);
    CHECK(op.hfu > op.mfu);
    CHECK(op.hfu / op.mfu < all / none);
    if (first == 0) first = op.hfu / op.mfu;
    CHECK(op.hfu / op.mfu == mw::test::close_to(first));
  }
}

TEST_CASE("what lies outside the runs behind a profile is told") {
  Request request = small();
  request.plan = compile::parse_plan("dp=2,tp=2,zero=1,microbatches=2");
  CHECK(outside_profile(request) == std::vector<std::string>{"everything (no profile)"});
  request.cluster.profiles = {"a", "b"};
  CHECK(outside_profile(request) ==
        std::vector<std::string>{"everything (no profile; --profile takes a, b)"});
  cluster::Stack& stack = request.cluster.stack;
  stack.name = "stack";
  CHECK(outside_profile(request) ==
        std::vector<std::string>{"everything (no run is behind its constants)"});
  stack.measured = {{"tp", 1, 2}, {"zero", 0, 1}, {"cp", 1, 1}, {"experts", 0, 0}};
  stack.precisions = {"f16"};
  CHECK(outside_profile(request).empty());  // bf16 is as fast
  request.plan = compile::parse_plan("dp=2,tp=4,zero=3,microbatches=2");
  REQUIRE(set_precision(request, "f32"));
  CHECK(outside_profile(request) == std::vector<std::string>{"tp 4 (measured 1 to 2)",
                                                             "zero 3 (measured 0 to 1)",
                                                             "precision f32 (measured f16)"});
  request.plan = compile::parse_plan("cp=2,microbatches=2");
  request.model.mixture.experts = 8;
  REQUIRE(set_precision(request, "f16"));
  CHECK(outside_profile(request) ==
        std::vector<std::string>{"cp 2 (measured 1)", "experts 8 (measured 0)",
                                 "f16 products, which chip has not (taken at 100 TFLOP/s)"});
  // Attention of several kernels was measured up to so many keys.
  request.plan = compile::parse_plan("microbatches=2");
  request.model.mixture.experts = 0;
  REQUIRE(set_precision(request, "bf16"));
  request.seq_len = 4097;
  CHECK(outside_profile(request).empty());
  request.cluster.device.attained.fused_attention = false;
  CHECK(outside_profile(request) ==
        std::vector<std::string>{"attention of 4097 keys, taken as fused (measured unfused)"});
  request.seq_len = 4096;
  CHECK(outside_profile(request).empty());
}

TEST_CASE("what does not fit is said with what holds it") {
  Request request = small();
  request.plan = compile::parse_plan("microbatches=2");
  request.cluster.device.memory = Bytes(1000);
  const Prediction p = mw::predict::predict(request);
  CHECK(p.too_full() == std::vector<int32_t>{0});
  const std::string text = memory_findings(request, p);
  CHECK(text.find("memory: pipeline rank 0 needs ") == 0);
  CHECK(text.find("chip has 1000 B; fullest ") != std::string::npos);
  CHECK(text.find("more stages (pp) or tensor parallelism (tp)") != std::string::npos);
  // Just what full recomputation needs.
  request.plan.microbatches = request.global_batch;
  Request other = request;
  other.plan.recompute = compile::Recompute::kFull;
  request.cluster.device.memory = mw::predict::predict(other).memory[0].peak;
  CHECK(memory_findings(request, mw::predict::predict(request)).find("recompute=") !=
        std::string::npos);
}

TEST_CASE("the optimizer is sharded over context parallelism before anything is recomputed") {
  Request request = small();
  Bytes needed;
  for (const char* change : {"zero=1", "recompute=full"}) {
    request.plan = compile::parse_plan("cp=2,microbatches=8," + std::string(change));
    needed = std::max(needed, mw::predict::predict(request).needed());
  }
  request.plan = compile::parse_plan("cp=2,microbatches=8");
  request.cluster.device.memory = needed;
  const Prediction p = mw::predict::predict(request);
  REQUIRE(!p.too_full().empty());
  const std::string text = memory_findings(request, p);
  CAPTURE(text);
  CHECK(text.ends_with(": zero=1"));
}

TEST_CASE("smaller microbatches are a change that fits") {
  Request request = small();
  request.plan = compile::parse_plan("microbatches=4");
  const Bytes needed = mw::predict::predict(request).needed();
  request.plan = compile::parse_plan("microbatches=1");
  request.cluster.device.memory = needed;
  const Prediction p = mw::predict::predict(request);
  REQUIRE(!p.too_full().empty());
  const std::string text = memory_findings(request, p);
  CAPTURE(text);
  CHECK(text.ends_with(": microbatches=4"));
}

TEST_CASE("ranks that share one memory need it together") {
  Request request = small();
  request.plan = compile::parse_plan("dp=2,pp=2,microbatches=2");
  const Prediction apart = mw::predict::predict(request);
  request.cluster.cores = 4;
  const Prediction together = mw::predict::predict(request);
  REQUIRE(together.memory.size() == 2);
  CHECK(apart.needed() == std::max(apart.memory[0].peak, apart.memory[1].peak));
  CHECK(together.needed().value ==
        2 * (together.memory[0].peak.value + together.memory[1].peak.value));

  request.cluster.device.memory = Bytes(together.needed().value - 1);
  const Prediction full = mw::predict::predict(request);
  CHECK(full.too_full() == std::vector<int32_t>{0, 1});
  CHECK(memory_findings(request, full).find("memory: 4 ranks need ") == 0);
  request.cluster.cores = 0;
  CHECK(mw::predict::predict(request).too_full().empty());
}

TEST_CASE("a cluster that is too small and a batch that does not divide are said together") {
  Request request = small();
  request.plan = compile::parse_plan("dp=8,pp=4,microbatches=4");
  try {
    mw::predict::predict(request);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.findings().size() == 2);
    CHECK(error.findings()[0] == "box.toml: has 16 devices, the plan needs dp*tp*pp=8*1*4=32");
  }
}

// Ranks of a step of so many commands are lowered, converted, flattened and drawn by several
// threads.
TEST_CASE("a long step takes what two short ones say, in every precision") {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    CAPTURE(dtype_name(precision));
    const auto step_of = [&](int64_t microbatches) {
      Request request = small();
      request.precision = precision;
      request.plan.pp = 4;
      request.plan.microbatches = microbatches;
      request.global_batch = microbatches;
      request.options.trace = true;
      return std::pair(compile_step(request), request);
    };
    const auto [few, of_few] = step_of(64);
    const auto [more, of_more] = step_of(128);
    const auto [many, of_many] = step_of(2048);
    size_t commands = 0;
    for (const pipeline::RankProgram& rank : many.program.ranks) {
      commands += rank.commands.size();
      for (const pipeline::Buffer& buffer : rank.buffers) {
        if (buffer.category != pipeline::Category::kActivations || buffer.type().rank() < 4)
          continue;
        REQUIRE(buffer.type().dtype == precision);
      }
    }
    CHECK(commands > 50'000);
    for (const pipeline::Channel& channel : many.program.channels)
      CHECK(channel.type.dtype == precision);
    const Prediction short_step = predict::predict(of_few, few),
                     longer = predict::predict(of_more, more),
                     long_step = predict::predict(of_many, many);
    const double a_microbatch = (longer.step - short_step.step).value / 64;
    CHECK(long_step.step.value ==
          doctest::Approx(longer.step.value + 1920 * a_microbatch).epsilon(1e-9));
    const auto events = [](const Prediction& p) { return p.result.events; };
    CHECK(events(long_step) - events(longer) == 30 * (events(longer) - events(short_step)));
    for (size_t r = 0; r < 4; ++r) {
      CHECK(long_step.memory[r].peak == longer.memory[r].peak);
      CHECK(long_step.memory[r].alive == longer.memory[r].alive);
    }
    CHECK(long_step.result.trace.spans.size() - longer.result.trace.spans.size() >
          30 * 2 * 4 * 64);  // calls alone
    trace::Trace sorted = long_step.result.trace;
    trace::sort(sorted);
    CHECK(sorted.spans == long_step.result.trace.spans);
    CHECK(sorted.memory == long_step.result.trace.memory);
  }
}
