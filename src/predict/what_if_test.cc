#include "predict/what_if.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_thrown_by.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;

namespace {

// With slow products, and pairs of chips on a slow network.
Request small(const char* plan) {
  Request request = predict::test::small();
  cluster::Cluster& c = request.cluster;
  c.device.peaks = {{"f32", cluster::FlopsPerSecond(1e11)},
                    {"bf16", cluster::FlopsPerSecond(1e11)}};
  c.device.attained.launch = Seconds(1e-7);
  c.links[0].name = "inner";
  c.links[0].devices = 2;
  c.links[0].bandwidth = c.links[0].bus_bandwidth = cluster::BytesPerSecond(1e9);
  c.links.push_back(c.links[0]);
  c.links[1].name = "outer";
  c.links[1].kind = cluster::LinkKind::kNetwork;
  c.links[1].devices = 0;
  request.plan = compile::parse_plan(plan);
  return request;
}

std::vector<WhatIf> rows_of(const Request& request, const std::vector<const char*>& vary) {
  std::vector<Variation> variations;
  for (const char* text : vary) variations.push_back(parse_variation(text));
  return what_if(request, variations);
}

std::string message_of(const Request& request, const std::vector<const char*>& vary) {
  return mw::test::thrown_by([&] { rows_of(request, vary); });
}

}  // namespace

TEST_CASE("several variations make the product, the last one varying fastest") {
  const Request request = small("dp=2,tp=2,pp=2,microbatches=4");
  const std::vector<WhatIf> rows = rows_of(request, {"link_bandwidth=0.5,1,2", "microbatches=2,4"});
  REQUIRE(rows.size() == 6);
  CHECK(rows[0].values == std::vector<std::string>{"0.5", "2"});
  CHECK(rows[3].values == std::vector<std::string>{"1", "4"});
  const double base = predict::predict(request).step.value;
  CHECK(rows[3].prediction->step.value == base);
  CHECK(rows[1].prediction->step.value > base);
  CHECK(rows[5].prediction->step.value < base);
  CHECK(rows[0].request.plan.microbatches == 2);
}

TEST_CASE("a figure changes what it is about") {
  const Request request = small("dp=2,tp=2,pp=2,microbatches=4");
  const double base = predict::predict(request).step.value;
  for (const char* faster :
       {"matrix_peak=2", "memory_bandwidth=2", "host_time=0.5", "link_latency=0.5",
        "link_bandwidth.inner=2", "link_bandwidth.outer=2"})
    CHECK_MESSAGE(rows_of(request, {faster})[0].prediction->step.value < base, faster);
  const WhatIf small_memory = rows_of(request, {"memory_size=0.0001"})[0];
  CHECK(small_memory.prediction->step.value == base);
  CHECK(!small_memory.prediction->too_full().empty());
  const WhatIf batch = rows_of(request, {"global_batch=32"})[0];
  CHECK(batch.prediction->step.value > base);
}

TEST_CASE("a factor of a link is of all its rates, and of what stands for its latency") {
  Request request = small("dp=2");
  const auto rates = {&cluster::Link::bandwidth, &cluster::Link::bus_bandwidth,
                      &cluster::Link::switch_bus_bandwidth, &cluster::Link::switch_port_bandwidth};
  for (const auto rate : rates) request.cluster.links[0].*rate = cluster::BytesPerSecond(1e9);
  request.cluster.links[0].hop_factor = 3;
  const auto link = [&](const char* key) {
    return changed(request, {{key, "0.5"}}).cluster.links[0];
  };
  for (const char* key : {"link_bandwidth", "link_bandwidth.inner"}) {
    for (const auto rate : rates) CHECK((link(key).*rate).value == 0.5e9);
    CHECK(link(key).hop_factor == 3);
  }
  CHECK(link("link_bandwidth.outer").bandwidth.value == 1e9);
  CHECK(link("link_latency").latency == request.cluster.links[0].latency * 0.5);
  CHECK(link("link_latency").hop_factor == 1.5);
  CHECK(link("link_latency").bandwidth.value == 1e9);
}

TEST_CASE("sizes that are varied are rows of steps of their own") {
  const Request request = small("dp=2,microbatches=2");
  const std::vector<WhatIf> rows = rows_of(request, {"seq_len=32,64", "global_batch=16,32"});
  REQUIRE(rows.size() == 4);
  for (const WhatIf& row : rows) {
    const Prediction alone = predict::predict(row.request);
    CHECK(row.prediction->step == alone.step);
    CHECK(row.prediction->needed() == alone.needed());
  }
}

