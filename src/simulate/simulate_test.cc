#include <algorithm>
#include <map>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "pipeline/test_pipeline.h"
#include "pipeline/verifier.h"
#include "simulate/flat_program.h"
#include "simulate/test_programs.h"
#include "trace/breakdown.h"
#include "trace/memory_curve.h"

namespace mw::simulate {

using pipeline::PipelineSpec;

namespace {

cluster::Cluster box() {
  cluster::Cluster c = unit_cluster(1e-6, 100e9);
  c.device.peaks = {{"f32", cluster::FlopsPerSecond(1e12)}};
  c.device.memory_bandwidth = cluster::BytesPerSecond(1e12);
  c.device.attained.launch = Seconds(1e-6);
  return c;
}

// All that a rank's step is made of.
double sum_of(const RankResult& rank) {
  return (rank.compute + rank.total_exposed_comm() + rank.gaps + rank.total_wait() + rank.idle +
          rank.core_wait)
      .value;
}

std::vector<PipelineSpec> specs() {
  std::vector<PipelineSpec> all;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b"}) {
    for (const int64_t dp : {1, 2}) {
      for (const int64_t tp : {1, 2}) {
        for (const bool streams : {false, true}) {
          PipelineSpec spec;
          spec.chunks = std::string(schedule) == "interleaved-1f1b" ? 2 : 1;
          spec.schedule = schedule;
          spec.dp = dp;
          spec.tp = tp;
          spec.zero = dp > 1;
          spec.streams = streams;
          all.push_back(spec);
        }
      }
    }
  }
  return all;
}

using Kind = pipeline::Command::Kind;

}  // namespace

TEST_CASE("bytes, instructions, order and peak of a simulated run are the verifier's") {
  for (const PipelineSpec& spec : specs()) {
    CAPTURE(spec.schedule);
    const pipeline::Program program = pipeline::make_pipeline(spec);
    const pipeline::Verification proved = pipeline::verify(program);
    REQUIRE(proved.sound());
    const Result result = simulate(program, box());
    for (size_t r = 0; r < program.ranks.size(); ++r) {
      const RankResult& rank = result.ranks[r];
      const pipeline::RankFigures& figures = proved.ranks[r];
      CHECK(rank.bytes_sent == figures.bytes_sent);
      CHECK(rank.instructions == figures.instructions);
      CHECK(rank.order_hash == figures.order_hash);
      CHECK(rank.bytes_by_group == figures.bytes_by_group);
      CHECK(rank.collectives_by_group == figures.collectives_by_group);
      CHECK(rank.peak.by_category == figures.peak_by_category);
    }
  }
}

TEST_CASE("a rank's step is computation, exposed communication, gaps, waits and idle time") {
  for (const bool overlap : {false, true}) {
    for (const PipelineSpec& spec : specs()) {
      Options options;
      options.overlap = {.messages = overlap,
                         .collectives = overlap,
                         .grad_reduce = overlap,
                         .param_gather = overlap};
      const Result result = simulate(pipeline::make_pipeline(spec), box(), options);
      for (const RankResult& rank : result.ranks)
        CHECK(sum_of(rank) == mw::test::close_to(result.step.value));
    }
  }
}

TEST_CASE("GPipe and 1F1B take (m + p - 1)(f + b) at unit costs") {
  for (const char* kind : {"gpipe", "1f1b"}) {
    for (const int32_t p : {1, 2, 4, 8}) {
      for (const int32_t m : {1, 4, 8, 16}) {
        for (const int b : {1, 2}) {
          CAPTURE(kind);
          CAPTURE(p);
          CAPTURE(m);
          const UnitProgram unit({.kind = kind, .ranks = p, .microbatches = m}, 1, b);
          const Result result = simulate(unit.program, unit_cluster());
          CHECK(result.step.value == (m + p - 1) * (1 + b));
          CHECK(result.bubble() == mw::test::close_to(double(p - 1) / (m + p - 1)));
          for (const RankResult& rank : result.ranks) CHECK(rank.compute.value == m * (1 + b));
        }
      }
    }
  }
}

