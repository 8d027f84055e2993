// Spans by hand: computations one second each, a byte a second.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pipeline/test_pipeline.h"
#include "simulate/test_programs.h"

namespace mw::simulate {
namespace {

using pipeline::ActionKind;
using Kind = pipeline::Command::Kind;

// "all_reduce on 2 from 1 to 5"
std::vector<std::string> spans_of(const trace::Trace& trace, int rank) {
  std::vector<std::string> all;
  for (const trace::Span& span : trace.spans) {
    if (span.rank != RankId(rank) || span.category == trace::Category::kStep) continue;
    all.push_back(fmt::format("{} {} on {} from {:g} to {:g}", trace::category_name(span.category),
                              trace.name(span), span.stream.value, span.start.value,
                              span.end().value));
  }
  return all;
}
using Spans = std::vector<std::string>;

// Two ranks that compute for 2 s and 1 s, and meet in an update.
pipeline::Program meeting() {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 2}});
  const ir::DeviceGroup all = ir::AxisGroup{{"pp"}};
  program.fragments = {chain("long", ActionKind::kF, 2), chain("short", ActionKind::kF, 1),
                       sequence("UPDATE", ActionKind::kUpdate, "crc", all)};
  program.ranks.resize(2);
  for (size_t r = 0; r < 2; ++r)
    program.ranks[r].commands = {call_of(static_cast<int32_t>(r)), call_of(2)};
  return program;
}

}  // namespace

TEST_CASE("ops are spans of their own where they ran, in calls that meet others, too") {
  Options options;
  options.trace = options.op_spans = true;
  const trace::Trace trace = simulate(meeting(), unit_cluster(0, 1), options).trace;
  CHECK(spans_of(trace, 0) ==
        Spans{"compute constant on 0 from 0 to 1", "compute relu on 0 from 1 to 2",
              "compute constant on 0 from 2 to 3", "compute relu on 0 from 7 to 8",
              "comm all_reduce on 1 from 3 to 7"});
  CHECK(spans_of(trace, 1) ==
        Spans{"compute constant on 0 from 0 to 1", "compute constant on 0 from 1 to 2",
              "wait waits for pipeline rank 0 in a collective on 0 from 2 to "
              "3",
              "compute relu on 0 from 7 to 8", "comm all_reduce on 1 from 3 to 7"});
}

TEST_CASE("calls are spans where ops are none, the update's of a category of its own") {
  Options options;
  options.trace = true;
  const trace::Trace trace = simulate(meeting(), unit_cluster(0, 1), options).trace;
  CHECK(spans_of(trace, 1) ==
        Spans{"compute short on 0 from 0 to 1", "update UPDATE on 0 from 1 to 8",
              "wait waits for pipeline rank 0 in a collective on 0 from 2 to 3"});
}

TEST_CASE("a message is under way with its sender, and arrives at a moment of its receiver") {
  const UnitProgram unit({.kind = "1f1b", .ranks = 2, .microbatches = 2}, 1, 2, 1);
  Options options;
  options.trace = true;
  const trace::Trace trace = simulate(unit.program, unit_cluster(0.5, 2), options).trace;
  // 4 bytes at 2 bytes a second, and half a second.
  const Spans sender = spans_of(trace, 0), receiver = spans_of(trace, 1);
  const auto has = [](const Spans& spans, const char* text) {
    return std::find(spans.begin(), spans.end(), text) != spans.end();
  };
  CHECK(has(sender, "comm send x on 1 from 1 to 3.5"));
  CHECK(!has(sender, "comm receive x on 1 from 3.5 to 3.5"));
  CHECK(has(receiver, "comm receive x on 1 from 3.5 to 3.5"));
  int32_t microbatch = 0;
  for (const trace::Span& span : trace.spans) {
    if (span.rank != RankId(0) || trace.name(span) != "F stage 0") continue;
    CHECK(span.stage == StageId(0));
    CHECK(span.microbatch == MicrobatchId(microbatch++));
  }
  CHECK(microbatch == 2);
}

