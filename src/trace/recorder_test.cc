#include "trace/recorder.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <thread>

namespace mw::trace {
namespace {

TEST_CASE("a full recorder counts what it drops and keeps what it has") {
  Recorder recorder(RankId(3), 2, 1);
  for (int i = 0; i < 5; ++i) recorder.record(Span{.command = i});
  recorder.record(MemorySample{.bytes = Bytes(1)});
  recorder.record(MemorySample{.bytes = Bytes(2)});
  REQUIRE(recorder.spans().size() == 2);
  CHECK(recorder.spans()[1].command == 1);
  CHECK(recorder.spans()[1].rank == RankId(3));
  REQUIRE(recorder.memory().size() == 1);
  CHECK(recorder.memory()[0].bytes == Bytes(1));
  CHECK(recorder.dropped() == 4);
  recorder.clear();
  CHECK(recorder.spans().empty());
  CHECK(recorder.dropped() == 0);
}

TEST_CASE("recording never moves what was recorded before") {
  Recorder recorder(RankId(0), 100, 0);
  recorder.record(Span{});
  const Span* first = recorder.spans().data();
  for (int i = 0; i < 99; ++i) recorder.record(Span{});
  CHECK(recorder.spans().data() == first);
}

TEST_CASE("another thread reads whole records while the rank writes") {
  Recorder recorder(RankId(0), 20000, 0);
  bool whole = true;
  std::thread reader([&] {
    size_t seen = 0;
    while (seen < 20000) {
      const auto spans = recorder.spans();
      for (; seen < spans.size(); ++seen) {
        whole &= spans[seen].command == static_cast<int>(seen) &&
                 spans[seen].flow_in == spans[seen].command;
      }
    }
  });
  for (int i = 0; i < 20000; ++i) recorder.record(Span{.command = i, .flow_in = i});
  reader.join();
  CHECK(whole);
}

TEST_CASE(
    "a scoped span lasts from its construction to its destruction, also when an exception passes") {
  FakeClock clock;
  Recorder recorder(RankId(0), 4, 0);
  clock.advance(Seconds(2));
  try {
    ScopedSpan span(&recorder, clock, {.category = Category::kComm});
    clock.advance(Seconds(3));
    span.span().bytes = Bytes(7);
    throw std::runtime_error("");
  } catch (const std::runtime_error&) {
  }
  REQUIRE(recorder.spans().size() == 1);
  CHECK(recorder.spans()[0].start == Seconds(2));
  CHECK(recorder.spans()[0].duration == Seconds(3));
  CHECK(recorder.spans()[0].bytes == Bytes(7));
  {
    ScopedSpan nothing(nullptr, clock, {});
  }
  CHECK(recorder.spans().size() == 1);
}

TEST_CASE("a name is interned once") {
  NameTable names;
  CHECK(names.intern("a") == NameId(0));
  CHECK(names.intern("b") == NameId(1));
  CHECK(names.intern("a") == NameId(0));
  CHECK(names.names() == std::vector<std::string>{"a", "b"});
}

}  // namespace
}  // namespace mw::trace
