#include "trace/trace.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "trace/breakdown.h"
#include "trace/memory_curve.h"

namespace mw::trace {
namespace {

Span span_of(int rank, int stream, Category category, double start, double duration) {
  return {.rank = RankId(rank),
          .stream = StreamId(stream),
          .category = category,
          .start = Seconds(start),
          .duration = Seconds(duration)};
}

Trace trace_of(std::vector<Span> spans) {
  Trace trace;
  trace.spans = std::move(spans);
  sort(trace);
  return trace;
}

Seconds active(const RankBreakdown& b, Category c) { return b.active[static_cast<size_t>(c)]; }
Seconds exposed(const RankBreakdown& b, Category c) { return b.exposed[static_cast<size_t>(c)]; }

TEST_CASE("recorders merge into one trace that begins at zero, sorted, with named streams") {
  NameTable names;
  const NameId matmul = names.intern("matmul");
  Recorder one(RankId(1), 4, 4), zero(RankId(0), 1, 4);
  one.record({.stream = StreamId(0), .name = matmul, .start = Seconds(12), .duration = Seconds(1)});
  one.record({.stream = StreamId(0), .name = matmul, .start = Seconds(10), .duration = Seconds(1)});
  zero.record({.stream = StreamId(1), .start = Seconds(11)});
  zero.record({.stream = StreamId(1), .start = Seconds(11)});
  zero.record(MemorySample{.time = Seconds(13), .bytes = Bytes(5)});
  const Recorder* recorders[] = {&one, &zero};
  Trace trace = merge(recorders, names, "abc", "execute");
  REQUIRE(trace.spans.size() == 3);
  CHECK(trace.program_hash == "abc");
  CHECK(trace.producer == "execute");
  CHECK(trace.spans[0].rank == RankId(0));
  CHECK(trace.spans[0].start == Seconds(1));
  CHECK(trace.spans[1].start == Seconds(0));
  CHECK(trace.name(trace.spans[1]) == "matmul");
  CHECK(trace.name(trace.spans[0]) == "");
  CHECK(trace.memory[0].time == Seconds(3));
  CHECK(trace.dropped == 1);
  CHECK(ranks(trace) == std::vector<RankId>{RankId(0), RankId(1)});
  name_stream(trace, StreamId(1), "comm");
  CHECK(trace.streams == std::vector<StreamName>{{RankId(0), StreamId(1), "comm"},
                                                 {RankId(1), StreamId(0), "stream 0"}});
  CHECK(merge(recorders, names, "abc", "execute", Seconds(4)).memory[0].time == Seconds(9));
}

TEST_CASE("traces of several processes become one with one table of names") {
  Trace a = trace_of({span_of(0, 0, Category::kCompute, 0, 1)});
  Trace b = trace_of({span_of(1, 0, Category::kCompute, 0, 1)});
  a.names = {"x", "y"};
  b.names = {"y"};
  a.spans[0].name = NameId(1);
  b.spans[0].name = NameId(0);
  const Trace both[] = {b, a};
  const Trace merged = merge(both);
  CHECK(merged.name(merged.spans[0]) == "y");
  CHECK(merged.name(merged.spans[1]) == "y");
  CHECK(merged.names == std::vector<std::string>{"y", "x"});
  const StreamName zero{RankId(0), StreamId(0), "c"}, one{RankId(1), StreamId(0), "c"};
  a.streams = {zero, one}, b.streams = {one};
  const Trace named[] = {b, a};
  CHECK(merge(named).streams == std::vector<StreamName>{zero, one});

  a.dropped = 2, b.dropped = 3;
  const Trace lossy[] = {a, b};
  CHECK(merge(lossy).dropped == 5);
  a.program_hash = "1", b.program_hash = "2";
  a.producer = b.producer = "execute";
  const Trace other[] = {a, b};
  CHECK_THROWS_WITH_AS(
      merge(other),
      "traces of different runs: one is of program 1 by execute, another of program 2 by "
      "execute; merge the traces of one run",
      Error);
}

TEST_CASE("of spans that begin at one time those around others come first") {
  const Trace trace =
      trace_of({span_of(0, 0, Category::kCompute, 1, 1), span_of(0, 0, Category::kCall, 1, 3),
                span_of(0, 0, Category::kCompute, 0, 1)});
  CHECK(trace.spans[0].start == Seconds(0));
  CHECK(trace.spans[1].category == Category::kCall);
}

TEST_CASE("each moment of a window belongs to one category, and overlaps hide communication") {
  // 0  1  2  3  4  5  6  7  8
  // CCCCCCCCC                   compute, with two that overlap
  //       MMMMMMMMM             comm: [3, 5) is exposed
  //                XXX          copy
  //             WWWWWWWWW       wait: [6, 7) is exposed
  const Trace trace = trace_of({
      span_of(0, 0, Category::kStep, 0, 8),
      span_of(0, 0, Category::kCompute, 0, 2),
      span_of(0, 1, Category::kCompute, 1, 2),
      span_of(0, 2, Category::kComm, 2, 3),
      span_of(0, 3, Category::kCopy, 5, 1),
      span_of(0, 0, Category::kWait, 4, 3),
      span_of(1, 0, Category::kIo, -5, 6),
  });
  const auto list = breakdown(trace, {Seconds(0), Seconds(8)});
  REQUIRE(list.size() == 2);
  const RankBreakdown& b = list[0];
  CHECK(b.rank == RankId(0));
  CHECK(list[1].rank == RankId(1));
  CHECK(active(b, Category::kCompute) == Seconds(3));
  CHECK(active(b, Category::kComm) == Seconds(3));
  CHECK(active(b, Category::kWait) == Seconds(3));
  CHECK(active(b, Category::kStep) == Seconds(8));
  CHECK(exposed(b, Category::kCompute) == Seconds(3));
  CHECK(b.exposed_comm() == Seconds(2));
  CHECK(exposed(b, Category::kCopy) == Seconds(1));
  CHECK(exposed(b, Category::kWait) == Seconds(1));
  CHECK(exposed(b, Category::kStep) == Seconds(0));
  CHECK(b.idle == Seconds(1));
  CHECK(b.not_working() == Seconds(2));
  Seconds sum = b.idle;
  for (Seconds time : b.exposed) sum += time;
  CHECK(sum == b.window);
  CHECK(exposed(list[1], Category::kIo) == Seconds(1));  // cut at the window
  CHECK(list[1].idle == Seconds(7));
}

TEST_CASE("an update is what its waits leave of it") {
  const Trace trace = trace_of({
      span_of(0, 0, Category::kStep, 0, 8),
      span_of(0, 0, Category::kCompute, 0, 3),
      span_of(0, 0, Category::kUpdate, 3, 4),
      span_of(0, 0, Category::kWait, 4, 1),
  });
  const RankBreakdown b = breakdown(trace, {Seconds(0), Seconds(8)}).at(0);
  CHECK(exposed(b, Category::kCompute) == Seconds(3));
  CHECK(exposed(b, Category::kUpdate) == Seconds(3));
  CHECK(exposed(b, Category::kWait) == Seconds(1));
  CHECK(b.idle == Seconds(1));
}

TEST_CASE("a step lasts from its first rank's begin to its last rank's end") {
  std::vector<Span> spans = {
      span_of(0, 0, Category::kStep, 1, 3), span_of(1, 0, Category::kStep, 0, 3),
      span_of(2, 0, Category::kStep, 2, 3), span_of(0, 0, Category::kStep, 5, 1)};
  spans[0].command = spans[1].command = spans[2].command = 7;
  spans[3].command = 8;
  const auto steps = step_windows(trace_of(spans));
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].step == 7);
  CHECK(steps[0].window.begin == Seconds(0));
  CHECK(steps[0].window.end == Seconds(5));
  CHECK(steps[1].window.end == Seconds(6));
  Trace all = trace_of(spans);
  CHECK(whole(all).begin == Seconds(0));
  CHECK(whole(all).end == Seconds(6));
  all.memory = {{.rank = RankId(0), .time = Seconds(-1)}, {.rank = RankId(0), .time = Seconds(9)}};
  CHECK(whole(all).begin == Seconds(-1));
  CHECK(whole(all).end == Seconds(9));
  CHECK(whole(Trace{}).end == Seconds(0));
}

