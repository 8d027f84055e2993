// What is printed of predictions that are made by hand: text, tables and the page.
#include <doctest/doctest.h>

#include "base/json.h"
#include "base/text.h"
#include "predict/page.h"
#include "predict/test_request.h"
#include "predict/what_if.h"

using namespace mw;
using namespace mw::predict;

namespace {

using pipeline::Category;
using Lines = std::vector<std::string>;

constexpr int64_t kMiB = 1 << 20;

simulate::RankResult rank_of(int32_t device, double compute, int64_t weights, int64_t boundary) {
  simulate::RankResult rank;
  rank.rank = RankId(device);
  rank.compute = Seconds(compute);
  rank.peak.time = Seconds(0.25 * device);
  rank.peak.by_category = {{Category::kWeights, Bytes(weights)},
                           {Category::kBoundary, Bytes(boundary)},
                           {Category::kData, Bytes(100)},
                           {Category::kMetrics, Bytes(20)}};
  return rank;
}

// Of four pipeline ranks. The first one reserves the most, the second one holds the most; the third
// is as the second.
Prediction by_hand() {
  Prediction p;
  p.step = Seconds(2);
  p.tokens_per_s = 12345;
  p.tflops_per_device = 0.1234;
  p.mfu = p.causal_mfu = 0.25;
  p.hfu = 0.5;
  p.peak = cluster::FlopsPerSecond(2e12);
  p.peak_format = "bf16";
  p.bubble = 0.125;
  p.exposed_comm = {{"dp", Seconds(0.25)}, {"tp", Seconds(0.5)}};
  p.memory = {{{0, 4}, Bytes(900 * kMiB), Bytes(600 * kMiB)},
              {{1}, Bytes(800 * kMiB), Bytes(700 * kMiB)},
              {{2}, Bytes(800 * kMiB), Bytes(700 * kMiB)},
              {{3}, Bytes(800 * kMiB), Bytes(795 * kMiB)}};
  p.memory_limit = Bytes(1024 * kMiB);
  p.parameters = 1'500'000;
  p.devices = 8;
  p.compile_time = Seconds(0.001);
  p.simulate_time = Seconds(0.002);
  p.path = {"the path"};
  p.result.step = p.step;
  p.result.events = 42;
  p.result.ranks = {rank_of(0, 1, 500 * kMiB, 100 * kMiB), rank_of(2, 1, 300 * kMiB, 400 * kMiB),
                    rank_of(4, 1, 300 * kMiB, 400 * kMiB), rank_of(6, 1, 790 * kMiB, 5 * kMiB)};
  simulate::RankResult &first = p.result.ranks[0], &last = p.result.ranks[3];
  first.idle = Seconds(1);
  first.reserved = p.memory[0].peak;
  first.peak.at = "B of stage 4, microbatch 1";
  for (const char* name : {"a", "b", "c", "d", "e"})
    first.peak.largest.push_back({name, Category::kWeights, Bytes(kMiB)});
  last.exposed_comm = {{"dp", Seconds(0.5)}, {"pp", Seconds(8e-11)}};
  last.gaps = Seconds(0.125);
  last.waits[0] = Seconds(0.25);
  last.core_wait = Seconds(0.0625);
  return p;
}

std::string of_text(const Request& request, const Prediction& p, const std::string& from,
                    const std::string& to) {
  const std::string text = to_text(request, p);
  const size_t begin = text.find(from), end = text.find(to);
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  return text.substr(begin, end - begin);
}

Request asked() {
  Request request = predict::test::small();
  request.plan = compile::parse_plan("dp=2,pp=4,microbatches=4");
  request.cluster.device.memory = Bytes(1024 * kMiB);
  return request;
}

}  // namespace

