#include "trace/chrome_trace.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"

namespace mw::trace {
namespace {

Seconds ns(int64_t n) { return Seconds(static_cast<double>(n) / 1e9); }

// A send from rank 0 to rank 1 within a step, and some memory.
Trace small_trace() {
  Trace trace;
  trace.program_hash = "00ff";
  trace.producer = "simulate";
  trace.names = {"step", "send \"x\"", "receive"};
  trace.rank_names = {{RankId(1), "rank 1, the second"}};
  trace.streams = {{RankId(0), StreamId(0), "compute"}, {RankId(1), StreamId(0), "compute"}};
  trace.spans.push_back({.rank = RankId(0),
                         .category = Category::kStep,
                         .name = NameId(0),
                         .duration = ns(5000),
                         .command = 3});
  trace.spans.push_back({.rank = RankId(0),
                         .stream = StreamId(0),
                         .category = Category::kComm,
                         .name = NameId(1),
                         .start = ns(1500),
                         .duration = ns(250),
                         .bytes = Bytes(64),
                         .flops = Flops(1.5e9),
                         .microbatch = MicrobatchId(0),
                         .stage = StageId(2),
                         .command = 0,
                         .flow_out = 9});
  trace.spans.push_back({.rank = RankId(1),
                         .stream = StreamId(0),
                         .category = Category::kWait,
                         .name = NameId(2),
                         .start = ns(1000),
                         .duration = ns(1000),
                         .flow_in = 9});
  trace.memory = {{RankId(0), ns(0), MemoryCategory::kWeight, Bytes(100)},
                  {RankId(0), ns(2000), MemoryCategory::kSaved, Bytes(20)}};
  sort(trace);
  return trace;
}

TEST_CASE("a trace is written as process names, spans with arguments, arrows and counters") {
  CHECK(
      to_chrome_json(small_trace()) ==
      R"({"displayTimeUnit":"ms","otherData":{"schema":"meshwright-trace-1","program_hash":"00ff","producer":"simulate","dropped":0},"traceEvents":[
{"ph":"M","pid":1,"name":"process_name","args":{"name":"rank 0"}},
{"ph":"M","pid":1,"name":"process_sort_index","args":{"sort_index":0}},
{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"steps"}},
{"ph":"M","pid":1,"tid":1,"name":"thread_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":2,"name":"process_name","args":{"name":"rank 1, the second"}},
{"ph":"M","pid":2,"name":"process_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":1,"tid":2,"name":"thread_sort_index","args":{"sort_index":2}},
{"ph":"M","pid":2,"tid":2,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":2,"tid":2,"name":"thread_sort_index","args":{"sort_index":2}},
{"ph":"X","pid":1,"tid":1,"ts":0.000,"dur":5.000,"cat":"step","name":"step","args":{"command":3}},
{"ph":"X","pid":1,"tid":2,"ts":1.500,"dur":0.250,"cat":"comm","name":"send \"x\"","args":{"bytes":64,"flops":1.5e+09,"microbatch":0,"stage":2,"command":0,"flow_out":9}},
{"ph":"s","pid":1,"tid":2,"ts":1.500,"cat":"message","name":"message","id":9},
{"ph":"X","pid":2,"tid":2,"ts":1.000,"dur":1.000,"cat":"wait","name":"receive","args":{"flow_in":9}},
{"ph":"f","pid":2,"tid":2,"ts":1.999,"cat":"message","name":"message","id":9,"bp":"e"},
{"ph":"C","pid":1,"ts":0.000,"name":"memory","args":{"weights":100,"gradients":0,"optimizer":0,"activations":0,"communication buffers":0,"temporaries":0,"other":0}},
{"ph":"C","pid":1,"ts":0.000,"name":"memory total","args":{"bytes":100}},
{"ph":"C","pid":1,"ts":2.000,"name":"memory","args":{"weights":100,"gradients":0,"optimizer":0,"activations":20,"communication buffers":0,"temporaries":0,"other":0}},
{"ph":"C","pid":1,"ts":2.000,"name":"memory total","args":{"bytes":120}}
]}
)");
}

TEST_CASE("what was written is read back") {
  CHECK(from_chrome_json(to_chrome_json(small_trace()), "t.json") == small_trace());
  CHECK(from_chrome_json(to_chrome_json(Trace{}), "t.json") == Trace{});
}

TEST_CASE("what began before the trace's zero is read back, and memory is told where it changes") {
  Trace trace = small_trace();
  trace.spans[1].start = ns(-1500);
  sort(trace);
  const std::string text = to_chrome_json(trace);
  CHECK(text.find("\"ts\":-1.500,\"dur\":0.250") != std::string::npos);
  CHECK(from_chrome_json(text, "t.json") == trace);
  trace.memory.push_back({RankId(0), ns(3000), MemoryCategory::kSaved, Bytes(20)});
  CHECK(to_chrome_json(trace) == text);
}