TEST_CASE("ranks that share cores wait for one, and say so") {
  const UnitProgram unit({.kind = "gpipe", .ranks = 4, .microbatches = 4}, 1, 1);
  cluster::Cluster machine = unit_cluster();
  for (const auto& [cores, step] : {std::pair<int64_t, double>{1, 32}, {2, 16}, {3, 14}, {4, 14}}) {
    CAPTURE(cores);
    machine.cores = cores;
    const Result result = simulate(unit.program, machine);
    CHECK(result.step.value == step);
    for (const RankResult& rank : result.ranks) {
      CHECK(rank.core_wait.value == step - 14);
      CHECK(sum_of(rank) == step);
    }
    const std::string line = explain(result, unit.program)[0];
    CHECK(line.starts_with("the 4 ranks share cores, which their work takes all of the step's") ==
          (step > 14));
    if (cores == 2)
      CHECK(line ==
            "the 4 ranks share cores, which their work takes all of the step's 16.0 s: each waits "
            "2.00 s for one; with a core for each the step would take 14.0 s");
  }
}

TEST_CASE("interleaved 1F1B takes (m v + p - 1)(f + b) at unit costs of a chunk") {
  for (const int32_t p : {2, 4}) {
    for (const int32_t v : {2, 3}) {
      for (const int32_t m : {4, 8, 16}) {
        const UnitProgram unit(
            {.kind = "interleaved-1f1b", .ranks = p, .chunks = v, .microbatches = m}, 1, 2);
        const Result result = simulate(unit.program, unit_cluster());
        CHECK(result.step.value == (m * v + p - 1) * 3);
        CHECK(result.bubble() == mw::test::close_to(double(p - 1) / (m * v + p - 1)));
      }
    }
  }
}

TEST_CASE("a message there and back is as by hand") {
  // 4 bytes at 2 bytes a second, and 0.5 s of latency: 2.5 s each way.
  const UnitProgram unit({.kind = "1f1b", .ranks = 2, .microbatches = 1}, 1, 2, 1);
  const Result result = simulate(unit.program, unit_cluster(0.5, 2));
  // F 0-1, there 1-3.5, F 3.5-4.5, B 4.5-6.5, back 6.5-9, B 9-11.
  CHECK(result.step.value == 11);
  CHECK(result.ranks[0].waits[static_cast<size_t>(WaitReason::kReceive)].value == 8);
  CHECK(result.ranks[1].waits[static_cast<size_t>(WaitReason::kReceive)].value == 3.5);
  CHECK(result.ranks[1].idle.value == 4.5);
  REQUIRE(result.critical_path.size() == 5);
  CHECK(result.critical_path[1].message);
  CHECK(result.critical_path[2].rank == 1);
  CHECK(result.critical_path[2].begin.value == 3.5);
  CHECK(result.critical_path[2].end.value == 6.5);
  CHECK(result.critical_path[4].end.value == 11);
  const std::vector<std::string> words = explain(result, unit.program);
  REQUIRE(words.size() == 4);
  CHECK(words[0] ==
        "of the step's 11.0 s, work takes 6.00 s on 2 of 2 pipeline ranks and 2 messages between "
        "them take 5.00 s; stage 0 does most, 3.00 s (27 %)");
  CHECK(words[1] ==
        "bubble: 52.3 % of the step fills the pipeline (up to a rank's first backward), 20.5 % "
        "drains it (behind its last forward), 0.0 % lies between");
  CHECK(words[2] ==
        "stage 0 waits 8.00 s before B of stage 0, microbatch 0, for stage 1 to send its input");
  CHECK(words[3] ==
        "stage 1 waits 3.50 s before F of stage 1, microbatch 0, for stage 0 to send its input");

  Options options;
  options.overlap.messages = false;  // the sender waits 2.5 s more, which nothing needs here
  const Result held = simulate(unit.program, unit_cluster(0.5, 2), options);
  CHECK(held.step.value == 11);
  CHECK(held.ranks[0].waits[static_cast<size_t>(WaitReason::kSend)].value == 2.5);
}

