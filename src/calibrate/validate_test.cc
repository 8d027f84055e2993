#include "calibrate/validate.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "calibrate/choices.h"
#include "calibrate/test_runs.h"

using namespace mw;
using namespace mw::calibrate;

TEST_CASE("FLOPs of a step are the papers': PTD-P equation 3, SP paper appendix A") {
  struct Row {
    int64_t layers, hidden, heads, seq, vocab, batch;
  };
  for (const Row& row :
       {Row{96, 12288, 96, 2048, 51200, 1536}, Row{24, 2048, 16, 4096, 131072, 192}}) {
    const Run run = gpt(row.layers, row.hidden, row.heads, row.seq, row.vocab, row.batch);
    const predict::Request request = request_of(run, a100(), 1, compile::Recompute::kFull);
    const double B = static_cast<double>(row.batch), s = static_cast<double>(row.seq),
                 l = static_cast<double>(row.layers), h = static_cast<double>(row.hidden),
                 V = static_cast<double>(row.vocab);
    CHECK(model_flops(request.model, row.seq, row.batch).value ==
          mw::test::close_to(72 * B * s * l * h * h * (1 + s / (6 * h) + V / (12 * l * h))));
    CHECK(full_recompute_flops(request.model, row.seq, row.batch).value ==
          mw::test::close_to(96 * B * s * l * h * h * (1 + s / (6 * h) + V / (16 * l * h))));
  }
}

TEST_CASE("software that a device has no profile for gets the cluster's own, and the row says so") {
  Machines machines = a100();
  cluster::Profile profile;
  profile.name = profile.software = profile.stack.name = "stack";
  profile.device = machines.clusters[0].device.name;
  profile.file = "clusters/profiles/own.toml";
  machines.profiles = {profile};
  machines.clusters[0].profile = "own";
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.gpu = profile.device;
  run.software = "stack";
  CHECK(assumed_profile(run, machines) == "");
  run.software = "other";
  CHECK(assumed_profile(run, machines) == "");
  run.software = "zzz";
  CHECK(assumed_profile(run, machines) == "software stack");
  profile.software = "zzz";
  profile.device = "another";
  machines.profiles.push_back(profile);
  CHECK(assumed_profile(run, machines) == "software stack");
  machines.profiles[0].runs_that_say = {"engine"};
  run.notes = "under an engine";
  CHECK(assumed_profile(run, machines) == "");
  machines.profiles[0].runs_that_say = {};
  machines.clusters[0].profile = "";
  CHECK(assumed_profile(run, machines) == "");
}

TEST_CASE("published rates become seconds of a step") {
  Run run = gpt(48, 8192, 64, 2048, 51200, 1536);
  run.gpus = run.dp = 512;
  const predict::Request request = request_of(run, a100(), 1, compile::Recompute::kFull);
  run.metric = "hw_tflops_per_gpu";  // PTD-P table 1, 39.1B: 14.45 s
  run.value = 138;
  CHECK(published_step(run, request) == mw::test::close_to(14.45).epsilon(0.001));
  run.metric = "tokens_per_s_per_gpu";
  run.value = 1000;
  CHECK(published_step(run, request) == mw::test::close_to(1536.0 * 2048 / 512 / 1000));
  CHECK(stated_step(run) == published_step(run, request));
  run.metric = "mfu";
  CHECK(stated_step(run) == 0);
}

TEST_CASE("hardware FLOPs of a row that does not say recomputation are those of what is assumed") {
  Run run = gpt(48, 8192, 64, 2048, 51200, 1536);
  run.gpus = run.dp = 512;
  run.metric = "hw_tflops_per_gpu";
  run.value = 138;
  run.recompute = "unknown";
  for (const auto& [way, seconds] :
       {std::pair{compile::Recompute::kFull, 14.45}, {compile::Recompute::kNone, 10.9}}) {
    const predict::Request request = request_of(run, a100(), 1, way);
    CHECK(published_step(run, request) == mw::test::close_to(seconds).epsilon(0.005));
  }
}