TEST_CASE("messages with each peer are on a stream of their own and leave one after the other") {
  for (const char* kind : {"1f1b", "gpipe", "interleaved-1f1b", "zb-v"}) {
    CAPTURE(std::string(kind));
    const bool chunks = kind[0] == 'i' || kind[0] == 'z';
    pipeline::ScheduleRequest request{.kind = kind, .ranks = 4, .microbatches = 8};
    if (chunks) request.chunks = 2;
    const UnitProgram unit(request, 1, 1, 1);
    Options options;
    options.trace = true;
    // A message takes four times as long as a forward.
    const trace::Trace trace = simulate(unit.program, unit_cluster(0.25, 1), options).trace;
    std::map<std::pair<int, int>, std::vector<const trace::Span*>> sends;
    std::map<int64_t, const trace::Span*> arrivals;
    for (const trace::Span& span : trace.spans) {
      if (span.flow_in >= 0) arrivals[span.flow_in] = &span;
      if (span.flow_out >= 0) sends[{span.rank.value, span.stream.value}].push_back(&span);
    }
    std::map<std::pair<int, int>, std::string> names;
    for (const trace::StreamName& stream : trace.streams)
      names[{stream.rank.value, stream.stream.value}] = stream.name;
    bool waited = false;
    for (auto& [stream, spans] : sends) {
      std::sort(spans.begin(), spans.end(),
                [](const auto* a, const auto* b) { return a->start < b->start; });
      for (size_t i = 0; i < spans.size(); ++i) {
        const trace::Span& arrived = *arrivals.at(spans[i]->flow_out);
        CHECK(arrived.start == spans[i]->end());
        CHECK(names.at(stream) == fmt::format("messages, pipeline rank {}", arrived.rank.value));
        CHECK(names.at({arrived.rank.value, arrived.stream.value}) ==
              fmt::format("messages, pipeline rank {}", stream.first));
        if (i == 0) continue;
        CHECK(spans[i - 1]->end() <= spans[i]->start);
        waited = waited || spans[i - 1]->end() == spans[i]->start;
      }
    }
    CHECK(waited);
  }
}

TEST_CASE("what an update sends beside the calls before it is on streams of its own") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 1}, {"dp", 2}});
  const ir::DeviceGroup dp = ir::AxisGroup{{"dp"}};
  program.fragments = {sequence("B", ActionKind::kB, "crc", dp),
                       sequence("UPDATE", ActionKind::kUpdate, "crc", dp)};
  program.ranks.resize(1);
  program.ranks[0].commands = {call_of(0), call_of(1)};
  for (const bool ahead : {false, true}) {
    Options options;
    options.trace = options.op_spans = true;
    options.overlap.grad_reduce = ahead;
    const trace::Trace trace = simulate(program, unit_cluster(0, 1), options).trace;
    std::vector<int> streams;
    for (const trace::Span& span : trace.spans) {
      if (span.category == trace::Category::kComm) streams.push_back(span.stream.value);
    }
    CHECK(streams == (ahead ? std::vector<int>{1, 2} : std::vector<int>{1, 1}));
    CHECK(trace.streams.size() == (ahead ? 3 : 2));
  }
}

TEST_CASE("a rank's spans have all that it sends and computes, as calls or as ops") {
  pipeline::PipelineSpec spec;
  spec.schedule = "1f1b";
  spec.ranks = 2;
  spec.dp = spec.tp = 2;
  spec.zero = 1;
  const pipeline::Program program = pipeline::make_pipeline(spec);
  cluster::Cluster box = unit_cluster(1e-6, 1e9);
  for (const bool scatter : {false, true}) {
    for (const bool ops : {false, true}) {
      CAPTURE(scatter);
      CAPTURE(ops);
      Options options;
      options.trace = true;
      options.op_spans = ops;
      options.scatter_gather = scatter;
      const Result result = simulate(program, box, options);
      for (const RankResult& rank : result.ranks) {
        Bytes bytes;
        Flops flops;
        for (const trace::Span& span : result.trace.spans) {
          if (span.rank != rank.rank) continue;
          bytes += span.bytes;
          flops += span.flops;
        }
        CHECK(bytes == rank.bytes_sent);
        CHECK(flops.value == rank.flops.value);
        CHECK(flops.value > 0);
      }
    }
  }
}

}  // namespace mw::simulate
