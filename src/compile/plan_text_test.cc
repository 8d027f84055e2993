// The forms of a plan, to their bounds: what is read, what is refused, and which keys are then left
// unjudged.
#include <doctest/doctest.h>

#include "base/fake_fs.h"
#include "base/test_thrown_by.h"
#include "compile/passes.h"
#include "compile/plan.h"

namespace mw::compile {
namespace {

std::string message_of(const std::string& plan, const ReadFile& files = {}) {
  return mw::test::thrown_by([&] { parse_plan(plan, "--plan", files); });
}
ReadFile order(const std::string& text) {
  return [=](const std::string&) { return text; };
}
// Two stages on two ranks.
constexpr const char* kOrder = "0F0,0B0\n1F0,1B0\n";

TEST_CASE("a plan that is edited is the one whose text says so") {
  const std::string looped = "pp=2,microbatches=4,chunks=4,schedule=";
  const auto check = [](const std::string& plan, const PlanEdits& edits, const std::string& made) {
    CAPTURE(made);
    CHECK(edited(parse_plan(plan), edits, "--vary") == parse_plan(made));
  };
  check("tp=2,sp,zero=1", {{"microbatches", "8"}, {"sp", "off"}}, "tp=2,microbatches=8,zero=1");
  check("pp=2,microbatches=4", {{"chunks", "4"}}, looped + "interleaved-1f1b");
  check(looped + "interleaved-1f1b,group=4", {{"schedule", "looped-bfs"}}, looped + "looped-bfs");
  check(looped + "interleaved-1f1b,group=4", {{"schedule", "1f1b"}}, "pp=2,microbatches=4");
  check("schedule=interleaved-1f1b,microbatches=2", {{"pp", "2"}},
        "pp=2,microbatches=2,schedule=interleaved-1f1b");
  check("pp=2,layers=1:2,order=tp-pp-dp", {{"layers", "2:1"}, {"order", "pp-dp-tp"}},
        "pp=2,layers=2:1");
  const Plan written = parse_plan("schedule=order.csv", "--plan", order(kOrder));
  Plan twice = written;
  twice.dp = 2;
  CHECK(edited(written, {{"dp", "2"}}, "--vary") == twice);
  CHECK(edited(written, {{"schedule", "gpipe"}}, "--vary") == parse_plan("pp=2,schedule=gpipe"));
  CHECK_THROWS_WITH_AS(edited(Plan(), {{"dp", "0"}, {"zero", "4"}}, "--vary"),
                       "--vary: dp: must be an integer of at least 1, is 0\n"
                       "--vary: zero: must be an integer from 0 to 3, is 4",
                       Error);
}

TEST_CASE("devices give the dp that a plan does not say, where one would do") {
  const auto dp_of = [](const char* text) { return read_plan(text, "--plan", {}, 16).plan.dp; };
  CHECK(dp_of("tp=2,pp=2,cp=2,microbatches=2") == 2);
  CHECK(dp_of(R"({"tp": 4, "ep": 2})") == 4);
  for (const char* text : {"tp=2,dp=1", "tp=3", "tp=x"}) CHECK(dp_of(text) == 1);
  CHECK_FALSE(read_plan("tp=2").says_dp);
  CHECK(read_plan("dp=2").says_dp);
}

TEST_CASE("sizes are taken up to their bound and refused behind it") {
  const std::string ranks = " is more than 1048576 ranks; use fewer";
  CHECK(parse_plan("dp=1048576").ranks() == 1048576);
  CHECK(parse_plan("dp=1024,cp=1024").ranks() == 1048576);
  CHECK(message_of("dp=1048577") == "--plan: dp: must be at most 1048576, is 1048577");
  CHECK(message_of("cp=1025") == "--plan: cp: must be at most 1024, is 1025");
  CHECK(message_of("dp=17,tp=61681") == "--plan: dp*tp*pp=17*61681*1" + ranks);
  CHECK(message_of("dp=61681,cp=17") == "--plan: dp*tp*pp*cp=61681*1*1*17" + ranks);
  CHECK(parse_plan("microbatches=262144").microbatches == 262144);
  CHECK(message_of("microbatches=262145") ==
        "--plan: pp*chunks*microbatches=1*1*262145 is more than 262144 units of work; use fewer");
  CHECK(parse_plan("layers=262144").layers == std::vector<int64_t>{262144});
  CHECK(read_plan("layers=262145").findings.size() == 1);
  CHECK(message_of("pp=2,schedule=seq-1f1b,slices=1048577") ==
        "--plan: slices: must be an integer from 1 to 1048576, is 1048577");
  CHECK(parse_plan("bucket_mb=1073741824").bucket_mb == 1073741824);
  CHECK(message_of("bucket_mb=1073741825") ==
        "--plan: bucket_mb: must be an integer from 0 to 1073741824, is 1073741825");
}

TEST_CASE("a key without a sound value has its usual one, and what depends on it is not judged") {
  CHECK(read_plan("recompute=ful").plan.recompute == Recompute::kNone);
  CHECK(read_plan("bucket_mb=x").plan.bucket_mb == Plan().bucket_mb);
  CHECK(message_of("dp=x,ep=2") == "--plan: dp: must be an integer of at least 1, is \"x\"");
  CHECK(message_of("dp=2,orders/My.CSV,tp=2") ==
        "--plan: orders/My.CSV: is a schedule's file; give schedule=orders/My.CSV");
  CHECK(message_of("regather,spx") == "--plan: spx: unknown key, did you mean 'sp'?");
  CHECK(message_of("pp=2,cp=2,schedule=seq-1f1b,microbatches=2,schedules=1") ==
        "--plan: schedules: unknown key, did you mean 'schedule'?");
  CHECK(message_of(R"({"order": 3})").find('\n') == std::string::npos);
  using Keys = std::set<std::string>;
  CHECK(read_plan("dp=2,dp=4").unsound == Keys{"dp"});
  CHECK(read_plan("tpp=2").unsound == Keys{"tp"});
  CHECK(read_plan("dp=6,ep=4").unsound == Keys{"ep"});
  // It may stand for any key that is not there.
  CHECK(read_plan("zzzzzz=1,dp=2,layers=1").unsound ==
        Keys{"tp", "pp", "chunks", "schedule", "microbatches"});
  // Nobody knows the sizes that it says.
  CHECK(read_plan("schedule=order.csv,pp=2").unsound == Keys{"schedule", "chunks", "microbatches"});
  CHECK(read_plan(R"({"schedule": "order.csv", "actions": 1, "pp": 2})").unsound ==
        Keys{"actions", "schedule", "chunks", "microbatches"});
}

TEST_CASE("switches are said in all their ways, and no other key is a switch") {
  for (const std::string value : {"=off", "=false", "=0"})
    CHECK(parse_plan("tp=2,sp" + value) == parse_plan("tp=2"));
  for (const std::string value : {"", "=on", "=true", "=1"})
    CHECK(parse_plan("tp=2,sp" + value) == parse_plan("tp=2,sp"));
  CHECK(message_of("tp=2,sp=2") == "--plan: sp: must be true or false, is 2");
  CHECK(message_of("schedule=on").starts_with("--plan: schedule: unknown schedule 'on'"));
  CHECK(message_of("dp=2,,tp=2") == "--plan: has a comma too many");
  CHECK(message_of("dp=1.5") == "--plan: dp: must be an integer of at least 1, is \"1.5\"");
}

TEST_CASE("what goes together is taken, and of what does not all is said") {
  CHECK(parse_plan("tp=2,sp,cp=2,regather").regather);
  CHECK(parse_plan("pp=2,schedule=zb-auto,costs=1:1:1,microbatches=2").costs.size() == 3);
  CHECK(message_of("pp=2,schedule=zb-auto,costs=1:1,microbatches=2") ==
        "--plan: costs: has 2 numbers, must have three or four: f, b, w and comm");
  CHECK(message_of("cp=2,order=pp-dp") ==
        "--plan: order: must name pp, dp and tp (and may name cp) once each, is pp-dp");
  CHECK(message_of("schedule=order.csv,pairs=1,memory_limit=2", order(kOrder)) ==
        "--plan: pairs: is an option of some kinds of schedules, and order.csv has its own order; "
        "leave it out\n"
        "--plan: memory_limit: is an option of some kinds of schedules, and order.csv has its own "
        "order; leave it out");
  CHECK(message_of("schedule=order.csv", order("0F0,2F0,2B0,0B0\n1F0,1B0\n")) ==
        "--plan: schedule: order.csv has 3 stages on 2 ranks, must have a multiple of its ranks");
}

TEST_CASE("the number of chunks that a schedule has is said where it is not the usual one") {
  CHECK(parse_plan("schedule=looped-bfs").chunks == 1);
  CHECK(parse_plan("pp=2,schedule=looped-bfs,microbatches=2").chunks == 2);
  for (const std::string text : {"dp=1,tp=1,pp=1,schedule=gpipe,microbatches=1",
                                 "dp=1,tp=1,pp=2,schedule=looped-bfs,chunks=1,microbatches=2",
                                 "dp=1,tp=1,pp=1,schedule=looped-bfs,chunks=2,microbatches=2"})
    CHECK(short_form(parse_plan(text)) == text);
}

TEST_CASE("JSON says what is not usual, and the actions of a written schedule row by row") {
  CHECK(to_json(Plan()).find("bucket_mb") == nullptr);
  CHECK(to_json(parse_plan("bucket_mb=1")).find("bucket_mb") != nullptr);
  const Json json = to_json(parse_plan("schedule=order.csv", "--plan", order(kOrder)));
  CHECK(json.find("actions")->dump() == R"(["0F0,0B0","1F0,1B0"])");
}

TEST_CASE("a plan says for which step it was made") {
  const std::string text =
      R"({"dp": 2, "for": {"model": "m", "global_batch": 8, "seq_len": 16, "tf32": true, )"
      R"("scatter_gather": false}})";
  const PlanReading reading = read_plan(text);
  CHECK(reading.findings.empty());
  REQUIRE(reading.step.has_value());
  CHECK(reading.step->model == "m");
  CHECK(reading.step->global_batch == 8);
  CHECK(reading.step->seq_len == 16);
  CHECK(reading.step->tf32);
  CHECK(reading.step->scatter_gather == false);
  const PlanReading again = read_plan(to_json(reading.plan, *reading.step).dump());
  CHECK(again.step->tf32);
  CHECK_FALSE(read_plan("dp=2").step.has_value());
  const auto findings = [](const std::string& step) {
    return read_plan(R"({"for": {)" + step + "}}").findings;
  };
  CHECK(findings(R"("global_batch": 1, "seq_len": 1)").empty());
  for (const std::string step :
       {R"("global_batch": 0)", R"("seq_len": 0)", R"("modle": "m", "seq_len": 1)"})
    CHECK(findings(step).size() == 1);
}

TEST_CASE("a schedule's file lies beside the plan's, or where one works") {
  FakeFileSystem fs;
  fs.make_directory("plans");
  fs.write_file("here.csv", "here");
  fs.write_file("both.csv", "here");
  fs.write_file("plans/both.csv", "beside");
  const ReadFile files = files_beside(fs, "plans/plan.json");
  CHECK(files("both.csv") == "beside");
  CHECK(files("here.csv") == "here");
  CHECK(files_beside(fs, "plan.json")("both.csv") == "here");
}

TEST_CASE("schedules that are written down are equal where they say the same under one name") {
  const auto written = [](const std::string& name, const std::string& text) {
    return parse_plan("schedule=" + name, "--plan", order(text)).written;
  };
  const WrittenSchedule one = written("a.csv", kOrder), none;
  CHECK(one == written("a.csv", kOrder));
  CHECK_FALSE(one == written("b.csv", kOrder));
  CHECK_FALSE(one == none);
  CHECK_FALSE(none == one);
  CHECK(none == WrittenSchedule());
}

TEST_CASE("what a plan asks of its schedule is what it says") {
  Plan plan;
  plan.group = 2;
  plan.pairs = 3;
  plan.slices = 4;
  plan.memory_limit = 5;
  plan.post_validation = true;
  plan.costs = {1, 2, 3, 0.5};
  const pipeline::ScheduleRequest request = schedule_request(plan);
  CHECK(request.group == 2);
  CHECK(request.pairs == 3);
  CHECK(request.slices == 4);
  CHECK(request.memory_limit == 5);
  CHECK(request.post_validation);
  CHECK(request.costs.f == std::vector<double>{1});
  CHECK(request.costs.b == std::vector<double>{2});
  CHECK(request.costs.w == std::vector<double>{3});
  CHECK(request.costs.comm == 0.5);
  CHECK(parse_plan("pp=2,schedule=seq-1f1b,slices=1").sequence_slices() == 1);
}

TEST_CASE("passes that are not there are said with those that are") {
  const std::string list =
      "; there are cse, recompute, dead_code, share_stages, fold_accumulate, remake, overlap, "
      "gather_ahead, bucket";
  CHECK(mw::test::thrown_by([] { PassSet({"buckets", "csse"}); }) ==
        "unknown pass 'buckets', did you mean 'bucket'?" + list +
            "\nunknown pass 'csse', did you mean 'cse'?" + list);
}

}  // namespace
}  // namespace mw::compile