TEST_CASE("totals by name are of the spans that start in the window, largest time first") {
  Trace trace =
      trace_of({span_of(0, 0, Category::kCompute, 0, 1), span_of(1, 0, Category::kCompute, 0, 1),
                span_of(0, 1, Category::kComm, 1, 5), span_of(0, 1, Category::kComm, 9, 5)});
  trace.names = {"matmul", "all_reduce"};
  for (Span& span : trace.spans) {
    span.name = NameId(span.category == Category::kComm ? 1 : 0);
    span.bytes = Bytes(10);
    span.flops = Flops(2);
  }
  const auto totals = totals_by_name(trace, {Seconds(0), Seconds(9)});
  REQUIRE(totals.size() == 2);
  CHECK(totals[0].name == "all_reduce");
  CHECK(totals[0].count == 1);
  CHECK(totals[0].time == Seconds(5));
  CHECK(totals[1].count == 2);
  CHECK(totals[1].bytes == Bytes(20));
  CHECK(totals[1].flops == Flops(4));
  const auto list = breakdown(trace, {Seconds(0), Seconds(9)});
  CHECK(list[0].comm_bytes == Bytes(10));
  CHECK(list[0].flops == Flops(4));
  // What encloses other spans is not told beside them.
  for (const Category around : {Category::kStep, Category::kCall})
    trace.spans.push_back(span_of(0, 0, around, 0, 9));
  CHECK(totals_by_name(trace, {Seconds(0), Seconds(9)}).size() == 2);
}

TEST_CASE(
    "a memory curve holds the last level of each category, and the peak is its first largest "
    "total") {
  Trace trace;
  const auto sample = [&](double time, MemoryCategory category, int64_t bytes) {
    trace.memory.push_back({RankId(2), Seconds(time), category, Bytes(bytes)});
  };
  sample(0, MemoryCategory::kWeight, 10);
  sample(1, MemoryCategory::kSaved, 5);
  sample(1, MemoryCategory::kWorkspace, 3);
  sample(2, MemoryCategory::kWorkspace, 0);
  sample(3, MemoryCategory::kWorkspace, 3);
  const auto curve = memory_curve(trace, RankId(2));
  REQUIRE(curve.size() == 4);
  CHECK(curve[0].total == Bytes(10));
  CHECK(curve[1].total == Bytes(18));
  CHECK(curve[2].total == Bytes(15));
  trace.spans = {span_of(1, 0, Category::kCompute, 0, 1)};  // of a rank without samples
  const auto peaks = memory_peaks(trace);
  REQUIRE(peaks.size() == 1);
  CHECK(peaks[0].rank == RankId(2));
  CHECK(peaks[0].point.time == Seconds(1));
  CHECK(peaks[0].point.by_category[static_cast<size_t>(MemoryCategory::kSaved)] == Bytes(5));
  CHECK(memory_curve(trace, RankId(0)).empty());
}

}  // namespace
}  // namespace mw::trace