TEST_CASE("the fullest instant has its categories, its tensors and its place in the memory curve") {
  for (const PipelineSpec& spec : specs()) {
    CAPTURE(spec.schedule);
    Options options;
    options.trace = true;
    const Result result = simulate(pipeline::make_pipeline(spec), box(), options);
    const std::vector<trace::MemoryPeak> drawn = trace::memory_peaks(result.trace);
    REQUIRE(drawn.size() == result.ranks.size());
    for (size_t r = 0; r < drawn.size(); ++r) {
      const MemoryPeak& peak = result.ranks[r].peak;
      CHECK(drawn[r].point.total == peak.bytes);
      CHECK(drawn[r].point.time == peak.time);
      Bytes sum;
      for (const auto& [category, bytes] : peak.by_category) sum += bytes;
      CHECK(sum == peak.bytes);
      REQUIRE(!peak.largest.empty());
      CHECK(std::is_sorted(peak.largest.rbegin(), peak.largest.rend(),
                           [](const auto& a, const auto& b) { return a.bytes < b.bytes; }));
      CHECK(!peak.at.empty());
      std::map<pipeline::Category, Bytes> named;
      for (const LiveTensor& tensor : peak.largest) named[tensor.category] += tensor.bytes;
      for (const auto& [category, bytes] : named) CHECK(bytes <= peak.by_category.at(category));
    }
  }
}

TEST_CASE("a rank that computes more than the others is named, and waits are summed by peer") {
  UnitProgram unit({.kind = "1f1b", .ranks = 3, .microbatches = 6}, 1, 2);
  unit.program.fragments[0] = chain("F", pipeline::ActionKind::kF, 1);
  const Result result = simulate(unit.program, unit_cluster());
  const std::vector<std::string> words = explain(result, unit.program);
  REQUIRE(words.size() > 3);
  CHECK(words[2].find("stage 0 waits ") == 0);
  CHECK(words[2].find(" for stage 1 to send its input (") != std::string::npos);
  CHECK(words[2].find(" times; the longest is ") != std::string::npos);
}

TEST_CASE("transfers that leave a device at the same time share its link") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 3}});
  program.fragments = {chain("F", pipeline::ActionKind::kF, 1)};
  const ir::TensorType small = ir::make_type(DType::kF32, {1}),
                       large = ir::make_type(DType::kF32, {3});
  program.channels = {{"a", 0, 1, small, 1}, {"b", 0, 2, large, 1}};
  program.ranks.resize(3);
  program.ranks[0].commands = {call_of(0), message_of(Kind::kAcquire, 0, 0),
                               message_of(Kind::kAcquire, 1, 0), message_of(Kind::kPublish, 0, 0),
                               message_of(Kind::kPublish, 1, 0)};
  for (int32_t r : {1, 2}) {
    program.ranks[static_cast<size_t>(r)].commands = {
        message_of(Kind::kReceive, r - 1, 0), call_of(0), message_of(Kind::kRelease, r - 1, 0)};
  }
  // One byte a second. Both at half speed until the small one's 4 bytes are through at 1 + 8; the
  // large one then has 8 of 12 bytes left.
  const Result result = simulate(program, unit_cluster(0, 1));
  CHECK(result.ranks[1].waits[0].value == 9);
  CHECK(result.ranks[2].waits[0].value == 17);
  CHECK(result.step.value == 18);
}

TEST_CASE("a producer waits for a free slot") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 2}});
  program.fragments = {chain("F", pipeline::ActionKind::kF, 1),
                       chain("slow", pipeline::ActionKind::kF, 3)};
  program.channels = {{"a", 0, 1, ir::make_type(DType::kF32, {0}), 1}};
  program.ranks.resize(2);
  for (int64_t k = 0; k < 3; ++k) {
    for (const auto& c :
         {message_of(Kind::kAcquire, 0, k), call_of(0), message_of(Kind::kPublish, 0, k)})
      program.ranks[0].commands.push_back(c);
    for (const auto& c :
         {message_of(Kind::kReceive, 0, k), call_of(1), message_of(Kind::kRelease, 0, k)})
      program.ranks[1].commands.push_back(c);
  }
  // Rank 0 works 0-1, waits for the release at 4, works 4-5, waits for that at 8.
  const Result result = simulate(program, unit_cluster());
  CHECK(result.ranks[0].waits[static_cast<size_t>(WaitReason::kSlot)].value == 3 + 3);
  CHECK(result.step.value == 12);
  program.channels[0].slots = 2;
  CHECK(simulate(program, unit_cluster()).step.value == 10);
}

