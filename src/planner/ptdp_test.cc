// What the rules of PTD-P say of their choices.
#include <doctest/doctest.h>

#include <string>

#include "planner/planner.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::planner;

namespace {

// Two devices, each with room for half of the model: two stages, whose microbatches come to the
// batch.
Request in_two_stages(int64_t batch) {
  Request request;
  request.base = predict::test::small();
  request.base.model.heads = request.base.model.kv_heads = 1;
  request.base.model.layers = 8;
  request.base.model.hidden_size = 256;
  request.base.model.ffn_size = 1024;
  request.base.model.head_dim = 256;
  request.base.global_batch = batch;
  cluster::Device& device = request.base.cluster.device;  // so slow that small products are no loss
  device.attained.launch = Seconds(0);
  device.peaks = {{"f32", cluster::FlopsPerSecond(1e9)}};
  device.memory = Bytes(100'000'000);
  request.gpus = 2;
  request.method = Method::kPtdP;
  request.threads = 1;
  return request;
}

std::string schedule_rule(const Request& request) {
  const Found found = search(request);
  REQUIRE(found.plans.front().plan.pp == 2);
  const Choice& choice = found.choices.back();
  CHECK(choice.what ==
        (found.plans.front().plan.chunks > 1
             ? fmt::format("schedule=interleaved-1f1b,chunks={}", found.plans.front().plan.chunks)
             : "schedule=1f1b,chunks=1"));
  return choice.rule;
}

}  // namespace

TEST_CASE("why the rules of PTD-P do not interleave is what kept them from it") {
  Request request = in_two_stages(4);
  CHECK(schedule_rule(request) ==
        "section 2.2: the interleaved schedule divides the bubble by the chunks; the fastest");
  request.base.cluster.links[0].latency = Seconds(1);
  CHECK(schedule_rule(request) ==
        "section 2.2: not the interleaved schedule: more chunks cost more in messages than they "
        "save in bubble");
  CHECK(schedule_rule(in_two_stages(3)) ==
        "section 2.2: not the interleaved schedule: the paper's takes multiples of 2 microbatches, "
        "and a replica has 3 sequences (in rounds of another length: --planner exhaustive)");
  request = in_two_stages(4);
  request.base.model.layers = 2;
  request.base.cluster.device.memory = Bytes(25'000'000);
  CHECK(schedule_rule(request) ==
        "section 2.2: not the interleaved schedule: 2 layers give no equal chunks on 2 ranks");
  request = in_two_stages(4);
  request.base.cluster.stack.lacking = {cluster::Lacking::kInterleaved};
  CHECK(schedule_rule(request) ==
        "section 2.2: not the interleaved schedule: the stack's engine has none");
}

TEST_CASE("of tensor parallelism and pipelines that an engine has not no takeaway is told") {
  Request request = in_two_stages(4);
  request.base.cluster.device.memory = Bytes(1'000'000'000);
  request.base.cluster.stack.lacking = {cluster::Lacking::kTensor, cluster::Lacking::kPipelines};
  const Found found = search(request);
  CHECK(found.choices[0].what == "tp=1");
  CHECK(found.choices[0].rule == "the stack's engine has no tensor parallelism");
  CHECK(found.choices[1].what == "pp=1");
  CHECK(found.choices[1].rule == "the stack's engine has no pipelines");
}
