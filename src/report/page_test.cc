#include "report/page.h"

#include <doctest/doctest.h>

#include "base/json.h"
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

TEST_CASE("a long memory curve keeps its peak") {
  Page page = page_of({bar("", 0, 0, 1, 0)});
  std::vector<trace::MemorySample>& samples = page.runs[0].trace.memory;
  for (int i = 0; i < 10000; ++i) {
    samples.push_back({RankId(0), Seconds(i * 1e-4), trace::MemoryCategory::kSaved,
                       Bytes(i == 4321 ? 1'000'000'007 : i % 2)});
  }
  std::vector<std::vector<std::string>> names;
  const std::string packed = packed_base64(page, names);
  CHECK(packed.size() < kMemoryPoints * 20);
  CHECK(packed.size() > kMemoryPoints * 8);
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
  const Page page = page_of({});
  const Json json = parse_json(figures_json(page, {{"F"}}), "figures");
  CHECK(json.at("runs", "").as_array("")[0].at("ranks", "").as_array("")[0].at("reserved", "") ==
        Json(7));
}