TEST_CASE("a prediction in words") {
  Request request = asked();
  Prediction p = by_hand();
  p.error = 0.086;
  p.profile = "stack";
  p.outside = {"tp 16 (measured 1 to 8)"};
  p.without_effect = {"zero=1 (dp and cp are 1)"};
  p.suggestions = {"sp: 1.00 s"};
  CHECK(
      to_text(request, p) ==
      R"(small.json: 1.50 M parameters on 8 x chip (box), plan dp=2,tp=1,pp=4,schedule=1f1b,microbatches=4, global batch 16, sequence 64
step 2.00 s +- 9 % or more, 12.3 k tokens/s, 0.123 TFLOP/s a device; MFU 25.0 %, HFU 50.0 % of 2 TFLOP/s dense bf16; bubble 12.5 %
outside of what the profile 'stack' was measured on: tp 16 (measured 1 to 8)
without effect here: zero=1 (dp and cp are 1)
where the time goes, mean over pipeline ranks:
  computation                  1.00 s  50.0 %
  exposed dp                   125 ms   6.2 %
  host and stream gaps        31.2 ms   1.6 %
  wait: receive               62.5 ms   3.1 %
  wait: core                  15.6 ms   0.8 %
  idle at the end              250 ms  12.5 %
memory of 1.00 GiB a device; what each rank needs, and what of it is alive at its fullest instant:
  rank 0       stages 0, 4    900 MiB  at 0 s: weights 500 MiB, communication buffers 100 MiB
  ranks 1-2                   800 MiB  at 500 ms to 1.00 s: communication buffers 400 MiB, weights 300 MiB
  rank 3       stage 3        800 MiB  at 1.50 s: weights 790 MiB
  rank 0 is fullest 0 s into the step, in B of stage 4, microbatch 1; largest then: a 1.00 MiB, b 1.00 MiB, c 1.00 MiB, d 1.00 MiB
critical path:
  the path
to change, simulated:
  sp: 1.00 s
compiled in 1.00 ms, simulated in 2.00 ms (42 events)
)");
  request.cluster.stack.allocator = cluster::Allocator::kSegments;
  CHECK(
      of_text(request, p, "  rank 0 ", "  rank 0 is") ==
      R"(  rank 0       stages 0, 4    900 MiB  at 0 s: weights 500 MiB, communication buffers 100 MiB, kept by the allocator 300 MiB
  ranks 1-2                   800 MiB  at 500 ms to 1.00 s: communication buffers 400 MiB, weights 300 MiB, kept by the allocator 100 MiB
  rank 3       stage 3        800 MiB  at 1.50 s: weights 790 MiB
)");
  p.suggestions.clear();
  CHECK(of_text(request, p, "critical path", "compiled in") == "critical path:\n  the path\n");
}

TEST_CASE("ranks are told together where all of their memory is alike") {
  const auto lines = [](const Prediction& p) {
    return of_text(asked(), p, "  rank 0 ", "  rank 0 is");
  };
  const auto are_one = [&](const Prediction& p) {
    return lines(p).find("  ranks 1-2 ") != std::string::npos;
  };
  Prediction alike = by_hand();
  CHECK(are_one(alike));
  alike.result.ranks[2].peak.time = Seconds(0.125);  // the later rank is fullest first
  CHECK(lines(alike).find("  ranks 1-2                   800 MiB  at 125 ms to 500 ms: ") !=
        std::string::npos);
  Prediction peak = by_hand(), alive = by_hand(), held = by_hand();
  peak.memory[2].peak = Bytes(801 * kMiB);
  CHECK(!are_one(peak));
  alive.memory[2].alive = Bytes(701 * kMiB);
  CHECK(!are_one(alive));
  held.result.ranks[2].peak.by_category[Category::kWeights] = Bytes(301 * kMiB);
  CHECK(!are_one(held));
  // The first of those that are as full.
  Prediction full = by_hand();
  full.memory[1].peak = full.memory[0].peak;
  CHECK(to_text(asked(), full).find("  rank 0 is fullest ") != std::string::npos);
}