TEST_CASE("a row that cannot be simulated says why") {
  Run run = gpt(2, 64, 4, 64, 128, 4);
  CHECK(reason(run, a100()) == "");
  run.moe = "E8k2";
  const std::string forms =
      "; must be such as E256k8s1f2048 (experts, experts of a token, shared ones, an expert's "
      "ffn), "
      "then also ;3 dense (layers) and ;MLA";
  CHECK(reason(run, a100()) == "moe: unknown form E8k2" + forms);
  for (const char* odd : {"E8k9s0f1", "E8k2s0f0", "E8k2s-1f128", "E8k2s0f128;x dense",
                          "E8k2s0f999999999999", "MLA"}) {
    run.moe = odd;
    CHECK(reason(run, a100()) == std::string("moe: unknown form ") + odd + forms);
  }
  run.moe = "E8k2s0f128;3 dense";
  CHECK(reason(run, a100()) == "moe: 3 dense layers of 2");
  run.moe = "E8k2s0f96;MLA";
  CHECK(reason(run, a100()) == "moe: MLA is of no known family of models");
  run.moe.clear();
  run.precision = "int4";
  CHECK(reason(run, a100()) == "precision: unknown 'int4', known: bf16, fp16, fp32, fp8, fp8-mx");
  run.precision = "fp16";
  run.zero = 7;
  CHECK(reason(run, a100()) == "zero: is 7, must be 0 to 3");
  run.zero = 0;
  run.moe = "E8k2s0f128";
  CHECK(reason(run, a100()) == "");
  run.moe.clear();
  run.overlap = kPostValidation;
  CHECK(reason(run, a100()) ==
        "overlap: post-validation is of several pipeline ranks, and pp is 1");
  run.overlap.clear();
  run.gpu = "B300";
  CHECK(reason(run, a100()) == "no file of clusters/ has the device B300");
  run.gpu = "A100";
  run.tp = 3;
  CHECK(reason(run, a100()) == "tp*pp*dp=3*1*1 is not the 1 devices");
  run.cp = 2;
  CHECK(reason(run, a100()) == "tp*pp*dp*cp=3*1*1*2 is not the 1 devices");
  run.dp = 0;
  CHECK(reason(run, a100()) == "dp: is empty; give all of tp, pp and dp, or neither pp nor dp");
}

TEST_CASE("all that is wrong with a row is its reason, in one text") {
  Run run = gpt(2, 64, 3, 64, 128, 5);
  run.findings = {"recompute: must be full", "tp: must be an integer"};
  run.tp = run.pp = 0;
  run.dp = 2;
  run.precision = "int4";
  run.zero = 5;
  run.gpu.clear();
  CHECK(reason(run, a100()) ==
        "recompute: must be full; tp: must be an integer; precision: unknown 'int4', known: bf16, "
        "fp16, fp32, fp8, fp8-mx; zero: is 5, must be 0 to 3; gpu: is empty; give a device that a "
        "file of clusters/ has; pp: is empty; give all of tp, pp and dp, or neither pp nor dp; 3 "
        "heads do not divide hidden 64; a batch of 5 is no multiple of dp 2 x microbatch 1");
}

TEST_CASE("a row that is not understood leaves the others as they are") {
  Run bad = gpt(2, 64, 4, 64, 128, 4);
  bad.findings = {"schedule: must be gpipe"};
  const Run good = gpt(2, 64, 4, 64, 128, 4);
  const std::vector<Comparison> made = validate({bad, good}, a100(), 1);
  CHECK(made[0].reason == "schedule: must be gpipe");
  CHECK(made[1].reason.empty());
  CHECK(made[1].predicted == validate({good}, a100(), 1)[0].predicted);
  CHECK(summaries(made).size() == 1);
  CHECK(summaries(made)[0].rows == 1);
}

TEST_CASE("of a row that publishes nothing there is a prediction and no error") {
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.value = 0;
  for (const char* metric : {"", "iteration_time", "mfu", "hw_tflops_per_gpu", "sequences_per_s"}) {
    CAPTURE(metric);
    run.metric = metric;
    const Comparison made = validate({run}, a100(), 1)[0];
    CHECK(made.reason.empty());
    CHECK(made.predicted > 0);
    CHECK(made.published == 0);
    CHECK(made.error == 0);
    CHECK(summaries({made}).empty());
  }
}