TEST_CASE("ranks that wait for each other for ever are found") {
  pipeline::Program program;
  program.name = "knot";
  program.mesh = cluster::Mesh({{"pp", 2}});
  program.channels = {{"a", 0, 1, ir::make_type(DType::kF32, {0}), 1},
                      {"b", 1, 0, ir::make_type(DType::kF32, {0}), 1}};
  program.ranks.resize(2);
  program.ranks[0].commands = {message_of(Kind::kReceive, 1, 0), message_of(Kind::kPublish, 0, 0)};
  program.ranks[1].commands = {message_of(Kind::kReceive, 0, 0), message_of(Kind::kPublish, 1, 0)};
  CHECK_THROWS_WITH_AS(simulate(program, unit_cluster()),
                       doctest::Contains("pipeline rank 0 never gets beyond command 0 of 'knot'"),
                       CheckFailure);
}

TEST_CASE("overlap never makes a step longer, its slowdown never shorter") {
  for (PipelineSpec spec : specs()) {
    spec.streams = false;
    const pipeline::Program program = pipeline::make_pipeline(spec);
    const double plain = simulate(program, box()).step.value;
    for (int which = 0; which < 3; ++which) {
      Options options;
      options.overlap.collectives = which == 0;
      options.overlap.grad_reduce = which == 1;
      options.overlap.param_gather = which == 2;
      const Result result = simulate(program, box(), options);
      CHECK(result.step.value <= plain * (1 + 1e-12));
      CHECK(result.ranks[0].bytes_sent == simulate(program, box()).ranks[0].bytes_sent);
      REQUIRE(set_slowdown(options.overlap, "1.5").empty());
      CHECK(simulate(program, box(), options).step.value >= result.step.value * (1 - 1e-12));
    }
  }
}

TEST_CASE("what hides less of the collectives takes no less time") {
  for (PipelineSpec spec : specs()) {
    spec.streams = false;
    const pipeline::Program program = pipeline::make_pipeline(spec);
    double before = 0;
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"collectives"}, {"collectives", "no-tensor"}, {"collectives", "serial"}}) {
      Options options;
      for (const std::string& word : words) REQUIRE(set_overlap(options.overlap, word));
      const double step = simulate(program, box(), options).step.value;
      CHECK(step >= before * (1 - 1e-12));
      before = step;
    }
  }
}

TEST_CASE("the cost of host and launch is a floor under small ops") {
  const UnitProgram unit({.kind = "1f1b", .ranks = 1, .microbatches = 2}, 3, 4);
  cluster::Cluster slow = unit_cluster();
  slow.device.attained.host_op = Seconds(2);
  const Result result = simulate(unit.program, slow);
  // Every op waits for the host: 2 s an op, and the last one runs 1 s; a call ends with its ops.
  CHECK(result.step.value == 2 * ((3 * 2 + 1) + (4 * 2 + 1)));
  CHECK(result.ranks[0].gaps.value == 2 * (3 + 1 + 4 + 1));
  Options options;
  options.host = false;
  CHECK(simulate(unit.program, slow, options).step.value == 2 * 7);
}

