#include "report/page.h"

#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include <doctest/doctest.h>

#include "base/json.h"
#include "base/rng.h"
#include "report/page_data.h"

using namespace mw;
using namespace mw::report;

namespace {

trace::Span bar(const char*, int name, double start, double takes, int microbatch) {
  trace::Span span;
  span.rank = RankId(0);
  span.stream = StreamId(0);
  span.name = trace::NameId(name);
  span.start = Seconds(start);
  span.duration = Seconds(takes);
  span.microbatch = MicrobatchId(microbatch);
  span.stage = StageId(0);
  return span;
}

Page page_of(std::vector<trace::Span> spans) {
  Page page{"a </title> of <b>", "sub", {}};
  PageRun run;
  run.plan = "pp=1";
  run.step = Seconds(1);
  run.ranks.push_back({RankId(0), "stage 0", {{"computation", Seconds(1)}}, {}, Bytes(7)});
  run.trace.names = {"F", "B"};
  run.trace.streams = {{RankId(0), StreamId(0), "compute"}};
  run.trace.spans = std::move(spans);
  page.runs.push_back(std::move(run));
  return page;
}

// Reads what packed_base64 writes.
class Unpacker {
 public:
  explicit Unpacker(const std::string& base64) {
    const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t word = 0, bits = 0;
    for (const char c : base64.substr(0, base64.find('='))) {
      word = word << 6 | static_cast<uint32_t>(digits.find(c));
      bits += 6;
      if (bits < 8) continue;
      bits -= 8;
      bytes_.push_back(static_cast<uint8_t>(word >> bits));
    }
  }
  int64_t number() {
    int64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t byte = bytes_.at(at_++);
      value += static_cast<int64_t>(byte % 128) << shift;
      if (byte < 128) return value;
    }
  }
  int64_t signed_number() {
    const int64_t n = number();
    return n % 2 == 0 ? n / 2 : -(n + 1) / 2;
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::vector<uint8_t> bytes_;
  size_t at_ = 0;
};

}  // namespace

TEST_CASE("bars are packed with what changes from one to the next of a name") {
  std::vector<std::vector<std::string>> names;
  // 1 lane: stream 0, name 0 "compute", 3 bars; then no memory.
  // F (name 1): head 8, start 0, takes 300 = 0xac 0x02, category 0, stage 1, bytes 0, FLOPs 0,
  // mb 1. B (name 2): head 16, start +1 after the end = 2, takes 1, 0, 1, 0, 0, 1. F again: head 8
  // + 7, start 0 after the end, takes 2.
  const std::string text = packed_base64(
      page_of({bar("", 0, 0, 300e-9, 0), bar("", 1, 301e-9, 1e-9, 0), bar("", 0, 302e-9, 2e-9, 1)}),
      names);
  CHECK(names == std::vector<std::vector<std::string>>{{"compute", "F", "B"}});
  CHECK(text == "AQAAAwgArAIAAQAAARACAQABAAABDwACAA==");
}

TEST_CASE("packed bars are read back as they were, whatever they have in common") {
  std::vector<trace::Span> spans;
  const RngKey key{11};
  int64_t begin = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    const auto draw = [&](uint64_t which, uint32_t most) {
      return static_cast<int>(random_u32(key, 8 * i + which) % most);
    };
    begin += draw(0, 500);
    trace::Span span =
        bar("", draw(1, 2), static_cast<double>(begin) * 1e-9, draw(2, 300) * 1e-9, draw(3, 3));
    span.category = draw(4, 2) == 0 ? trace::Category::kCompute : trace::Category::kComm;
    span.stage = StageId(draw(5, 2));
    span.bytes = Bytes(draw(6, 2));
    span.flops = Flops(draw(7, 2));
    spans.push_back(span);
  }
  std::vector<std::vector<std::string>> names;
  Unpacker packed(packed_base64(page_of(spans), names));
  CHECK(packed.number() == 1);  // lane
  CHECK(packed.number() == 0);  // stream
  CHECK(names[0].at(static_cast<size_t>(packed.number())) == "compute");
  CHECK(packed.number() == static_cast<int64_t>(spans.size()));
  struct Last {
    int64_t category = 0, stage = 0, bytes = 0, flops = 0, microbatch = 0;
  };
  std::map<int64_t, Last> last_of;
  int64_t before = 0;
  for (const trace::Span& span : spans) {
    const int64_t head = packed.number(), start = before + packed.signed_number();
    before = start + packed.number();
    Last& last = last_of[head / 8];
    if ((head & 1) == 0) last.category = packed.number(), last.stage = packed.number();
    if ((head & 2) == 0) last.bytes = packed.number(), last.flops = packed.number();
    last.microbatch = (head & 4) == 0 ? packed.number() : last.microbatch + 1;
    CHECK(names[0].at(static_cast<size_t>(head / 8)) == (span.name.value == 0 ? "F" : "B"));
    CHECK(start == std::llround(span.start.value * 1e9));
    CHECK(before == std::llround(span.end().value * 1e9));
    CHECK(last.category == static_cast<int64_t>(span.category));
    CHECK(last.stage == span.stage.value + 1);
    CHECK(last.bytes == span.bytes.value);
    CHECK(last.flops == std::llround(span.flops.value));
    CHECK(last.microbatch == span.microbatch.value + 1);
  }
  CHECK(packed.number() == 0);  // points of memory
  CHECK(packed.at_end());
}