TEST_CASE("rows of one step hold what each by itself holds, with other memory too") {
  Request request = small("dp=2,pp=2,microbatches=4");
  request.cluster.stack.allocator = cluster::Allocator::kExpandable;
  request.cluster.device.memory = Bytes(int64_t{4} << 30);
  const std::vector<WhatIf> rows =
      rows_of(request, {"memory_size=0.0005,1,2", "link_bandwidth=1,2"});
  std::vector<const void*> held;
  for (const WhatIf& row : rows) {
    const predict::Prediction alone = predict::predict(row.request);
    CHECK(row.prediction->needed() == alone.needed());
    CHECK(row.prediction->step.value == alone.step.value);
    CHECK(row.prediction->too_full() == alone.too_full());
    held.push_back(row.prediction->held.get());
  }
  REQUIRE(held.size() == 6);
  CHECK(!rows[0].prediction->too_full().empty());
  CHECK(rows[2].prediction->too_full().empty());
  CHECK(held[0] == held[1]);
  CHECK(held[0] != held[2]);
}

TEST_CASE("dp and microbatches of as many sequences follow the devices that are varied") {
  const Request request = small("dp=2,tp=2,pp=2,microbatches=4");
  const auto as_plan = [&](const char* plan) {
    Request other = request;
    other.plan = compile::parse_plan(plan);
    return predict::predict(other).step;
  };
  const std::vector<WhatIf> rows = rows_of(request, {"gpus=4,8,16,12"});
  CHECK(rows[0].prediction->step == as_plan("tp=2,pp=2,microbatches=8"));
  CHECK(rows[1].prediction->step == predict::predict(request).step);
  CHECK(rows[2].prediction->step == as_plan("dp=4,tp=2,pp=2,microbatches=2"));
  CHECK(rows[3].reason ==
        "gpus: 12 give dp=3, which does not divide the batch of 16; vary global_batch, too");
  Request larger = request;
  larger.global_batch = 24;
  CHECK(rows_of(larger, {"gpus=4,12"})[1].reason ==
        "gpus: 12 give dp=3, which does not divide the batch's 8 microbatches; vary microbatches, "
        "too");
  const std::vector<WhatIf> both = rows_of(request, {"gpus=4,6", "microbatches=2", "zero=1"});
  CHECK(both[0].prediction->step == as_plan("tp=2,pp=2,microbatches=2,zero=1"));
  CHECK(both[1].reason == "gpus: is 6, no multiple of the 4 devices of a replica");
  CHECK(message_of(request, {"gpus=4", "dp=2"}) ==
        "--vary gpus=4 dp=2: gpus: is 4, but the plan has dp*tp*pp=2*2*2=8 ranks");
  CHECK(message_of(request, {"gpus=0"}) == "--vary gpus: must be a whole number from 1 on, is '0'");
}

TEST_CASE("a precision that is varied is that of another request") {
  Request request = small("dp=2,tp=2,pp=2,microbatches=4");
  request.cluster.device.peaks.emplace_back("tf32", cluster::FlopsPerSecond(2e11));
  request.precision = DType::kF32;
  request.options.tf32 = true;
  const std::vector<WhatIf> rows = rows_of(request, {"precision=f32,bf16,fp8", "dp=2"});
  Request half = request;
  set_precision(half, "bf16");
  half.options.tf32 = false;
  CHECK(rows[0].prediction->step == predict::predict(request).step);
  CHECK(rows[1].prediction->step == predict::predict(half).step);
  CHECK(rows[0].prediction->step != rows[1].prediction->step);
  CHECK(rows[2].reason ==
        "box.toml: chip has no fp8 products (peak_TFLOPs.fp8); use --precision bf16");
  CHECK(message_of(request, {"precision=bf17"}) ==
        "--vary precision: must be one of bf16, f16, f32, fp8, mxfp8, is 'bf17', did you mean "
        "'bf16'?");
}

TEST_CASE("host_time is of all that the host does, and of the launch gap") {
  const auto step_of = [](const char* plan, Seconds cluster::Attained::* time, const char* factor) {
    Request request = small(plan);
    request.cluster.device.attained.host_op = Seconds(1e-9);
    request.cluster.device.attained.*time = Seconds(1);  // nothing else is nearly as long
    return rows_of(request, {factor})[0].prediction->step.value;
  };
  for (const auto time : {&cluster::Attained::launch, &cluster::Attained::host_op,
                          &cluster::Attained::host_collective, &cluster::Attained::step_overhead}) {
    const char* plan = "tp=2,microbatches=2";
    const double whole = step_of(plan, time, "host_time=1");
    CHECK(step_of(plan, time, "host_time=0.5") < 0.75 * whole);
  }
}