TEST_CASE("a row of more ranks than an int64_t counts is refused") {
  Run run = gpt(2, 64, 4, 128, 512, 8);
  run.tp = run.pp = run.dp = run.cp = run.global_batch = 1 << 20;
  CHECK(reason(run, a100()) == "tp*pp*dp*cp=1048576*1048576*1048576*1048576 is not the 1 devices");
}

TEST_CASE("a row of one stage has its schedule and its chunks, or says why it cannot") {
  Run run = gpt(4, 64, 4, 64, 128, 4);
  const auto plan_of = [&](const std::string& schedule, int64_t vpp) {
    run.schedule = schedule;
    run.vpp = vpp;
    return compile::short_form(request_of(run, a100(), 1, compile::Recompute::kNone).plan);
  };
  CHECK(plan_of("", 1) == "dp=1,tp=1,pp=1,microbatches=4");
  CHECK(plan_of("gpipe", 1) == "dp=1,tp=1,pp=1,schedule=gpipe,microbatches=4");
  CHECK(plan_of("", 2) == "dp=1,tp=1,pp=1,schedule=interleaved-1f1b,chunks=2,microbatches=4");
  CHECK(plan_of("zb-2p", 1) == "dp=1,tp=1,pp=1,schedule=zb-auto,microbatches=4,memory_limit=2");
  const auto reason_of = [&](const char* schedule, int64_t vpp) {
    run.schedule = schedule;
    run.vpp = vpp;
    return validate({run}, a100(), 1)[0].reason;
  };
  CHECK(reason_of("chimera", 1) == "schedule chimera: ranks=1 must be even; use 2 or 4");
  CHECK(reason_of("zb-2p", 1) == "");
  CHECK(reason_of("zb-2p", 2) ==
        "schedule zb-auto: chunks=2 must be 1: a rank hosts one stage; use interleaved-1f1b for "
        "more");
}

TEST_CASE("a row that cannot be simulated has its published step, as far as the row tells it") {
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.gpu = "B300";
  run.recompute = "full";
  run.value = 2;
  run.metric = "model_tflops_per_gpu";
  const double of_model = published_step(run);
  CHECK(of_model > 0);
  run.metric = "hw_tflops_per_gpu";
  CHECK(published_step(run) > 1.2 * of_model);
  run.recompute = "unknown";
  CHECK(published_step(run) == 0);
  run.metric = "mfu";
  CHECK(published_step(run) == 0);
  run.metric = "iteration_time";
  CHECK(published_step(run) == 2);
}

TEST_CASE("a row's profile is named by its words, by its software, or by the cluster file") {
  Machines machines = a100();
  machines.clusters[0].profile = "usual";
  for (const std::string name : {"usual", "stack", "engine"}) {
    cluster::Profile profile;
    profile.file = "clusters/profiles/" + name + ".toml";
    profile.device = "A100";
    profile.software = profile.stack.name = name;
    if (name == "engine") profile.runs_that_say = {"SpeedEngine"};
    machines.profiles.push_back(profile);
  }
  const auto stack_of = [&](const Run& run) {
    return request_of(run, machines, 1, compile::Recompute::kNone).cluster.stack.name;
  };
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.software = "stack";
  CHECK(stack_of(run) == "stack");
  run.notes = "SpeedEngine around the stack's layers";
  CHECK(stack_of(run) == "engine");
  run.notes.clear();
  run.software = "other";
  CHECK(stack_of(run) == "usual");
}

TEST_CASE("full recomputation gathers once where the stack keeps what it gathered") {
  Machines machines = a100();
  cluster::Profile profile;
  profile.device = "A100";
  profile.software = profile.stack.name = "stack";
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.software = "stack";
  run.tp = 2;
  run.sp = 1;
  for (const bool keeps : {false, true}) {
    CAPTURE(keeps);
    profile.stack.keeps_gathered = keeps;
    machines.profiles = {profile};
    CHECK(request_of(run, machines, 1, compile::Recompute::kFull).plan.regather == !keeps);
    CHECK(request_of(run, machines, 1, compile::Recompute::kSelective).plan.regather);
  }
}