TEST_CASE("the trace adds up to the step, and its memory peaks where the result says") {
  PipelineSpec spec;
  spec.schedule = "1f1b";
  spec.ranks = 4;
  spec.dp = 2;
  const pipeline::Program program = pipeline::make_pipeline(spec);
  Options options;
  options.trace = true;
  const Result result = simulate(program, box(), options);
  CHECK(result.trace.producer == "simulate");
  CHECK(result.trace.program_hash == pipeline::program_hash(program));
  const std::vector<trace::StepWindow> steps = trace::step_windows(result.trace);
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].window.end.value == result.step.value);
  const auto parts = trace::breakdown(result.trace, steps[0].window);
  REQUIRE(parts.size() == 4);
  for (size_t r = 0; r < parts.size(); ++r) {
    CHECK(parts[r].rank == result.ranks[r].rank);
    CHECK(parts[r].active[static_cast<size_t>(trace::Category::kWait)].value ==
          mw::test::close_to(result.ranks[r].total_wait().value));
  }
  for (const trace::MemoryPeak& peak : trace::memory_peaks(result.trace)) {
    for (const RankResult& rank : result.ranks) {
      if (rank.rank == peak.rank) CHECK(peak.point.total == rank.peak.bytes);
    }
  }
  // Every message leaves once and arrives once.
  int64_t out = 0, in = 0;
  for (const trace::Span& span : result.trace.spans) {
    out += span.flow_out >= 0 ? 1 : 0;
    in += span.flow_in >= 0 ? 1 : 0;
  }
  CHECK(out == 2 * 3 * spec.microbatches);
  CHECK(in == out);
}

TEST_CASE("the same program gives the same result") {
  const PipelineSpec spec = specs().back();
  Options options;
  options.trace = true;
  const Result a = simulate(pipeline::make_pipeline(spec), box(), options);
  const Result b = simulate(pipeline::make_pipeline(spec), box(), options);
  CHECK(a.step == b.step);
  CHECK(a.trace == b.trace);
}

TEST_CASE("a cluster with too few devices is refused") {
  cluster::Cluster small = box();
  small.devices = 2;
  PipelineSpec spec;
  spec.ranks = 4;
  CHECK_THROWS_WITH_AS(simulate(pipeline::make_pipeline(spec), small),
                       "unit.toml: has 2 devices, the plan has 4 ranks", Error);
}

TEST_CASE("calls know the buffers of their states, and updates behind those their outputs'") {
  // Calls that are alike are one.
  using pipeline::ActionKind;
  for (const ActionKind kind : {ActionKind::kUpdate, ActionKind::kB}) {
    pipeline::Program program;
    pipeline::Fragment& fragment = program.fragments.emplace_back(chain("U", kind, 1));
    fragment.inputs = {{pipeline::PortKind::kData, ValueId(0), "x"},
                       {pipeline::PortKind::kState, ValueId(0), "w"}};
    fragment.graph.outputs = {ValueId(0), ValueId(0)};
    pipeline::RankProgram& rank = program.ranks.emplace_back();
    rank.buffers.resize(5);
    rank.buffers[4].storage.kind = pipeline::Storage::Kind::kView;
    rank.buffers[4].storage.parent = BufferId(2);
    pipeline::Command call = call_of(0);
    call.buffers = {BufferId(0), BufferId(1), BufferId(4), BufferId(3)};
    rank.commands = {call, call};
    const FlatRank flat = flatten(program, {.bindings = true}).ranks[0];
    const bool updates = kind == ActionKind::kUpdate;
    CHECK(flat.bindings ==
          (updates ? std::vector<int32_t>{1, 2, 3, 1, 2, 3} : std::vector<int32_t>{1}));
    REQUIRE(flat.calls.size() == (updates ? 2 : 1));
    CHECK(flat.calls.back().bindings == (updates ? 3 : 0));
    CHECK(flat.commands[1].index == (updates ? 1 : 0));
    // Another state makes another call of it.
    rank.commands[1].buffers[1] = BufferId(3);
    const FlatRank other = flatten(program, {.bindings = true}).ranks[0];
    REQUIRE(other.calls.size() == 2);
    CHECK(other.bindings[static_cast<size_t>(other.calls[1].bindings)] == 3);
    CHECK(flatten(program, {}).ranks[0].calls.size() == (updates ? 2 : 1));
  }
}

}  // namespace mw::simulate