TEST_CASE("a row says what lies outside the profile where the first one does not") {
  Request request = small("dp=2,tp=2,pp=2,microbatches=4");
  request.cluster.stack.name = "stack";
  request.cluster.stack.measured = {{"tp", 1, 2}, {"devices", 16, 32}};
  const std::vector<Variation> variations = {parse_variation("tp=2,4")};
  const Prediction base = predict::predict(request);
  const std::string text = to_text(base, variations, what_if(request, variations));
  CAPTURE(text);
  CHECK(text.find("outside of the profile: tp 4 (measured 1 to 2)\n") != std::string::npos);
  CHECK(text.find("outside of what the profile 'stack' was measured on: devices 8 (measured 16 "
                  "to 32)") != std::string::npos);
}

TEST_CASE("factors of peak and bandwidth reach rates that were measured by op") {
  Request request = small("microbatches=2");
  request.cluster.device.kernel_rates = {{"dot", 1e9}, {"attention", 1e9}, {"attention_grad", 1e9}};
  const auto faster = [&](const char* vary) {
    const std::vector<WhatIf> rows = rows_of(request, {vary});
    return rows[0].prediction->step.value / rows[1].prediction->step.value;
  };
  CHECK(faster("matrix_peak=1,2") > 1.9);
  CHECK(faster("memory_bandwidth=1,2") < 1.01);
  request.cluster.device.kernel_rates = {{"layer_norm", 1e5}, {"gelu", 1e5}};
  CHECK(faster("matrix_peak=1,2") < 1.01);
  CHECK(faster("memory_bandwidth=1,2") > 1.3);
}

TEST_CASE("a combination that cannot be is a row with its reason") {
  const Request request = small("dp=2,pp=2,microbatches=4");
  const std::vector<WhatIf> rows = rows_of(request, {"microbatches=4,3", "dp=2,64"});
  CHECK(rows[0].prediction.has_value());
  CHECK(rows[1].reason.find("box.toml: has 16 devices, the plan needs dp*tp*pp=64*1*2=128; plan: "
                            "global_batch=16 is not divisible by dp*microbatches=64*4=256") == 0);
  CHECK(rows[2].reason.find("global_batch=16 is not divisible by dp*microbatches=2*3=6") !=
        std::string::npos);
}

TEST_CASE("where no combination can be, all reasons are told") {
  const Request request = small("dp=2,pp=2,microbatches=4");
  CHECK(message_of(request, {"microbatches=3,5", "link_bandwidth=2"}) ==
        "--vary microbatches=3 link_bandwidth=2: plan: global_batch=16 is not divisible by "
        "dp*microbatches=2*3=6; every microbatch needs a whole number of sequences: use "
        "microbatches=1, 2, 4 or 8\n"
        "--vary microbatches=5 link_bandwidth=2: plan: global_batch=16 is not divisible by "
        "dp*microbatches=2*5=10; every microbatch needs a whole number of sequences: use "
        "microbatches=1, 2, 4 or 8");
  CHECK(message_of(request, {"costs=1:1:1"}) ==
        "--vary costs=1:1:1: costs: are what zb-auto minimises, and the schedule is 1f1b");
}

TEST_CASE("more combinations than a table has rows are refused") {
  std::string values = "=1";
  for (int i = 0; i < 100; ++i) values += ",1";
  const std::string latency = "link_latency" + values, bandwidth = "link_bandwidth" + values;
  CHECK(message_of(small("dp=2"), {latency.c_str(), bandwidth.c_str()}) ==
        "--vary: the values make more than 10000 combinations; give fewer");
  const Variation hundred{"link_latency", std::vector<std::string>(100, "1")};
  const Variation other{"link_bandwidth", hundred.values};
  CHECK(findings(small("dp=2"), {hundred, other}).empty());
}

TEST_CASE("rows as JSON have simulate's keys, and the plan of the base and of what can be") {
  const Request request = small("dp=2,pp=2,microbatches=4");
  const std::vector<Variation> variations = {parse_variation("microbatches=4,3"),
                                             parse_variation("schedule=1f1b,dualpipe")};
  const std::vector<WhatIf> rows = what_if(request, variations);
  const Prediction base = predict::predict(request);
  const Json json = to_json(request, base, variations, rows), full = to_json(request, base);
  const auto at = [](const Json& of, const char* key) { return of.at(key, "json").dump(); };
  const JsonArray& list = json.at("rows", "json").as_array("rows");
  for (const Json* one : {&json.at("base", "json"), &list[0]}) {
    CHECK(at(*one, "plan") == "\"dp=2,tp=1,pp=2,schedule=1f1b,microbatches=4\"");
    for (const char* key : {"exposed_comm_s", "peak_bytes", "memory_needed_bytes"})
      CHECK(at(*one, key) == at(full, key));
  }
  CHECK(at(list[2], "plan") == "\"dp=2,tp=1,pp=2,schedule=1f1b,microbatches=3\"");
  CHECK(at(list[3], "plan") == "null");
}