TEST_CASE("an arrow to a span of no length arrives where the span begins") {
  Trace trace = small_trace();
  trace.spans[2].duration = Seconds(0);
  CHECK(to_chrome_json(trace).find(
            "{\"ph\":\"f\",\"pid\":2,\"tid\":2,\"ts\":1.000,\"cat\":\"message\"") !=
        std::string::npos);
}

TEST_CASE("random traces are read back, and written again they have the same bytes") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    uint64_t state = seed * 1000;
    const auto draw = [&](int64_t below) {
      return static_cast<int64_t>(mix_bits(state++) % below);
    };
    Trace trace;
    trace.producer = "execute";
    trace.dropped = draw(3);
    for (int i = 0; i < 4; ++i) trace.names.push_back(fmt::format("name {}\n", i));
    for (int i = 0; i < 50; ++i) {
      trace.spans.push_back({.rank = RankId(draw(4)),
                             .stream = StreamId(draw(3) - 1),
                             .category = static_cast<Category>(draw(kCategories)),
                             .name = NameId(draw(5) - 1),
                             .start = ns(draw(int64_t{1} << 40)),
                             .duration = ns(draw(1000000)),
                             .bytes = Bytes(draw(int64_t{1} << 50)),
                             .flops = Flops(0.1 * static_cast<double>(draw(1000))),
                             .microbatch = MicrobatchId(draw(3) - 1),
                             .stage = StageId(draw(3) - 1),
                             .command = static_cast<int32_t>(draw(9) - 1)});
    }
    for (int i = 0; i < 20; ++i) {
      trace.memory.push_back({RankId(draw(4)), ns(1000 * i + draw(1000)),
                              static_cast<MemoryCategory>(draw(kMemoryCategories)), Bytes(1 + i)});
    }
    sort(trace);
    const std::string text = to_chrome_json(trace);
    const Trace again = from_chrome_json(text, "t.json");
    CHECK(to_chrome_json(again) == text);
    REQUIRE(again.spans.size() == trace.spans.size());
    for (size_t i = 0; i < trace.spans.size(); ++i) {
      Span span = trace.spans[i];
      CHECK(again.name(again.spans[i]) == trace.name(span));
      span.name = again.spans[i].name;
      CHECK(std::abs(span.end().value - again.spans[i].end().value) < 1e-9);
      span.duration = again.spans[i].duration;
      CHECK(again.spans[i] == span);
    }
    CHECK(again.memory == trace.memory);
  }
}

TEST_CASE("a trace of many pieces is one text, handed on in order") {
  Trace trace;
  trace.names = {"work"};
  for (int i = 0; i < 150000; ++i) {
    trace.spans.push_back({.rank = RankId(i / 50000),
                           .stream = StreamId(0),
                           .name = NameId(0),
                           .start = ns(i),
                           .duration = ns(1),
                           .command = i});
    if (i % 50000 < 3)
      trace.memory.push_back({RankId(i / 50000), ns(i), MemoryCategory::kSaved, Bytes(i + 1)});
  }
  std::string text;
  int parts = 0;
  write_chrome_json(trace, [&](std::string_view part) {
    text += part;
    ++parts;
  });
  CHECK(parts > 30);
  CHECK(text == to_chrome_json(trace));
  const Trace again = from_chrome_json(text, "t.json");
  CHECK(again.spans == trace.spans);
  CHECK(again.memory == trace.memory);
}

TEST_CASE("a span that begins at another's end still does after rounding") {
  Trace trace;
  Seconds now;
  for (int i = 0; i < 1000; ++i) {
    // Halves of a nanosecond among them, where rounding start and duration by themselves would err.
    const Span span = {.rank = RankId(0),
                       .stream = StreamId(0),
                       .start = now,
                       .duration = Seconds((1.5 + 0.1 * (i % 7)) * 1e-9)};
    trace.spans.push_back(span);
    now = span.end();
  }
  const Trace again = from_chrome_json(to_chrome_json(trace), "t.json");
  int apart = 0;
  for (size_t i = 1; i < again.spans.size(); ++i) {
    apart += std::llround(again.spans[i - 1].end().value * 1e9) !=
             std::llround(again.spans[i].start.value * 1e9);
  }
  CHECK(apart == 0);
}

TEST_CASE("a file that is not ours is refused with the reason") {
  const auto read = [](std::string_view text) { from_chrome_json(text, "t.json"); };
  CHECK_THROWS_WITH_AS(
      read(R"({"otherData":{"schema":"x"},"traceEvents":[]})"),
      "t.json: otherData.schema: is \"x\", must be \"meshwright-trace-1\"; only traces "
      "written by meshwright can be read",
      Error);
  CHECK_THROWS_AS(read("[]"), Error);
  CHECK_THROWS_AS(read("{"), Error);
  std::string text = to_chrome_json(small_trace());
  text.replace(text.find("\"cat\":\"wait\""), 12, "\"cat\":\"wat\"");
  CHECK_THROWS_WITH_AS(read(text), "t.json: traceEvents[13].cat: unknown category \"wat\"", Error);
}

}  // namespace
}  // namespace mw::trace