TEST_CASE("a prediction as JSON has means over ranks, what fits, and the words") {
  Prediction p = by_hand();
  p.suggestions = {"sp: 1.00 s"};
  const auto at = [&](const char* key) { return to_json(asked(), p).at(key, "prediction").dump(); };
  CHECK(at("compute_s") == "1.0");
  CHECK(at("gaps_s") == "0.03125");
  CHECK(at("core_wait_s") == "0.015625");
  CHECK(at("memory_limit_bytes") == "1073741824");
  CHECK(at("critical_path") == R"(["the path"])");
  CHECK(at("suggestions") == R"(["sp: 1.00 s"])");
  CHECK(at("fits") == "true");
  p.memory[3].peak = Bytes(1100 * kMiB);
  CHECK(at("fits") == "false");
}

TEST_CASE("the memory of ranks that share one is told together") {
  Request request = asked();
  request.cluster.device.reserved = Bytes(24 * kMiB);
  Prediction p = by_hand();
  p.sharing = 2;
  CHECK(of_text(request, p, "memory", "; what each") ==
        "memory, 1.61 GiB of 1000 MiB for tensors (of 1.00 GiB) that the 2 ranks share");
  CHECK(of_text(request, by_hand(), "memory", "; what each") ==
        "memory of 1000 MiB for tensors (of 1.00 GiB) a device");
}

TEST_CASE("what failures cost, in words") {
  const Prediction p = by_hand();
  Failures failures{Seconds(3600 * 1000), Seconds(30), Seconds(300), {}};
  Goodput g;
  g.job_mtbf = Seconds(3600 * 125);
  g.interval = g.best_interval = Seconds(600);
  g.goodput = g.best_goodput = 0.9;
  g.checkpoints = 0.05;
  g.lost_work = 0.03;
  g.restarts = 0.02;
  g.young = Seconds(500);
  g.daly = Seconds(400);
  const auto between = [&] {  // the line that is not the same in all
    const std::string text = to_text(failures, g, p);
    return text.substr(text.find('\n') + 1, text.find("  lost") - text.find('\n') - 2);
  };
  CHECK(
      to_text(failures, g, p) ==
      R"(with failures: a device every 1000 h, so one of 8 every 5.2 days; a checkpoint takes 30.0 s, a restart 5 min 00 s
  goodput 90.00 % with a checkpoint every 10 min 00 s, 300 steps, 11.1 k tokens/s (the best one)
  lost: 5.00 % checkpoints, 3.00 % work done again, 2.00 % restarts; best interval to first order 8 min 20 s [Young 1974], as a series 6 min 40 s [Daly 2006]
)");
  failures.interval = Seconds(2);
  g.interval = Seconds(2);
  g.goodput = 0.5;
  CHECK(between() ==
        "  goodput 50.00 % with a checkpoint every 2.00 s, 1 step, 6.17 k tokens/s; the best "
        "interval is 10 min 00 s: 90.00 %, 11.1 k tokens/s");
  failures.interval.reset();
  g.interval = Seconds(4e9);
  g.goodput = 1e-5;
  CHECK(between() ==
        "  goodput 0.00 % with a checkpoint every 46296.3 days, 2.00 G steps, 0.12 tokens/s: the "
        "job makes no progress, its devices fail too often");
  CHECK(
      to_json(failures, g, p).dump() ==
      R"({"device_mtbf_h":1000.0,"job_mtbf_h":125.0,"checkpoint_s":30.0,"restart_s":300.0,"interval_s":4e+09,"interval_steps":2e+09,"goodput":1e-05,"tokens_per_s":0.12345,"checkpoints":0.05,"lost_work":0.03,"restarts":0.02,"best_interval_s":600.0,"best_goodput":0.9,"best_tokens_per_s":11110.5,"young_s":500.0,"daly_s":400.0})");
}

