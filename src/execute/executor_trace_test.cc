#include "execute/executor.h"

#include <doctest/doctest.h>

#include <set>

#include "execute/test_programs.h"
#include "execute/test_support.h"

namespace mw::execute {
namespace {

using pipeline::Program;

TEST_CASE("a traced run has a span for every instruction and an arrow for every message") {
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
  CHECK(trace.spans.size() == 2 * (3 * 5 + 3 * 3 + 2));
  std::multiset<int64_t> out, in;
  Bytes sent;
  for (const trace::Span& span : trace.spans) {
    CHECK(span.start.value >= 0);
    if (span.flow_out >= 0) out.insert(span.flow_out);
    if (span.flow_in >= 0) in.insert(span.flow_in);
    if (span.category == trace::Category::kStep) sent += span.bytes;
    CHECK(!trace.name(span).empty());
    if (trace.name(span) == "scale") CHECK(span.category == trace::Category::kCompute);
  }
  CHECK(out == in);
  CHECK(std::set<int64_t>(out.begin(), out.end()).size() == 6);
  CHECK(sent == Bytes(2 * 48));
}

}  // namespace
}  // namespace mw::execute
