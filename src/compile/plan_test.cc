#include "compile/plan.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_thrown_by.h"
#include "base/text.h"
#include "partition/test_nets.h"

namespace mw::compile {
namespace {

std::string message_of(const std::string& plan) {
  return mw::test::thrown_by([&] { parse_plan(plan); });
}

ModelShape shape() {
  ModelShape shape;
  shape.name = "models/x.json";
  shape.must_divide = {{"heads", 12}, {"kv_heads", 4}};
  shape.key = {{"heads", "n_head"}};
  shape.global_batch = 8;
  return shape;
}

TEST_CASE("a plan reads the same from its short form and from JSON, and prints as it was read") {
  for (const std::string text :
       {"dp=1,tp=1,pp=1,microbatches=1", "dp=2,tp=2,pp=2,schedule=1f1b,microbatches=4,sp,zero=1",
        "dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=8,sp,zero=1,recompute="
        "selective",
        "dp=4,tp=1,pp=1,microbatches=2,zero=3,grad_reduce=step",
        "dp=4,tp=1,pp=1,microbatches=2,zero=1,bucket_mb=0",
        "dp=4,tp=1,pp=1,microbatches=2,bucket_mb=25",
        "dp=4,tp=1,pp=1,microbatches=2,zero=3,prefetch_mb=0",
        "dp=1,tp=1,pp=3,schedule=gpipe,microbatches=5,layers=3:2:3",
        "dp=1,tp=1,pp=4,schedule=chimera,microbatches=8,pairs=2",
        "dp=1,tp=1,pp=4,schedule=seq-1f1b,microbatches=8,slices=4,post_validation",
        "dp=1,tp=2,pp=1,microbatches=1,sp,regather",
        "dp=1,tp=1,pp=4,schedule=zb-auto,microbatches=8,memory_limit=6.5,costs=1:1.2:0.8:0.1",
        "dp=2,tp=2,pp=2,order=dp-pp-tp,schedule=1f1b,microbatches=1,recompute=full,grad_reduce="
        "microbatch"}) {
    const Plan plan = parse_plan(text);
    CHECK(short_form(plan) == text);
    CHECK(parse_plan(short_form(plan)) == plan);
    CHECK(plan_from_json(to_json(plan), "plan.json") == plan);
    CHECK(parse_plan(to_json(plan).dump(), "plan.json") == plan);
  }
}

TEST_CASE("a plan's keys are those that are read and written") {
  for (const PlanKey& key : plan_keys()) {
    CAPTURE(key.name);
    CHECK(find_plan_key(key.name) == &key);
    // Without a value it stands at its usual one; an unknown key would be told.
    CHECK(read_plan(fmt::format("{{\"{}\": null}}", key.name)).findings.empty());
    if (key.value == PlanKey::Value::kCount)
      CHECK(mw::test::thrown_by([&] {
              parse_plan(fmt::format("{}=0", key.name));
            }).starts_with(fmt::format("--plan: {}: must be", key.name)));
  }
  CHECK(find_plan_key("actions") == nullptr);
  const Plan full = parse_plan(
      "dp=4,tp=2,pp=2,cp=2,ep=2,order=tp-cp-dp-pp,sp,regather,schedule=interleaved-zb,chunks=2,"
      "microbatches=4,zero=1,recompute=selective,grad_reduce=step,bucket_mb=1,prefetch_mb=2,"
      "layers=1:1:1:1,group=2,post_validation");
  const Json json = to_json(full);
  for (const auto& [name, value] : json.as_object("plan")) {
    CAPTURE(name);
    CHECK(find_plan_key(name) != nullptr);
  }
}

TEST_CASE("what a plan leaves out has its usual value") {
  CHECK(parse_plan("") == Plan());
  CHECK(parse_plan(" dp = 2 , sp , tp=2 ") == parse_plan("dp=2,tp=2,sp=true"));
  CHECK(parse_plan("tp=2,sp=1") == parse_plan("tp=2,sp"));
  CHECK(parse_plan("tp=2,sp=0") == parse_plan("tp=2"));
  CHECK(parse_plan("pp=2,chunks=2,microbatches=2").schedule == "interleaved-1f1b");
  CHECK(parse_plan("pp=2").schedule == "1f1b");
  for (const std::string kind : {"zb-v", "v-half", "v-min", "hanayo", "dualpipe-v"})
    CHECK(parse_plan("pp=2,microbatches=4,schedule=" + kind).chunks == 2);
  CHECK(parse_plan("pp=2,microbatches=3,schedule=chimera-halving").units() == 6);
  CHECK(parse_plan("pp=2,schedule=seq-1f1b").sequence_slices() == 2);
  CHECK(parse_plan("zero=1").effective_grad_reduce() == GradReduce::kStep);
  CHECK(parse_plan("dp=2,zero=2").effective_grad_reduce() == GradReduce::kMicrobatch);
  CHECK(parse_plan("cp=2,zero=3").effective_grad_reduce() == GradReduce::kMicrobatch);
  CHECK(parse_plan("dp=2,zero=1").effective_grad_reduce() == GradReduce::kStep);
  CHECK(parse_plan("dp=2,zero=2,grad_reduce=step").effective_grad_reduce() == GradReduce::kStep);
  CHECK(parse_plan("tp=2,zero=3").effective_grad_reduce() == GradReduce::kStep);
}

TEST_CASE("everything wrong with a plan is said at once") {
  CHECK(message_of("dp=0,tp=x,zero=4") ==
        "--plan: dp: must be an integer of at least 1, is 0\n"
        "--plan: tp: must be an integer of at least 1, is \"x\"\n"
        "--plan: zero: must be an integer from 0 to 3, is 4");
  CHECK(message_of("dp=2,dp=4") == "--plan: dp: is there twice");
  CHECK(message_of("auto") ==
        "--plan: auto: must be a plan; only train's --plan takes auto, and 'meshwright plan' finds "
        "one for a cluster");
  CHECK(message_of("zero=4,pp=4,chunks=2,microbatches=6,sp") ==
        "--plan: zero: must be an integer from 0 to 3, is 4\n"
        "--plan: sp: sequence parallelism shards over the tensor-parallel ranks, and tp is 1; use "
        "tp=2 or leave sp out\n"
        "--plan: schedule interleaved-1f1b: microbatches=6 is not a multiple of ranks=4; use "
        "microbatches=4 or 8, or rounds of group=6");
  // tpp may have been meant for tp, so nothing is said of sp; slice for slices, so that nobody
  // knows how many there are.
  const PlanReading sliced = read_plan("pp=2,schedule=seq-1f1b,microbatches=4,slice=3");
  CHECK(sliced.findings ==
        std::vector<std::string>{"--plan: slice: unknown key, did you mean 'slices'?"});
  CHECK(!sliced.sound({"slices"}));
  CHECK(sliced.sound({"group"}));
  CHECK(message_of("sp,tpp=2") == "--plan: tpp: unknown key, did you mean 'tp'?");
}

TEST_CASE("a model says nothing of what it cannot judge by") {
  ModelShape mixture = shape();
  mixture.experts = 8;
  mixture.top_k = 2;
  mixture.seq_len = 16;
  const auto found = [&](const std::string& text, const std::set<std::string>& unsound) {
    PlanReading reading;
    reading.plan = parse_plan(text);
    reading.unsound = unsound;
    return plan_findings(reading, 4, mixture).size();
  };
  CHECK(found("tp=8,sp", {}) == 2);
  CHECK(found("tp=8,sp", {"tp"}) == 0);
  CHECK(found("tp=2", {}) == 1);
  CHECK(found("tp=2", {"sp"}) == 0);
  CHECK(found("microbatches=3", {}) == 1);
  CHECK(found("microbatches=3", {"dp"}) == 0);
  CHECK(found("schedule=seq-1f1b,slices=5", {}) == 1);
  CHECK(found("schedule=seq-1f1b,slices=5", {"slices"}) == 0);
  CHECK(found("schedule=seq-1f1b,slices=8", {}) == 1);
  CHECK(found("schedule=seq-1f1b,slices=8", {"schedule"}) == 0);
  CHECK(found("pp=8", {}) == 1);
  CHECK(found("pp=8", {"layers"}) == 0);
  mixture.experts = 0;
  mixture.seq_len = 4;
  CHECK(found("cp=2,tp=4,sp", {}) == 1);
  CHECK(found("cp=2,tp=4,sp", {"sp"}) == 0);
}

TEST_CASE("what a model says of a plan is judged by the plan's sound keys") {
  const PlanReading reading = read_plan("zero=4,tp=8,pp=x,microbatches=3,layers=1:2");
  CHECK(reading.findings.size() == 2);
  CHECK(
      plan_findings(reading, 4, shape()) ==
      std::vector<std::string>{
          "models/x.json: n_head=12 is not divisible by tp=8; use tp=1, 2, 3, 4, 6 or 12",
          "plan: global_batch=8 is not divisible by dp*microbatches=1*3=3; every microbatch needs "
          "a whole number of sequences: use microbatches=1, 2, 4 or 8"});
}

TEST_CASE("a key, schedule or choice that is nearly right gets the right one") {
  CHECK(message_of("microbatch=4") ==
        "--plan: microbatch: unknown key, did you mean 'microbatches'?");
  CHECK(message_of("pp=2,schedule=1f1") ==
        "--plan: schedule: unknown schedule '1f1', did you mean '1f1b'?; known are " +
            join(pipeline::all_schedule_kinds(), ", ") + ", or FILE.csv");
  CHECK(run_finding(parse_plan("pp=2,schedule=pipedream-2bw,microbatches=2")) ==
        "--plan: schedule: 'pipedream-2bw' can be drawn and simulated (meshwright schedule, "
        "simulate), but not run: a step of it would use older weights; what runs is " +
            join(pipeline::schedule_kinds(), ", "));
  CHECK(run_finding(parse_plan("pp=2,schedule=zb-v,chunks=2,microbatches=2")) == "");
  CHECK(
      message_of("recompute=ful") ==
      R"(--plan: recompute: must be "none", "selective", "selective-op" or "full", is "ful", did you mean 'full'?)");
  CHECK(message_of("grad_reduce=steps") ==
        R"(--plan: grad_reduce: must be "step" or "microbatch", is "steps", did you mean 'step'?)");
  CHECK(message_of(R"({"dp": 2, "tpp": 2})") == "--plan: tpp: unknown key, did you mean 'tp'?");
}

// Four stages on two ranks, whose last microbatches change places.
constexpr const char* kOrder =
    "0F0,2F0,0F1,2F1,2B0,2I1,0B0,2W1,0B1\n"
    "1F0,3F0,3B0,1F1,1B0,3F1,3B1,1B1\n";

ReadFile one_file(const std::string& name, const std::string& text) {
  return [=](const std::string& path) {
    if (path != name) throw_error("{}: no such file", path);
    return text;
  };
}

TEST_CASE("a schedule from a file gives the plan its sizes, and JSON has its actions") {
  const ReadFile files = one_file("order.csv", kOrder);
  const Plan plan = parse_plan("dp=2,schedule=order.csv,zero=1,grad_reduce=step", "--plan", files);
  CHECK(short_form(plan) ==
        "dp=2,tp=1,pp=2,schedule=order.csv,chunks=2,microbatches=2,zero=1,grad_reduce=step");
  CHECK(parse_plan(short_form(plan), "--plan", files) == plan);
  CHECK(plan_from_json(to_json(plan), "plan.json") == plan);
  CHECK(parse_plan("dp=2,zero=1,schedule=order.csv,pp=2,chunks=2,microbatches=2,grad_reduce=step",
                   "--plan", files) == plan);
  CHECK(plan.stages() == 4);
  CHECK(plan.units() == 2);
  CHECK(plan.sequence_slices() == 1);
  CHECK(base_plan(plan) == parse_plan("dp=2,microbatches=2,grad_reduce=step"));
  CHECK(short_form(parse_plan("schedule=ORDER.CSV", "--plan", one_file("ORDER.CSV", kOrder))) ==
        "dp=1,tp=1,pp=2,schedule=ORDER.CSV,chunks=2,microbatches=2");
  const ReadFile sliced = one_file("cut.csv", "0F0/0,0F0/1,0B0/1,0B0/0\n");
  CHECK(parse_plan("schedule=cut.csv", "--plan", sliced).sequence_slices() == 2);
  Plan other = plan;
  other.written =
      parse_plan("schedule=order.csv", "--plan", one_file("order.csv", "0F0,0B0,0F1,0B1\n"))
          .written;
  CHECK_FALSE(other == plan);
}

TEST_CASE("what is wrong with a schedule from a file is said with its plan's other findings") {
  const auto finding = [](const std::string& plan, const std::string& text = kOrder) {
    return mw::test::thrown_by([&] { parse_plan(plan, "--plan", one_file("order.csv", text)); });
  };
  CHECK(finding("schedule=other.csv") == "--plan: schedule: other.csv: no such file");
  CHECK(message_of("schedule=order.csv") ==
        "--plan: schedule: order.csv is a file, and none is read here");
  CHECK(finding("schedule=order.csv,pp=4,chunks=1,microbatches=8") ==
        "--plan: schedule order.csv: has 4 stages on 2 pipeline ranks, the plan 4 on 4\n"
        "--plan: schedule order.csv: has 2 microbatches, the plan 8");
  CHECK(finding("schedule=order.csv,group=2,slices=2,costs=1:1:1") ==
        "--plan: costs: are what zb-auto minimises, and the schedule is order.csv\n"
        "--plan: group: is an option of some kinds of schedules, and order.csv has its own order; "
        "leave it out\n"
        "--plan: slices: is an option of some kinds of schedules, and order.csv has its own order; "
        "leave it out");
  CHECK(finding("schedule=order.csv,cp=2", "0F0/0,0F0/1,0B0/1,0B0/0\n") ==
        "--plan: cp: divides a sequence over ranks, and order.csv cuts it into slices; use one of "
        "them");
  CHECK(finding("zero=4,schedule=order.csv", "0F0,0B0,0F1\n").find("zero: must be") !=
        std::string::npos);
  CHECK(
      finding("schedule=order.csv", "0F0,0B0,0F1\n").starts_with("--plan: schedule: order.csv: "));
  // Sizes that a broken file does not give are not held against the model.
  const PlanReading broken = read_plan("schedule=order.csv,layers=1:1:1:5,post_validation",
                                       "--plan", one_file("order.csv", "0F0,0B0,0F1\n"));
  CHECK(broken.findings.size() == 1);
  CHECK(plan_findings(broken, 8, shape()).empty());
  const auto of_json = [](const std::string& json) {
    return mw::test::thrown_by([&] { parse_plan(json, "plan.json"); });
  };
  CHECK(of_json(R"({"schedule": "1f1b", "actions": ["0F0,0B0"]})") ==
        "plan.json: actions: are of a schedule from a file; name it, as in \"schedule\": "
        "\"order.csv\"");
  CHECK(of_json(R"({"schedule": "order.csv", "actions": "0F0,0B0"})")
            .starts_with("plan.json: actions: "));
}

TEST_CASE("combinations that cannot be are said with what could") {
  CHECK(message_of("sp") ==
        "--plan: sp: sequence parallelism shards over the tensor-parallel ranks, and tp is 1; use "
        "tp=2 or leave sp out");
  CHECK(message_of("order=dp-tp") == "--plan: order: must name pp, dp and tp once each, is dp-tp");
  CHECK(message_of("pp=4,chunks=2,microbatches=6") ==
        "--plan: schedule interleaved-1f1b: microbatches=6 is not a multiple of ranks=4; use "
        "microbatches=4 or 8, or rounds of group=6");
  CHECK(message_of("pp=2,schedule=gpipe,chunks=2") ==
        "--plan: schedule gpipe: chunks=2 must be 1: a rank hosts one stage; use interleaved-1f1b "
        "for more");
}

TEST_CASE("cp and ep are axes of the mesh; ep is a part of dp") {
  const Plan plan = parse_plan("dp=8,tp=2,pp=2,cp=2,ep=4,sp,microbatches=2,zero=1");
  CHECK(plan.ranks() == 64);
  CHECK(plan.mesh_order() == AxisOrder{"pp", "dp", "ep", "cp", "tp"});
  CHECK(plan.data_axes() == sharding::Axes{"dp", "ep", "cp"});
  CHECK(parse_plan("dp=4,ep=4").data_axes() == sharding::Axes{"ep"});
  CHECK(parse_plan("dp=4").data_axes() == sharding::Axes{"dp"});
  CHECK(parse_plan("").data_axes() == sharding::Axes{"dp"});
  CHECK(parse_plan(short_form(plan)) == plan);
  CHECK(short_form(plan_from_json(to_json(plan), "x")) == short_form(plan));
  const Plan other = parse_plan("dp=2,cp=2,order=pp-cp-dp-tp");
  CHECK(other.mesh_order() == AxisOrder{"pp", "cp", "dp", "tp"});
  CHECK(other.usual_order() == AxisOrder{"pp", "dp", "cp", "tp"});
  CHECK(other.data_axes() == sharding::Axes{"dp", "cp"});
  CHECK(message_of("dp=6,ep=4") ==
        "--plan: ep: divides the experts over a part of dp=6, which is no multiple of 4");
  CHECK(message_of("pp=2,cp=2,schedule=seq-1f1b,microbatches=2") ==
        "--plan: cp: divides a sequence over ranks, and seq-1f1b cuts it into slices; use one of "
        "them");
}

TEST_CASE("sizes that no cluster has, and whose products overflow, are said to be too large") {
  CHECK(message_of("pp=9223372036854775807") ==
        "--plan: pp: must be at most 1048576, is 9223372036854775807");
  CHECK(message_of("dp=4294967296,tp=4294967296") ==
        "--plan: dp: must be at most 1048576, is 4294967296\n"
        "--plan: tp: must be at most 1048576, is 4294967296");
  CHECK(message_of("dp=1048576,tp=1048576,pp=1048576") ==
        "--plan: dp*tp*pp=1048576*1048576*1048576 is more than 1048576 ranks; use fewer");
  CHECK(message_of("dp=1048576,tp=1048576,pp=1048576,cp=1024") ==
        "--plan: dp*tp*pp*cp=1048576*1048576*1048576*1024 is more than 1048576 ranks; use fewer");
  CHECK(message_of("pp=1024,chunks=1024,microbatches=1048576") ==
        "--plan: pp*chunks*microbatches=1024*1024*1048576 is more than 262144 units of work; use "
        "fewer");
  CHECK(message_of("layers=9223372036854775807:1").starts_with("--plan: layers"));
}

TEST_CASE("a memory limit that is none is said once") {
  const auto limit = [](const std::string& value) {
    return message_of("pp=2,schedule=zb-auto,memory_limit=" + value);
  };
  const std::string where = "--plan: memory_limit: ";
  CHECK(limit("0") == where + "must be above 0, is 0");
  CHECK(limit("-1") == where + "must be a number of at least 0, is -1");
  CHECK(limit("nan") == where + "must be a number of at least 0, is nan");
  CHECK(limit("inf") == where + "must be a finite number, is inf");
  CHECK(limit("abc") == where + "must be a number of at least 0, is \"abc\"");
}

TEST_CASE("the base plan keeps what changes bits and drops the rest") {
  const Plan plan =
      parse_plan("dp=2,tp=2,pp=2,chunks=2,microbatches=4,sp,zero=3,recompute=full,layers=1:1:1:1");
  CHECK(base_plan(plan) == parse_plan("dp=2,tp=2,microbatches=4,sp,grad_reduce=microbatch"));
  CHECK(base_plan(parse_plan("tp=2,pp=2,sp,regather,microbatches=2")) ==
        parse_plan("tp=2,microbatches=2,sp,grad_reduce=step"));
  CHECK(base_plan(base_plan(plan)) == base_plan(plan));
  CHECK(base_plan(parse_plan("dp=4,ep=2,cp=2,zero=1")) ==
        parse_plan("dp=4,ep=2,cp=2,grad_reduce=step"));
  CHECK(base_plan(parse_plan("pp=2,microbatches=3,schedule=chimera-halving")).microbatches == 6);
  CHECK(base_plan(parse_plan("zero=1")).grad_reduce == GradReduce::kStep);
}

// --- against a model ---

TEST_CASE("a plan that does not fit the model says what would") {
  CHECK(plan_findings(parse_plan("dp=2,tp=2,pp=2,microbatches=4"), 4, shape()).empty());
  CHECK(plan_findings(parse_plan("tp=8"), 4, shape()) ==
        std::vector<std::string>{
            "models/x.json: n_head=12 is not divisible by tp=8; use tp=1, 2, 3, 4, 6 or 12"});
  CHECK(plan_findings(parse_plan("tp=6"), 4, shape()) ==
        std::vector<std::string>{
            "models/x.json: kv_heads=4 and tp=6 do not divide one another; use tp=1, 2, 4 or 12"});
  CHECK(plan_findings(parse_plan("tp=12"), 4, shape()).empty());
  ModelShape much = shape();
  much.global_batch = int64_t{1} << 62;
  CHECK(plan_findings(parse_plan("dp=2,microbatches=4"), 4, much) ==
        std::vector<std::string>{fmt::format(
            "plan: microbatches of {} sequences of {} tokens have more than 2147483648 tokens; use "
            "more microbatches",
            much.global_batch / 8, much.seq_len)});
  CHECK(plan_findings(parse_plan("dp=2,microbatches=3"), 4, shape()) ==
        std::vector<std::string>{"plan: global_batch=8 is not divisible by dp*microbatches=2*3=6; "
                                 "every microbatch needs a whole number of sequences: use "
                                 "microbatches=1, 2 or 4"});
  CHECK(plan_findings(parse_plan("pp=4,chunks=2,microbatches=4"), 6, shape()) ==
        std::vector<std::string>{"plan: pp*chunks=4*2=8 stages for 6 layers; use at most 6 stages, "
                                 "or say with layers which "
                                 "have 0"});
  CHECK(
      plan_findings(parse_plan("pp=2,layers=1:2:2"), 4, shape()) ==
      std::vector<std::string>{"plan: layers has 3 entries, must have one a stage: pp*chunks=2*1=2",
                               "plan: layers add up to 5, must add up to the model's 4 layers"});
}

TEST_CASE("the least and the most that fits a model is right, one beyond is not") {
  ModelShape shape;
  shape.name = "models/y.json";
  shape.must_divide = {{"heads", 1}};
  const auto found = [&](const std::string& plan) {
    return plan_findings(parse_plan(plan), 4, shape);
  };
  CHECK(found("tp=2") ==
        std::vector<std::string>{"models/y.json: heads=1 is not divisible by tp=2; use tp=1"});
  shape.seq_len = 4;
  shape.global_batch = int64_t{1} << 29;
  CHECK(found("").empty());
  shape.global_batch += 1;
  CHECK(found("").size() == 1);
  shape.global_batch = 1;
  CHECK(found("layers=3") ==
        std::vector<std::string>{"plan: layers add up to 3, must add up to the model's 4 layers"});
}

// A sequence of so many tokens is no model's, but the finding comes before that of the model.
TEST_CASE("what divides a large number is found at once") {
  ModelShape much = shape();
  much.is_sample = true;  // any number of tokens
  const auto slices = [&](int64_t seq_len, const std::string& plan) {
    much.seq_len = seq_len;
    return plan_findings(parse_plan("schedule=seq-1f1b," + plan), 4, much);
  };
  CHECK(slices(36, "slices=5") ==
        std::vector<std::string>{"plan: seq_len=36 is not divisible by slices=5; use slices=1, 2, "
                                 "3, 4, 6, 9, 12, 18 or 36"});
  CHECK(slices(1'000'000'000'039, "slices=3") ==  // a prime
        std::vector<std::string>{"plan: seq_len=1000000000039 is not divisible by slices=3; use "
                                 "slices=1 or 1000000000039"});
}

TEST_CASE("context and expert parallelism say what they ask of a model") {
  ModelShape dense = shape();
  dense.seq_len = 12;
  CHECK(
      plan_findings(parse_plan("cp=4,microbatches=8"), 4, dense) ==
      std::vector<std::string>{"plan: seq_len=12 is not divisible by 2*cp=8; use cp=1, 2, 3 or 6"});
  dense.seq_len = 13;
  CHECK(plan_findings(parse_plan("cp=4,microbatches=8"), 4, dense) ==
        std::vector<std::string>{
            "plan: seq_len=13 is not divisible by 2*cp=8; use an even one, or leave cp out"});
  dense.seq_len = 4;
  CHECK(plan_findings(parse_plan("dp=2,cp=2,tp=4,sp,microbatches=4"), 4, dense) ==
        std::vector<std::string>{"plan: sp divides the 2 positions that cp=2 leaves of seq_len=4 "
                                 "over tp=4 ranks; use fewer, or leave sp out"});
  CHECK(plan_findings(parse_plan("dp=2,cp=2,tp=2,sp,microbatches=4"), 4, dense).empty());
  CHECK(plan_findings(parse_plan("dp=2,cp=2,tp=4,microbatches=4"), 4, dense).empty());
  dense.seq_len = 12;
  CHECK(plan_findings(parse_plan("dp=2,ep=2,microbatches=4"), 4, dense) ==
        std::vector<std::string>{
            "plan: ep=2 divides experts, and models/x.json has none; leave ep out"});
  ModelShape mixture = dense;
  mixture.experts = 8;
  mixture.top_k = 2;
  mixture.seq_len = 16;
  CHECK(plan_findings(parse_plan("dp=6,ep=3,microbatches=1"), 4, mixture).front() ==
        "plan: global_batch=8 is not divisible by dp*microbatches=6*1=6; every microbatch needs a "
        "whole number of sequences: use a multiple of 6, or another dp");
  CHECK(plan_findings(parse_plan("dp=6,ep=3,microbatches=1"), 4, mixture).back() ==
        "models/x.json: 8 experts are not divisible by ep=3; use ep=1, 2, 4 or 8");
  Plan apart;  // which no text makes
  apart.dp = 2;
  apart.ep = 4;
  CHECK(plan_findings(apart, 4, mixture) ==
        std::vector<std::string>{"plan: ep=4 is no divisor of dp=2: experts are divided over a "
                                 "part of the data-parallel ranks"});
  CHECK(plan_findings(parse_plan("dp=2,ep=2,tp=2,sp,microbatches=4"), 4, mixture).empty());
  CHECK(plan_findings(parse_plan("dp=4,ep=4,tp=2,microbatches=2"), 4, mixture) ==
        std::vector<std::string>{
            "plan: tp=2 without sp would send every token to its experts 2 times; add sp"});
  CHECK(plan_findings(parse_plan("tp=4,cp=2,sp,microbatches=8"), 4, mixture) ==
        std::vector<std::string>{
            "plan: seq_len=16 in cp*tp=8 parts does not give each of 8 experts a whole number of "
            "rows at 2 experts a token; use a multiple of 32"});
  CHECK(plan_findings(parse_plan("pp=2,schedule=seq-1f1b,slices=4,microbatches=8"), 4, mixture)
            .empty());
  CHECK(plan_findings(parse_plan("tp=2,pp=2,sp,schedule=seq-1f1b,slices=4,microbatches=8"), 4,
                      mixture) ==
        std::vector<std::string>{
            "plan: seq_len=16 in slices*tp=8 parts does not give each of 8 experts a whole number "
            "of rows at 2 experts a token; use a multiple of 32, or fewer slices"});
  CHECK(plan_findings(parse_plan("pp=2,schedule=seq-1f1b,slices=3,microbatches=8"), 4, mixture) ==
        std::vector<std::string>{
            "plan: seq_len=16 is not divisible by slices=3; use slices=1, 2, 4, 8 or 16"});
}

ModelShape batch_of(int64_t samples) {
  ModelShape shape;
  shape.global_batch = samples;
  return shape;
}

std::vector<int32_t> stages_of(const std::string& plan, int64_t blocks) {
  const ir::Module module = partition::test::gpt_net({.blocks = blocks});
  return resolve(parse_plan(plan), module, batch_of(8)).stage_of_layer;
}

using Stages = std::vector<int32_t>;

TEST_CASE("blocks are dealt out evenly, the first stages get the rest") {
  // embed, blocks, head: what is no block goes with its neighbour.
  CHECK(stages_of("", 4) == Stages{0, 0, 0, 0, 0, 0});
  CHECK(stages_of("pp=2", 4) == Stages{0, 0, 0, 1, 1, 1});
  CHECK(stages_of("pp=2", 5) == Stages{0, 0, 0, 0, 1, 1, 1});
  CHECK(stages_of("pp=4", 4) == Stages{0, 0, 1, 2, 3, 3});
  CHECK(stages_of("pp=2,chunks=2,microbatches=2", 6) == Stages{0, 0, 0, 1, 1, 2, 3, 3});
}

TEST_CASE("a layer list deals blocks out as it says, stages without a block included") {
  CHECK(stages_of("pp=3,layers=1:3:1", 5) == Stages{0, 0, 1, 1, 1, 2, 2});
  CHECK(stages_of("pp=3,layers=0:2:2", 4) == Stages{0, 1, 1, 2, 2, 2});
  CHECK(stages_of("pp=3,layers=2:2:0", 4) == Stages{0, 0, 0, 1, 1, 2});
  CHECK(stages_of("pp=3,layers=2:0:2", 4) == Stages{0, 0, 0, 2, 2, 2});
  const ir::Module module = partition::test::gpt_net({.blocks = 4});
  const ResolvedPlan resolved =
      resolve(parse_plan("dp=2,pp=3,tp=2,layers=2:0:2"), module, batch_of(2));
  CHECK(cluster::to_string(resolved.mesh) == "{pp:3, dp:2, tp:2}");
  CHECK(cluster::to_string(resolved.stages[1].mesh) == "{dp:2, tp:2}");
  CHECK(resolved.stages[1].layers == 0);
  CHECK(resolved.stages[1].first_layer == 0);
  CHECK(resolved.stages[2].first_layer == 3);
  CHECK(resolved.stages[2].layers == 3);
}

TEST_CASE("tensor parallelism has two axes where several ranks share a key and value head") {
  const ir::Module module = partition::test::gpt_net({.blocks = 2});
  const auto resolved = [&](const std::string& plan, int64_t kv_heads) {
    ModelShape shape = batch_of(8);
    shape.must_divide = {{"heads", 4}, {"kv_heads", kv_heads}};
    return resolve(parse_plan(plan), module, shape);
  };
  CHECK(cluster::to_string(resolved("tp=4", 4).mesh) == "{pp:1, dp:1, tp:4}");
  const ResolvedPlan shared = resolved("tp=4", 2);
  CHECK(cluster::to_string(shared.mesh) == "{pp:1, dp:1, tp_kv:2, tp_rep:2}");
  CHECK(shared.outside.axes.at("kv_heads") == sharding::Axes{"tp_kv"});
  CHECK(shared.outside.axes.at("heads") == sharding::Axes{"tp_kv", "tp_rep"});
}

TEST_CASE("samples lie on dp and ep, sequences on cp, where there are such") {
  const ir::Module module = partition::test::gpt_net({.blocks = 2});
  const auto axes = [&](const std::string& plan) {
    ModelShape shape = batch_of(8);
    shape.seq_len = 8;
    shape.experts = 4;
    shape.top_k = 2;
    return resolve(parse_plan(plan), module, shape).outside.axes;
  };
  const auto plain = axes("dp=2");
  CHECK(plain.at("batch") == sharding::Axes{"dp"});
  for (const char* axis : {"expert", "attn_seq", "seq"}) CHECK(!plain.contains(axis));
  const auto all = axes("dp=4,ep=2,cp=2");
  CHECK(all.at("batch") == sharding::Axes{"dp", "ep"});
  CHECK(all.at("expert") == sharding::Axes{"ep"});
  CHECK(all.at("attn_seq") == sharding::Axes{"cp"});
  CHECK(all.at("seq") == sharding::Axes{"cp"});
}

}  // namespace
}  // namespace mw::compile