TEST_CASE("plans are compared with the first one") {
  const Request request = asked();
  Request other = asked();
  other.plan = compile::parse_plan("tp=2,pp=4,microbatches=4");
  const Prediction first = by_hand();
  Prediction second = by_hand();
  second.step = Seconds(1);
  second.tokens_per_s = 24690;
  second.mfu = 0.0005;
  second.bubble = 0.25;
  second.exposed_comm = {{"tp", Seconds(0.125)}};
  second.memory[0].peak = Bytes(2048 * kMiB);
  second.outside = {"tp 2 (measured 1)"};
  CHECK(
      comparison_text({&request, &other}, {&first, &second}) ==
      R"(compared                                       step   change  tokens/s     MFU  bubble  exposed    memory
dp=2,tp=1,pp=4,schedule=1f1b,microbatches=4  2.00 s             12.3 k  25.0 %  12.5 %   750 ms   900 MiB
dp=1,tp=2,pp=4,schedule=1f1b,microbatches=4  1.00 s  -50.0 %    24.7 k  0.05 %  25.0 %   125 ms  2.00 GiB  does not fit; outside of the profile: tp 2 (measured 1)
)");
  second.devices = 16;
  Goodput half, quarter;
  half.goodput = 0.5;
  quarter.goodput = 0.25;
  CHECK(
      comparison_text({&request, &other}, {&first, &second}, {half, quarter}) ==
      R"(compared                                     goodput  devices    step   change  tokens/s     MFU  bubble  exposed    memory
dp=2,tp=1,pp=4,schedule=1f1b,microbatches=4  50.00 %        8  2.00 s             12.3 k  25.0 %  12.5 %   750 ms   900 MiB
dp=1,tp=2,pp=4,schedule=1f1b,microbatches=4  25.00 %       16  1.00 s  -50.0 %    24.7 k  0.05 %  25.0 %   125 ms  2.00 GiB  does not fit; outside of the profile: tp 2 (measured 1)
)");
}

TEST_CASE("a table of what-if has reasons, devices where they differ, and the first row's error") {
  Prediction base = by_hand();
  base.error = 0.1;
  WhatIf faster, impossible;
  faster.values = {"2", "1f1b"};
  faster.prediction = by_hand();
  faster.prediction->step = Seconds(1);
  impossible.values = {"0.5", "x"};
  impossible.reason = "there is no x";
  const std::vector<Variation> variations = {{"link_bandwidth", {"2", "0.5"}},
                                             {"schedule", {"1f1b", "x"}}};
  CHECK(
      to_text(base, variations, {faster, impossible}) ==
      R"(link_bandwidth  schedule            step   change  tokens/s     MFU  bubble  exposed   memory
      as it is            2.00 s +- 10 %             12.3 k  25.0 %  12.5 %   750 ms  900 MiB
             2      1f1b          1.00 s  -50.0 %    12.3 k  25.0 %  12.5 %   750 ms  900 MiB
           0.5         x               -                                                       there is no x
)");
  faster.prediction->devices = 16;
  CHECK(
      to_text(base, variations, {faster, impossible}) ==
      R"(link_bandwidth  schedule  devices            step   change  tokens/s     MFU  bubble  exposed   memory
      as it is                  8  2.00 s +- 10 %             12.3 k  25.0 %  12.5 %   750 ms  900 MiB
             2      1f1b       16          1.00 s  -50.0 %    12.3 k  25.0 %  12.5 %   750 ms  900 MiB
           0.5         x        -                                                                       there is no x
)");
}