TEST_CASE("a long memory curve keeps its peak") {
  for (const int highest : {0, 4321, 4325, 4329, 9999}) {
    Page page = page_of({bar("", 0, 0, 1, 0)});
    std::vector<trace::MemorySample>& samples = page.runs[0].trace.memory;
    for (int i = 0; i < 10000; ++i) {
      samples.push_back({RankId(0), Seconds(i * 1e-4), trace::MemoryCategory::kSaved,
                         Bytes(i == highest ? 1'000'000'007 : i % 2)});
    }
    std::vector<std::vector<std::string>> names;
    const std::string packed = packed_base64(page, names);
    CHECK(packed.size() < kMemoryPoints * 20);
    CHECK(packed.size() > kMemoryPoints * 8);
    Unpacker reader(packed);
    for (int i = 0; i < 4 + 8; ++i) reader.number();  // the lane and its bar
    const int64_t points = reader.number();
    CHECK(points <= static_cast<int64_t>(kMemoryPoints));
    int64_t time = 0, peak = 0, at_peak = 0;
    std::array<int64_t, trace::kMemoryCategories> bytes{};
    for (int64_t point = 0; point < points; ++point) {
      time += reader.number();
      for (int64_t& held : bytes) held += reader.signed_number();
      const int64_t total = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
      if (total > peak) peak = total, at_peak = time;
    }
    CHECK(peak == 1'000'000'007);
    CHECK(at_peak == highest * 100'000);
    CHECK(reader.at_end());
  }
}

TEST_CASE("a long memory curve falls where it does, however long it then stays") {
  Page page = page_of({bar("", 0, 0, 1, 0)});
  std::vector<trace::MemorySample>& samples = page.runs[0].trace.memory;
  const auto hold = [&](double time, int64_t bytes) {
    samples.push_back({RankId(0), Seconds(time), trace::MemoryCategory::kWorkspace, Bytes(bytes)});
  };
  hold(0, 500);
  // Up and down 3000 times within the first tenth, once in the middle and behind the end.
  for (int i = 0; i < 3000; ++i) {
    hold((i + 0.2) / 30'000.0, 900);
    hold((i + 0.5) / 30'000.0, 100);
  }
  hold(0.5, 700);
  hold(0.5 + 1e-6, 200);
  hold(1.2, 800);
  hold(1.2 + 1e-6, 300);
  std::vector<std::vector<std::string>> names;
  Unpacker reader(packed_base64(page, names));
  for (int i = 0; i < 4 + 8; ++i) reader.number();  // the lane and its bar
  const int64_t points = reader.number();
  CHECK(points <= static_cast<int64_t>(kMemoryPoints));
  std::map<int64_t, int64_t> curve;
  int64_t time = 0, total = 0;
  for (int64_t point = 0; point < points; ++point) {
    time += reader.number();
    for (int c = 0; c < trace::kMemoryCategories; ++c) total += reader.signed_number();
    curve[time] = total;
  }
  const auto held_at = [&](double at) {
    return std::prev(curve.upper_bound(std::llround(at * 1e9)))->second;
  };
  CHECK(held_at(0) == 500);
  CHECK(held_at(0.05) == 900);
  for (const double at : {0.102, 0.3, 0.499}) CHECK(held_at(at) == 100);
  CHECK(held_at(0.5) == 700);
  for (const double at : {0.502, 0.8, 1.199}) CHECK(held_at(at) == 200);
  CHECK(held_at(1.2) == 800);
  CHECK(held_at(2) == 300);
}

TEST_CASE("the page holds no text that ends an element early, and names no other file") {
  const std::string html = to_html(page_of({bar("", 0, 0, 1, 0)}));
  CHECK(html.find("a </title> of") == std::string::npos);
  CHECK(html.find("a &lt;/title> of &lt;b>") != std::string::npos);
  CHECK(html.find("http://") == std::string::npos);
  CHECK(html.find("https://") == std::string::npos);
  CHECK(html.find("src=") == std::string::npos);
  CHECK(html == to_html(page_of({bar("", 0, 0, 1, 0)})));
}

TEST_CASE("figures are JSON that reads back") {
  Page page = page_of({});
  page.runs[0].ranks[0].peak.by_category = {{trace::MemoryCategory::kOther, Bytes(2)},
                                            {trace::MemoryCategory::kWeight, Bytes(3)}};
  const Json json = parse_json(figures_json(page, {{"F"}}), "figures");
  const Json& rank = json.at("runs", "").as_array("")[0].at("ranks", "").as_array("")[0];
  CHECK(rank.at("reserved", "") == Json(7));
  const Json& peak = rank.at("peak", "");
  CHECK(peak.at("bytes", "") == Json(5));
  CHECK(peak.at("by", "").at("data and metrics", "") == Json(2));
}