TEST_CASE("chunks bring their schedule along where the plan's own does not take as many") {
  const Request request = small("pp=2,microbatches=4");
  const std::vector<WhatIf> rows = rows_of(request, {"chunks=1,2"});
  REQUIRE(rows[1].prediction.has_value());
  CHECK(rows[1].request.plan.schedule == "interleaved-1f1b");
  CHECK(rows[1].followers == "with schedule=interleaved-1f1b");
  CHECK(rows[0].request.plan == request.plan);
  CHECK(rows[0].followers == "");
  const Request whole = small("pp=2,microbatches=4,schedule=gpipe");
  CHECK(rows_of(whole, {"chunks=2"})[0].request.plan.schedule == "looped-bfs");
  for (const std::string kind : {"interleaved-zb", "interleaved-1f1b", "looped-bfs"}) {
    const Request several = small(("pp=2,microbatches=4,chunks=2,schedule=" + kind).c_str());
    CHECK(rows_of(several, {"chunks=1"})[0].request.plan.schedule == kind);
  }
}

TEST_CASE("chunks stay under another schedule that takes as many, options where it has them") {
  const Request request = small(
      "pp=2,microbatches=8,chunks=4,schedule=interleaved-1f1b,group=4,layers=1:0:1:0:1:0:0:1");
  const std::vector<WhatIf> same =
      rows_of(request, {"schedule=interleaved-1f1b,interleaved-zb,looped-bfs"});
  const double base = predict::predict(request).step.value;
  CHECK(same[0].request.plan == request.plan);
  CHECK(same[0].prediction->step.value == base);
  CHECK(same[0].followers == "");
  CHECK(same[1].request.plan.chunks == 4);
  CHECK(same[1].request.plan.group == 4);
  CHECK(same[1].followers == "");
  CHECK(same[2].request.plan.chunks == 4);
  CHECK(same[2].followers == "without group");
  const Request even = small("pp=2,microbatches=8,chunks=2,schedule=interleaved-1f1b,group=4");
  const std::vector<WhatIf> others = rows_of(even, {"schedule=1f1b,zb-v,zb-auto"});
  CHECK(others[0].followers == "with chunks=1, without group");
  CHECK(others[1].request.plan.chunks == 2);
  CHECK(others[1].followers == "without group");
  CHECK(others[2].request.plan.schedule == "zb-auto");
  const Request limited = small("pp=2,microbatches=8,schedule=zb-auto,memory_limit=3,costs=1:1:1");
  CHECK(rows_of(limited, {"schedule=1f1b"})[0].followers == "without memory_limit, costs");
  // Nobody chose them where a schedule takes only one number of stages.
  CHECK(rows_of(small("pp=2,microbatches=8"), {"schedule=interleaved-1f1b"})[0].followers ==
        "with chunks=2");
}

TEST_CASE("wrong keys and values are told together") {
  const std::string text =
      message_of(small("dp=2"), {"link_bandwith=2", "matrix_peak=-1,nan", "microbatches=0",
                                 "zero=5", "seq_len=1.5", "dp=2", "dp=4", "schedule=1f1bb"});
  CHECK(text.find("--vary: unknown key 'link_bandwith', did you mean 'link_bandwidth'?; known are "
                  "link_bandwidth, link_latency, matrix_peak") == 0);
  for (const char* part : {"--vary matrix_peak: must be a factor above 0 such as 0.5, is '-1'",
                           "--vary matrix_peak: must be a factor above 0 such as 0.5, is 'nan'",
                           "--vary microbatches: must be a whole number from 1 on, is '0'",
                           "zero: must be", "--vary seq_len: must be a whole number from 1 on",
                           "--vary dp: is there twice", "unknown schedule '1f1bb', did you mean"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part, " in ", text);
  CHECK(message_of(small("dp=2"), {"foo=1", "dp=2,,4", "matrix_peak=1e7"})
            .find("--vary dp: a value is missing in 'dp=2,,4'\n"
                  "--vary matrix_peak: must be a factor from 1e-06 to 1000000, is '1e7'") !=
        std::string::npos);
  for (const char* wrong : {"link_bandwidth", "=2"}) CHECK_THROWS_AS(parse_variation(wrong), Error);
}