TEST_CASE("a GPT whose queries share keys is a GPT with output weights of its own") {
  Run run = gpt(2, 64, 4, 64, 128, 4);
  CHECK(request_of(run, a100(), 1, compile::Recompute::kNone).model.tie_word_embeddings);
  run.kv_heads = 2;
  const models::ModelConfig model = request_of(run, a100(), 1, compile::Recompute::kNone).model;
  CHECK(model.family == models::Family::kGpt2);
  CHECK(model.kv_heads == 2);
  CHECK(!model.tie_word_embeddings);
}

TEST_CASE("a row of another version of its stack hides what that version does") {
  Machines machines = a100();
  cluster::Profile profile;
  profile.file = "clusters/profiles/stack.toml";
  profile.device = "A100";
  profile.software = profile.stack.name = "stack";
  profile.stack.overlap = {"collectives"};
  cluster::ProfileSettings& version = profile.versions.emplace_back();
  version.runs_that_say = {"arXiv:1"};
  version.kernels.fused_attention = false;
  version.stack.overlap = {"serial"};
  machines.profiles = {profile};
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.software = "stack";
  const auto overlap_of = [&](const Run& row) {
    return request_of(row, machines, 1, compile::Recompute::kNone).options.overlap;
  };
  const auto fused = [&](const Run& row) {
    return request_of(row, machines, 1, compile::Recompute::kNone)
        .cluster.device.attained.fused_attention;
  };
  CHECK(!overlap_of(run).serial);
  CHECK(overlap_of(run).collectives);
  CHECK(fused(run));
  run.source = "arXiv:1 Table 1";
  CHECK(!fused(run));
  CHECK(overlap_of(run).serial);
  CHECK(!overlap_of(run).collectives);
}

TEST_CASE("what a row leaves open of its layout is every depth, and every division of a layer") {
  Machines machines = a100();
  Run run = gpt(8, 64, 4, 64, 128, 8);
  CHECK(layouts(run, machines).size() == 1);
  run.gpus = 4;
  run.schedule = "1f1b";
  run.pp = run.dp = 0;
  REQUIRE(layouts(run, machines).size() == 2);
  CHECK(layouts(run, machines)[1].pp == 4);
  CHECK(layouts(run, machines)[1].dp == 1);
  run.gpus = 8;
  run.tp = 0;
  machines.clusters[0].links[0].kind = cluster::LinkKind::kNvlink;
  machines.clusters[0].links[0].devices = 8;
  std::vector<std::string> open;
  for (const Run& one : layouts(run, machines)) open.push_back(layout(one));
  CHECK(open == std::vector<std::string>{"tp=1 pp=2 dp=4 mb=1 full", "tp=1 pp=4 dp=2 mb=1 full",
                                         "tp=1 pp=8 dp=1 mb=1 full", "tp=2 pp=2 dp=2 mb=1 full",
                                         "tp=2 pp=4 dp=1 mb=1 full", "tp=4 pp=2 dp=1 mb=1 full"});
  CHECK(layout(run) == "any layout mb=1 full");
  run.global_batch = 48;
  run.gpus = 12;  // 6 stages do not divide 8 blocks, nor 8 blocks with embedding and head
  run.tp = 1;
  CHECK(layouts(run, machines).size() == 2);
  run.layers = 10;
  REQUIRE(layouts(run, machines).size() == 5);
  CHECK(layouts(run, machines)[3].pp == 6);
  run.gpus = 4;
  run.layers = 8;
  run.pp = 4;
  run.dp = 1;
  run.vpp_unknown = true;
  REQUIRE(layouts(run, machines).size() == 2);
  CHECK(layouts(run, machines)[1].vpp == 2);
  run.layers = 22;  // 24 with embedding and head
  REQUIRE(layouts(run, machines).size() == 4);
  CHECK(layouts(run, machines)[2].vpp == 3);
  CHECK(layouts(run, machines)[3].vpp == 6);
  cluster::Profile plain;
  plain.device = "A100";
  plain.software = run.software = "plain";
  plain.stack.lacking = {cluster::Lacking::kInterleaved};
  machines.profiles = {plain};
  CHECK(layouts(run, machines).size() == 1);
}

