#include "calibrate/choices.h"

#include <doctest/doctest.h>

#include "calibrate/test_runs.h"
#include "calibrate/validate.h"

using namespace mw;
using namespace mw::calibrate;
using compile::Recompute;

TEST_CASE("further recomputations are tried until one fits, larger microbatches while one may") {
  Run run = gpt(2, 64, 4, 64, 128, 8);
  run.recompute = "unknown";
  run.micro_batch = 0;
  struct Visited {
    int64_t micro_batch;
    Recompute way;
    Outcome outcome;
  };
  const std::vector<Visited> expected = {
      {1, Recompute::kNone, Outcome::kCannot},       {1, Recompute::kSelective, Outcome::kFits},
      {2, Recompute::kNone, Outcome::kTooFull},      {2, Recompute::kSelective, Outcome::kTooFull},
      {2, Recompute::kFull, Outcome::kFits},         {4, Recompute::kNone, Outcome::kTooFull},
      {4, Recompute::kSelective, Outcome::kTooFull}, {4, Recompute::kFull, Outcome::kTooFull}};
  size_t visited = 0;
  for_each_choice(run, a100(), [&](const Run&, int64_t micro_batch, Recompute way) {
    REQUIRE(visited < expected.size());
    CHECK(micro_batch == expected[visited].micro_batch);
    CHECK(way == expected[visited].way);
    return expected[visited++].outcome;
  });
  CHECK(visited == expected.size());
}

TEST_CASE("microbatches that a row leaves open divide what each replica reads") {
  Run run = gpt(2, 64, 4, 64, 128, 8);
  run.micro_batch = 0;
  for (const auto& [dp, sizes] :
       {std::pair<int64_t, std::vector<int64_t>>{1, {1, 2, 4, 8}}, {2, {1, 2, 4}}, {8, {1}}}) {
    run.dp = dp;
    CHECK(micro_batches(run) == sizes);
  }
  run.micro_batch = 4;
  CHECK(micro_batches(run) == std::vector<int64_t>{4});
}

TEST_CASE("selective recomputation is what a row's stack calls so") {
  Machines machines = a100();
  Run run = gpt(2, 64, 4, 64, 128, 8);
  run.recompute = "selective";
  CHECK(recomputes(run, machines) == std::vector<Recompute>{Recompute::kSelective});
  cluster::Profile profile;
  profile.device = run.gpu;
  profile.software = run.software = "stack";
  profile.stack.selective_op = true;
  machines.profiles = {profile};
  CHECK(recomputes(run, machines) == std::vector<Recompute>{Recompute::kSelectiveOp});
  run.recompute = "unknown";
  CHECK(recomputes(run, machines) ==
        std::vector<Recompute>{Recompute::kNone, Recompute::kSelectiveOp, Recompute::kFull});
}

TEST_CASE("a layer is divided inside a node where its key heads can be, parts of a sequence too") {
  Machines machines = a100();
  machines.clusters[0].links[0].kind = cluster::LinkKind::kNvlink;
  machines.clusters[0].links[0].devices = 8;
  Run run = gpt(8, 64, 4, 64, 128, 8);
  run.gpus = 8;
  run.tp = run.pp = run.dp = 0;
  const auto open = [&] {
    std::vector<std::string> all;
    for (const Run& one : layouts(run, machines)) all.push_back(layout(one));
    return all;
  };
  using Layouts = std::vector<std::string>;
  run.kv_heads = 2;
  run.schedule = "1f1b";
  CHECK(open() == Layouts{"tp=1 pp=2 dp=4 mb=1 full", "tp=1 pp=4 dp=2 mb=1 full",
                          "tp=1 pp=8 dp=1 mb=1 full", "tp=2 pp=2 dp=2 mb=1 full",
                          "tp=2 pp=4 dp=1 mb=1 full"});
  run.cp = 2;
  CHECK(open() == Layouts{"tp=1 pp=2 dp=2 cp=2 mb=1 full", "tp=1 pp=4 dp=1 cp=2 mb=1 full",
                          "tp=2 pp=2 dp=1 cp=2 mb=1 full"});
  // Without a schedule a layout may have no pipeline; replicas have as many sequences each.
  run.schedule.clear();
  CHECK(open() == Layouts{"tp=1 pp=1 dp=4 cp=2 mb=1 full", "tp=1 pp=2 dp=2 cp=2 mb=1 full",
                          "tp=1 pp=4 dp=1 cp=2 mb=1 full", "tp=2 pp=1 dp=2 cp=2 mb=1 full",
                          "tp=2 pp=2 dp=1 cp=2 mb=1 full"});
  run.global_batch = 2;
  CHECK(open() == Layouts{"tp=1 pp=2 dp=2 cp=2 mb=1 full", "tp=1 pp=4 dp=1 cp=2 mb=1 full",
                          "tp=2 pp=1 dp=2 cp=2 mb=1 full", "tp=2 pp=2 dp=1 cp=2 mb=1 full"});
  run.gpus = run.cp = 1;
  CHECK(open() == Layouts{"tp=1 pp=1 dp=1 mb=1 full"});
  run.schedule = "gpipe";
  CHECK(reason(run, machines) ==
        "no pipeline of two ranks or more under gpipe of 8 layers divides 1 devices");
}