TEST_CASE("a row of what-if as JSON has its own figures, and its values as they are") {
  const Request request = asked();
  const Prediction base = by_hand();
  WhatIf faster;
  faster.values = {"2", "0.5", "1f1b"};
  faster.request = request;
  faster.prediction = by_hand();
  faster.prediction->step = Seconds(1);
  Prediction& own = *faster.prediction;
  own.exposed_comm = {{"tp", Seconds(0.125)}};
  own.error = 0.1;
  own.tokens_per_s = 24690;
  own.tflops_per_device = 0.2468;
  own.mfu = 0.5;
  own.hfu = 0.75;
  own.bubble = 0.25;
  own.memory[0].peak = Bytes(700 * kMiB);
  own.memory_limit = Bytes(750 * kMiB);
  own.outside = {"tp 2 (measured 1)"};
  const Json json = to_json(
      request, base, {{"gpus", {"2"}}, {"host_time", {"0.5"}}, {"schedule", {"1f1b"}}}, {faster});
  const Json row = json.at("rows", "json").as_array("rows").front();
  CHECK(row.at("values", "row").dump() == R"({"gpus":2,"host_time":0.5,"schedule":"1f1b"})");
  CHECK(row.at("speedup", "row").dump() == "2.0");
  CHECK(row.at("exposed_comm_s", "row").dump() == R"({"tp":0.125})");
  const Json simulated = to_json(request, own), base_alone = to_json(request, base);
  for (const char* key :
       {"step_s", "step_error", "tokens_per_s", "tflops_per_gpu", "mfu", "hfu", "bubble",
        "peak_bytes", "memory_limit_bytes", "memory_needed_bytes", "fits", "outside_profile"}) {
    CAPTURE(std::string(key));
    CHECK(simulated.at(key, "") != base_alone.at(key, ""));
    CHECK(row.at(key, "row") == simulated.at(key, ""));
  }
  CHECK(json.at("base", "json").at("exposed_comm_s", "base").dump() == R"({"dp":0.25,"tp":0.5})");
}

TEST_CASE("a page has the figures, notes and shares of its runs") {
  const Request request = asked();
  Prediction p = by_hand(), full = by_hand();
  p.suggestions = {"sp: 1.00 s"};
  full.devices = 16;
  full.memory[3].peak = Bytes(1100 * kMiB);
  full.outside = {"everything (no profile)"};
  Prediction shared = by_hand();
  shared.sharing = 2;
  report::Page page = page_of({&request, &request, &request}, {&p, &full, &shared});
  CHECK(page.title == "One training step of small on 8 or 16 x chip");
  CHECK(page.subtitle == "1.50 M parameters, box, global batch 16, sequence 64, bf16");
  Goodput goodput;
  goodput.goodput = 0.5;
  goodput.best_goodput = 0.75;
  goodput.job_mtbf = Seconds(3600);
  goodput.interval = Seconds(60);
  goodput.best_interval = Seconds(600);
  add_goodput(goodput, page.runs[0]);
  std::string figures;
  for (const report::Figure& figure : page.runs[0].figures)
    figures += figure.name + ": " + figure.value + " (" + figure.note + ")\n";
  CHECK(figures == R"(devices: 8 ()
step: 2.00 s ()
tokens/s: 12.3 k ()
MFU: 25.0 % (0.123 of 2 TFLOP/s dense bf16)
HFU: 50.0 % (recomputation counted)
bubble: 12.5 % (waits and idle, mean of the ranks)
exposed comm.: 750 ms (that nothing hides, mean of the ranks)
memory: 900 MiB (of 1.00 GiB, fullest rank)
goodput: 50.00 % (a failure every 1 h 00 min, a checkpoint every 1 min 00 s)
)");
  CHECK(page.runs[2].figures.back().note == "of 1.00 GiB, all ranks");
  CHECK(page.runs[0].note == "");
  CHECK(page.runs[1].note ==
        "does not fit: needs 1.07 GiB of 1.00 GiB; outside of what was measured: everything (no "
        "profile)");
  CHECK(page.runs[0].words == Lines{"the path"});
  CHECK(page.runs[0].changes == Lines{"sp: 1.00 s"});
  const report::PageRank &first = page.runs[0].ranks[0], &second = page.runs[0].ranks[1];
  CHECK(first.device == RankId(0));
  CHECK(first.reserved == Bytes(900 * kMiB));
  CHECK(first.stages == "stages 0, 4");
  CHECK(second.stages == "stage 1");
  CHECK(first.peak.at == "in B of stage 4, microbatch 1");
  CHECK(second.peak.at == "between calls");
  CHECK(first.peak.by_category.at(trace::MemoryCategory::kOther) == Bytes(120));
}