TEST_CASE("blocks two short of an even deal leave one fewer on the first and the last stage") {
  Run run = gpt(6, 64, 4, 64, 128, 8);
  run.gpus = run.pp = 4;
  const predict::Request request = request_of(run, a100(), 1, compile::Recompute::kNone);
  CHECK(request.plan.layers == std::vector<int64_t>{1, 2, 2, 1});
}

TEST_CASE("what a row does not say is the fastest that fits, and is said") {
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.recompute = "unknown";
  run.micro_batch = 0;
  const std::vector<Comparison> made = validate({run}, a100(), 1);
  REQUIRE(made.size() == 1);
  CHECK(made[0].reason == "");
  CHECK(made[0].assumed == "microbatch 4, recompute none");
  CHECK(made[0].error == made[0].predicted - 1);
}

TEST_CASE(
    "a zero-bubble row holds no copy to restore from, and a row at its best says its layout") {
  Machines machines = a100();
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.schedule = "zb-h1";
  run.gpus = run.pp = 2;
  run.recompute = "none";
  const Comparison plain = validate({run}, machines, 1)[0];
  run.overlap = "post-validation";
  const Comparison made = validate({run}, machines, 1)[0];
  CHECK(made.reason == "");
  CHECK(made.predicted_GiB == plain.predicted_GiB);
  CHECK(made.predicted < plain.predicted);  // no rank waits for the others' end
  run.tp = run.pp = run.dp = 0;
  CHECK(validate({run}, machines, 1)[0].assumed == "tp=1, 2 stages");
}

TEST_CASE("ZB-1p and ZB-2p are the heuristic under their memory limits, for the simulated costs") {
  Run run = gpt(4, 64, 4, 64, 128, 8);
  run.gpus = run.pp = 4;
  run.dp = 1;
  run.recompute = "none";
  double held[2] = {};
  for (const int limit : {1, 2}) {
    run.schedule = limit == 1 ? "zb-1p" : "zb-2p";
    const predict::Request request = request_of(run, a100(), 1, compile::Recompute::kNone);
    CHECK(request.plan.schedule == "zb-auto");
    CHECK(request.plan.memory_limit == 4 * limit);
    const Comparison made = validate({run}, a100(), 1)[0];
    CHECK(made.reason == "");
    CHECK(made.predicted > 0);
    held[limit - 1] = made.predicted_GiB;
  }
  CHECK(held[1] > held[0]);
}

TEST_CASE("several changes at once, compiled once, are the same as each by itself") {
  const Run run = gpt(2, 64, 4, 64, 128, 4);
  const Change slower = [](predict::Request& request) {
    request.cluster.device.attained.matrix_fraction /= 2;
  };
  const auto all = validate({run}, a100(), 1, std::vector<Change>{{}, slower});
  REQUIRE(all.size() == 2);
  CHECK(all[0][0].predicted == validate({run}, a100(), 1)[0].predicted);
  CHECK(all[1][0].predicted == validate({run}, a100(), 1, slower)[0].predicted);
  CHECK(all[1][0].predicted > all[0][0].predicted);
}

static void switch_off(const std::string& name, predict::Request& request) {
  for (const Ablation& ablation : ablations()) {
    if (ablation.name == name) return ablation.change(request);
  }
  FAIL(name);
}

TEST_CASE("without collectives' share of the links a switch's ports carry all that they can") {
  predict::Request request;
  cluster::Link link;
  link.kind = cluster::LinkKind::kNvlink;
  link.devices = 8;
  link.bandwidth = cluster::BytesPerSecond(450e9);
  link.bus_bandwidth = cluster::BytesPerSecond(360e9);
  link.switch_bus_bandwidth = cluster::BytesPerSecond(480e9);
  link.hop_factor = 0;
  request.cluster.links = {link};
  switch_off("collectives' share of the links", request);
  const cluster::Link& off = request.cluster.links[0];
  CHECK(off.bus_bandwidth == link.bandwidth);
  CHECK(off.switch_port_bandwidth == link.bandwidth);
  CHECK(off.switch_bus_bandwidth >= link.bandwidth * 2.0);  // no bound
  request.cluster.links[0].switch_bus_bandwidth = cluster::BytesPerSecond(0);
  request.cluster.links[0].switch_port_bandwidth = cluster::BytesPerSecond(0);
  switch_off("collectives' share of the links", request);  // a switch that does not add
  CHECK(request.cluster.links[0].switch_bus_bandwidth.value == 0);
}

