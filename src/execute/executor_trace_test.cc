#include "execute/executor.h"

#include <doctest/doctest.h>

#include <set>

#include "execute/test_programs.h"
#include "execute/test_support.h"
#include "trace/memory_curve.h"

namespace mw::execute {
namespace {

using pipeline::Program;

TEST_CASE("a traced run has a span for every instruction and call and an arrow for every message") {
  const Program program = two_stages();
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  trace::Trace trace;
  executor.run(0, load_ramp);
  executor.run(0, load_ramp, &trace);
  executor.run(0, load_ramp, &trace);
  CHECK(trace.dropped == 0);
  CHECK(trace.producer == "execute");
  CHECK(trace.program_hash == pipeline::program_hash(program));
  CHECK(trace.spans.size() == 2 * (3 * (5 + 1) + 3 * (3 + 1) + 2));
  std::multiset<int64_t> out, in, loads, calls;
  std::vector<trace::Span> steps;  // of rank 0
  Bytes sent;
  for (const trace::Span& span : trace.spans) {
    CHECK(span.start.value >= 0);
    if (span.flow_out >= 0) out.insert(span.flow_out);
    if (span.flow_in >= 0) in.insert(span.flow_in);
    if (span.category == trace::Category::kStep) sent += span.bytes;
    if (span.category == trace::Category::kStep && span.rank == RankId(0)) steps.push_back(span);
    if (span.category == trace::Category::kCall) calls.insert(span.microbatch.value);
    CHECK(!trace.name(span).empty());
    if (trace.name(span) == "scale") CHECK(span.category == trace::Category::kCompute);
    if (trace.name(span) == "scale") CHECK(span.flops == Flops(4));
    if (trace.name(span) == "load x") loads.insert(span.microbatch.value);
  }
  CHECK(loads == std::multiset<int64_t>{0, 0, 1, 1, 2, 2});
  CHECK(calls == std::multiset<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2});
  REQUIRE(steps.size() == 2);
  CHECK(steps[1].start >= steps[0].end());
  CHECK(out == in);
  CHECK(std::set<int64_t>(out.begin(), out.end()).size() == 6);
  CHECK(sent == Bytes(2 * 48));
}

TEST_CASE("messages of replicas beside one another have an arrow each") {
  Program program = two_stages();
  program.mesh = cluster::Mesh({{"pp", 2}, {"dp", 2}});
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  trace::Trace trace;
  executor.run(0, load_ramp, &trace);
  std::set<int64_t> out;
  for (const trace::Span& span : trace.spans) {
    if (span.flow_out >= 0) out.insert(span.flow_out);
  }
  CHECK(out.size() == 2 * 3);
}

TEST_CASE("a call's span encloses its ops, and the memory curve is the buffers' lives") {
  const Program program = two_stages();
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  trace::Trace trace;
  executor.run(0, load_ramp, &trace);
  int calls = 0;
  for (const trace::Span& call : trace.spans) {
    if (call.category != trace::Category::kCall) continue;
    ++calls;
    CHECK(trace.name(call) == fmt::format("F stage {}", call.rank.value));
    for (const trace::Span& op : trace.spans) {
      if (op.rank != call.rank || op.command != call.command) continue;
      if (op.category != trace::Category::kCompute) continue;
      CHECK(op.start >= call.start);
      CHECK(op.end() <= call.end());
    }
  }
  CHECK(calls == 6);
  const std::vector<trace::MemoryPeak> peaks = trace::memory_peaks(trace);
  REQUIRE(peaks.size() == 2);
  // Rank 0 has x and the workspace's one value, rank 1 the sum and two slots.
  CHECK(peaks[0].point.total == Bytes(16 + 16));
  CHECK(peaks[1].point.total == Bytes(16 + 2 * 16));
  for (const trace::MemoryPeak& peak : peaks) {
    const std::vector<trace::MemoryPoint> curve = trace::memory_curve(trace, peak.rank);
    CHECK(curve.back().by_category[static_cast<size_t>(trace::MemoryCategory::kWorkspace)] ==
          Bytes(0));
    // What a run leaves: the state and the slots.
    CHECK(curve.back().total == Bytes(peak.rank == RankId(1) ? 16 + 2 * 16 : 0));
  }
}

TEST_CASE("a started all-reduce is communication, and what waits for its end a wait") {
  FragmentBuilder fragment("B");
  const ValueId in = fragment.input("x", f32({1}));
  const ValueId sum = fragment.collective(
      ir::OpKind::kAllReduce, {ir::AxisGroup{{"tp"}}, ir::Reduction::kSum, 0, 0, 0}, in, f32({1}));
  const ValueId beside = fragment.scale(in, 2);
  fragment.output(fragment.op(ir::OpKind::kAdd, ir::NoAttrs{}, {sum, beside}, {f32({1})})[0], "y");
  OneFragment one(cluster::Mesh({{"tp", 2}}), fragment, f32({1}), f32({1}));
  one.program.fragments[0].launches[0] = {StreamId(1), {}, EventId(0)};
  one.program.fragments[0].launches[2].waits = {EventId(0)};
  FakeBackend backend;
  Executor executor({&one.program}, backend, {});
  trace::Trace trace;
  executor.run(0, no_loads, &trace);
  std::multiset<trace::Category> categories;
  for (const trace::Span& span : trace.spans) {
    if (trace.name(span) != "all_reduce") continue;
    categories.insert(span.category);
    CHECK(span.stream == StreamId(1));
  }
  using trace::Category;
  CHECK(categories == std::multiset<Category>{Category::kComm, Category::kComm, Category::kWait,
                                              Category::kWait});
}

TEST_CASE("a program is traced whole, though a smaller one was traced last") {
  const Program large = two_stages();
  Program small = two_stages();
  for (pipeline::RankProgram& rank : small.ranks) rank.commands.clear();
  FakeBackend backend;
  Executor executor({&large, &small}, backend, {});
  for (const int which : {0, 1, 0}) {
    trace::Trace trace;
    executor.run(which, load_ramp, &trace);
    CHECK(trace.dropped == 0);
    CHECK(trace.spans.size() == (which == 0 ? 3 * (5 + 1) + 3 * (3 + 1) + 2 : 2));
  }
}

}  // namespace
}  // namespace mw::execute
