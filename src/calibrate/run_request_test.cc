#include "calibrate/run_request.h"

#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "calibrate/test_runs.h"

using namespace mw;
using namespace mw::calibrate;

namespace {

predict::Request request_for(const Run& run, const Machines& machines = a100()) {
  return request_of(run, machines, std::max<int64_t>(1, run.micro_batch),
                    compile::Recompute::kNone);
}

}  // namespace

TEST_CASE("a row's plan is what its columns say") {
  Run run = gpt(4, 64, 4, 64, 128, 16);
  run.dp = run.zero = 2;
  run.micro_batch = 2;
  CHECK(request_for(run).plan.microbatches == 4);
  CHECK(request_for(run).plan.zero == 2);
  run.ep = 2;
  CHECK(request_for(run).plan.ep == 2);
  struct Case {
    int64_t tp, cp;
    bool sp, plans_sp, regathers;
  };
  for (const Case& c : {Case{1, 1, true, false, false},
                        {2, 1, true, true, true},
                        {2, 1, false, false, false},
                        {1, 2, false, false, false}}) {
    run.tp = c.tp;
    run.cp = c.cp;
    run.sp = c.sp;
    CHECK(request_for(run).plan.sp == c.plans_sp);
    CHECK(request_for(run).plan.regather == c.regathers);
  }
  Machines machines = a100();
  machines.clusters[0].device.attained.reduce_bucket = 25.4;
  CHECK(request_for(run, machines).plan.bucket_mb == 25);
}

TEST_CASE("a row's device is known by each of its names, and a near miss is told") {
  Machines machines = a100();
  machines.clusters.push_back(machines.clusters[0]);
  machines.clusters[0].device.also = {"Ampere", "A100 (cluster 7)"};
  machines.clusters[1].device.name = "Ampere-2";
  machines.clusters[1].device.also = {"A100", "Ampere"};  // those of the first
  struct Case {
    const char *gpu, *named, *reason;
  };
  for (const Case& c : std::vector<Case>{
           {"A100", "A100", ""},
           {"Ampere", "A100", ""},
           {"A100 (cluster 7)", "A100", ""},
           {"Ampere-2", "Ampere-2", ""},
           {"Amper", "Amper", "no file of clusters/ has the device Amper, did you mean 'Ampere'?"},
           {"Volta", "Volta", "no file of clusters/ has the device Volta"}}) {
    CAPTURE(c.gpu);
    std::vector<Run> runs = {gpt(2, 64, 4, 64, 128, 4)};
    runs[0].gpu = c.gpu;
    name_devices(runs, machines);
    CHECK(runs[0].gpu == c.named);
    CHECK(reason(runs[0], machines) == c.reason);
  }
}

TEST_CASE("of pairs of pipelines the column vpp is their number") {
  Run run = gpt(4, 64, 4, 64, 128, 16);
  run.gpus = run.pp = 4;
  run.schedule = "chimera";
  for (const auto& [vpp, pairs] : {std::pair<int64_t, int64_t>{1, 0}, {2, 2}}) {
    run.vpp = vpp;
    CHECK(request_for(run).plan.pairs == pairs);
    CHECK(request_for(run).plan.chunks == 1);
  }
}

TEST_CASE("a row scatters and gathers as its stack does, unless it says that it does not") {
  Machines machines = a100();
  cluster::Profile profile;
  profile.device = "A100";
  profile.software = profile.stack.name = "stack";
  profile.stack.scatter_gather = true;
  machines.profiles = {profile};
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.software = "stack";
  CHECK(request_for(run, machines).options.scatter_gather);
  run.overlap = kNoScatterGather;
  CHECK(!request_for(run, machines).options.scatter_gather);
}

TEST_CASE("another network than the device usually has keeps its share of the cards") {
  Machines machines = a100();
  cluster::Cluster& c = machines.clusters[0];
  c.links[0].bus_bandwidth = cluster::BytesPerSecond(80e9);
  cluster::Link inside = c.links[0];
  inside.kind = cluster::LinkKind::kNvlink;
  inside.devices = 8;
  c.links.insert(c.links.begin(), inside);
  Run run = gpt(2, 64, 4, 64, 128, 4);
  run.nic_GBps = 25;
  const std::vector<cluster::Link> links = request_for(run, machines).cluster.links;
  CHECK(links[0].bandwidth.value == 100e9);
  CHECK(links[0].bus_bandwidth.value == 80e9);
  CHECK(links[1].bandwidth.value == mw::test::close_to(25e9));
  CHECK(links[1].bus_bandwidth.value == mw::test::close_to(20e9));
}

TEST_CASE("a mixture is the row's, and what its model's config.json says beside it") {
  Run run = gpt(4, 64, 4, 64, 128, 4);
  const auto model_for = [&](const char* name, const char* moe) {
    name_model(run, name, moe);
    return request_for(run).model;
  };
  const models::ModelConfig plain = model_for("Mixtral", "E8k2s0f96");
  CHECK(plain.family == models::Family::kLlama);
  CHECK(plain.mixture.experts == 8);
  CHECK(plain.mixture.top_k == 2);
  CHECK(plain.mixture.ffn_size == 96);
  CHECK(plain.mixture.shared_ffn_size == 0);
  CHECK(plain.mixture.dense_layers == 0);
  CHECK(plain.head_dim == 16);
  CHECK(plain.window == 0);
  const models::ModelConfig qwen = model_for("Qwen3-30B-A3B", "E8k2s2f96;3 dense");
  CHECK(qwen.mixture.shared_ffn_size == 2 * 96);
  CHECK(qwen.mixture.dense_layers == 3);
  CHECK(qwen.head_dim == 128);
  CHECK(qwen.normed_heads);
  const models::ModelConfig oss = model_for("GPT-OSS 120B", "E8k2s0f96");
  CHECK(oss.head_dim == 64);
  CHECK(oss.window == 128);
  CHECK(oss.attention_bias);
  CHECK(oss.mixture.bias);
  const models::ModelConfig latent = model_for("DeepSeek-V3", "E8k2s1f96;MLA");
  CHECK(latent.head_dim == 128 + 64);
  CHECK(latent.latent == models::LatentAttention{1536, 512, 64, 128});
  CHECK(latent.mixture.sigmoid);
  CHECK(latent.mixture.scale == 2.5);
}

TEST_CASE("shares of the peak and sequences a second are seconds of a step") {
  Run run = gpt(4, 64, 4, 64, 128, 16);
  run.gpus = run.dp = 2;
  const predict::Request request = request_for(run);
  run.metric = "mfu";
  run.value = 40;
  CHECK(published_step(run, request) ==
        mw::test::close_to(model_flops(request.model, 64, 16).value / 2 / (0.4 * 312e12)));
  run.metric = "model_tflops_per_gpu";
  CHECK(published_step(run, request) ==
        mw::test::close_to(model_flops(request.model, 64, 16).value / 2 / 40e12));
  run.metric = "sequences_per_s";
  CHECK(published_step(run, request) == mw::test::close_to(16.0 / 40));
}