TEST_CASE("without what the stack adds a message has all of its card") {
  predict::Request request;
  request.cluster.device.attained.message_network_fraction = 0.5;
  request.cluster.device.attained.message_latency = Seconds(1e-6);
  request.cluster.device.attained.message_bandwidth = cluster::BytesPerSecond(1e9);
  switch_off("what the stack adds to messages", request);
  CHECK(request.cluster.device.attained.message_network_fraction == 1);
  CHECK(request.cluster.device.attained.message_latency.value == 0);
  CHECK(request.cluster.device.attained.message_bandwidth.value == 0);
}

TEST_CASE("each mechanism that is switched off is so in what is held, too") {
  Machines machines = a100();
  cluster::Profile profile;
  profile.device = "A100";
  profile.software = profile.stack.name = "stack";
  profile.stack.autograd = true;
  profile.kernels.fused_attention = false;
  machines.profiles = {profile};
  Run run = gpt(2, 64, 4, 1024, 128, 4);
  run.software = "stack";
  std::vector<Change> changes = {{}};
  for (const Ablation& ablation : ablations()) changes.push_back(ablation.change);
  const auto all = validate({run}, machines, 1, changes);
  for (size_t c = 0; c < changes.size(); ++c) {
    CAPTURE(c);
    const Comparison alone = validate({run}, machines, 1, changes[c])[0];
    CHECK(alone.reason == "");
    CHECK(all[c][0].predicted == alone.predicted);
    CHECK(all[c][0].predicted_GiB == alone.predicted_GiB);
  }
}

TEST_CASE("an order that is made for costs is made anew for those of a change") {
  Run run = gpt(8, 64, 4, 512, 65536, 16);
  run.gpus = run.pp = 4;
  run.dp = 1;
  run.recompute = "none";
  const std::vector<Change> changes = {
      {},
      [](predict::Request& request) { request.cluster.device.attained.launch = Seconds(1e-5); },
      [](predict::Request& request) { request.cluster.device.attained.matrix_fraction = 1e-4; }};
  for (const char* kind : {"zb-1p", "zb-2p"}) {
    run.schedule = kind;
    const auto all = validate({run}, a100(), 1, changes);
    for (size_t c = 0; c < changes.size(); ++c) {
      CAPTURE(kind);
      CAPTURE(c);
      const Comparison alone = validate({run}, a100(), 1, changes[c])[0];
      CHECK(alone.reason == "");
      CHECK(all[c][0].predicted == alone.predicted);
    }
  }
}

TEST_CASE("a stack without selective recomputation recomputes all or nothing") {
  Machines machines = a100();
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.recompute = "unknown";
  using compile::Recompute;
  CHECK(recomputes(run, machines) ==
        std::vector<Recompute>{Recompute::kNone, Recompute::kSelective, Recompute::kFull});
  cluster::Profile plain;
  plain.device = run.gpu;
  plain.software = run.software;
  plain.stack.lacking = {cluster::Lacking::kSelective};
  machines.profiles = {plain};
  CHECK(recomputes(run, machines) == std::vector<Recompute>{Recompute::kNone, Recompute::kFull});
}

TEST_CASE("a summary has mean, bias, worst and rank correlation") {
  Comparison a, b, c;
  a.predicted = 1.1, a.published = 1, a.error = 0.1;
  b.predicted = 1.6, b.published = 2, b.error = -0.2;
  c.predicted = 3, c.published = 3, c.error = 0;
  const Summary s = summary("x", {&a, &b, &c});
  CHECK(s.rows == 3);
  CHECK(s.mean == mw::test::close_to(0.1));
  CHECK(s.bias == mw::test::close_to(-0.1 / 3));
  CHECK(s.worst == -0.2);
  REQUIRE(s.rank_correlation);
  CHECK(*s.rank_correlation == mw::test::close_to(1));
  c.published = b.published = a.published;
  CHECK_FALSE(summary("x", {&a, &b, &c}).rank_correlation);
}