TEST_CASE("what a row leaves open is the fastest of the rows that say it") {
  Machines machines = a100();
  machines.clusters[0].links[0].kind = cluster::LinkKind::kNvlink;
  machines.clusters[0].links[0].devices = 8;
  Run run = gpt(4, 64, 4, 256, 128, 16);
  bool divided = false;  // layers, in the fastest
  SUBCASE("of layouts") {
    run = gpt(4, 2048, 16, 1024, 128, 2);
    run.tp = run.pp = run.dp = 0;
    divided = true;
  }
  SUBCASE("of depths") { run.pp = run.dp = 0; }
  SUBCASE("of chunks") {
    run.pp = run.dp = 2;
    run.vpp_unknown = true;
  }
  run.gpus = 4;
  run.recompute = "none";
  const std::vector<Run> all = layouts(run, machines);
  CHECK(all.size() > 1);
  double least = 0, most = 0;
  int64_t ways = 0;
  for (Run one : all) {
    one.vpp_unknown = false;
    const Comparison made = validate({one}, machines, 1)[0];
    REQUIRE(made.reason == "");
    if (least == 0 || made.predicted < least) least = made.predicted, ways = one.tp;
    most = std::max(most, made.predicted);
  }
  CHECK(least < most);
  CHECK((ways > 1) == divided);
  CHECK(validate({run}, machines, 1)[0].predicted == least);
}

TEST_CASE("what fits the memory goes before what is faster, and if nothing does the least of it") {
  Machines machines = a100();
  Run run = gpt(4, 256, 4, 512, 512, 4);
  const Comparison small = validate({run}, machines, 1)[0];  // one sequence, all made again
  REQUIRE(small.reason == "");
  run.recompute = "unknown";
  run.micro_batch = 0;
  const Comparison free = validate({run}, machines, 1)[0];
  CHECK(free.fits);
  CHECK(free.assumed == "microbatch 4, recompute none");
  CHECK(free.predicted < small.predicted);
  for (const double share : {1.001, 0.5}) {
    CAPTURE(share);
    machines.clusters[0].device.memory =
        Bytes(static_cast<int64_t>(share * small.predicted_GiB * (1 << 30)));
    const Comparison made = validate({run}, machines, 1)[0];
    CHECK(made.fits == (share > 1));
    CHECK(made.assumed == "microbatch 1, recompute full");
    CHECK(made.predicted == small.predicted);
    CHECK(made.predicted_GiB == small.predicted_GiB);
  }
}

TEST_CASE("a row holds what its fullest device does, and works as its model says") {
  Run run = gpt(4, 64, 4, 256, 128, 16);
  run.gpus = run.pp = 2;
  run.recompute = "none";
  const Comparison made = validate({run}, a100(), 1)[0];
  const predict::Request request = request_of(run, a100(), 1, Recompute::kNone);
  const predict::Prediction prediction = predict::predict(request, predict::compile_step(request));
  REQUIRE(prediction.memory.size() == 2);
  CHECK(prediction.memory[0].peak > prediction.memory[1].peak);
  CHECK(made.predicted_GiB == static_cast<double>(prediction.memory[0].peak.value) / (1 << 30));
  CHECK(made.work == model_flops(request.model, run.seq, run.global_batch).value / 2);
}

TEST_CASE("summaries are by source, of rows whose time is known, what is assumed apart") {
  std::vector<Comparison> rows(5);
  const char* const sources[] = {"A paper; table 1", "A paper; table 2", "A paper; table 3",
                                 "A paper; table 4", "Another"};
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].run.source = sources[i];
    rows[i].predicted = rows[i].published = 1;
    rows[i].error = 0.1 * static_cast<double>(i);
  }
  rows[1].published = 0;  // a place
  rows[2].assumed = "cp 1";
  rows[4].reason = "no";
  const std::vector<Summary> made = summaries(rows);
  REQUIRE(made.size() == 2);
  CHECK(made[0].name == "A paper");
  CHECK(made[0].rows == 2);
  CHECK(made[0].worst == rows[3].error);
  CHECK(made[1].name == "A paper (assumed)");
  CHECK(made[1].rows == 1);
}
