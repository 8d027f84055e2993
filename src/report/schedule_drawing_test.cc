#include "report/schedule_drawing.h"

#include <algorithm>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "base/text.h"

using namespace mw;
using namespace mw::report;

static ScheduleDrawing drawing_of(const char* kind, int32_t ranks, int32_t microbatches,
                                  int32_t chunks = 0) {
  ScheduleDrawing drawing;
  drawing.title = kind;
  drawing.schedule = pipeline::make_schedule(
      {.kind = kind, .ranks = ranks, .chunks = chunks, .microbatches = microbatches});
  drawing.times = pipeline::timeline(drawing.schedule, {});
  return drawing;
}

TEST_CASE("1f1b on two ranks is drawn with letters, numbers and dots") {
  CHECK(draw_text(drawing_of("1f1b", 2, 2), {.columns = 27}) ==
        "rank 0 |F0F1....B0--..B1--|\n"
        "rank 1 |..F0B0--F1B1--....|\n");
}

TEST_CASE("every row has the same width and no escape without colours") {
  for (const char* kind : {"1f1b", "zb-v", "dualpipe", "chimera-doubling", "hanayo"}) {
    const std::string text = draw_text(drawing_of(kind, 4, 8), {.columns = 120});
    const std::vector<std::string_view> lines = split_lines(text);
    CHECK(lines.size() == 4);
    for (const std::string_view line : lines) {
      CHECK(line.size() == lines.front().size());
      CHECK(line.size() <= 120);
    }
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(draw_text(drawing_of(kind, 4, 8), {.color = true}).find("\x1b[0m") != std::string::npos);
  }
}

TEST_CASE("an svg has a box for every action, named by it") {
  const ScheduleDrawing drawings[] = {drawing_of("1f1b", 4, 8), drawing_of("zb-h1", 4, 8)};
  const std::string svg = draw_svg(drawings);
  size_t boxes = 0;
  for (size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1))
    ++boxes;
  CHECK(boxes == 4 * 16 + 4 * 24);
  CHECK(svg.find("<title>3I7</title>") != std::string::npos);
  CHECK(svg.find("makespan 27, bubble 0.1111") != std::string::npos);
}

// What stands between `before` and the next '"', at every place.
static std::vector<std::string> values_of(const std::string& svg, const std::string& before) {
  std::vector<std::string> values;
  for (size_t at = svg.find(before); at != std::string::npos; at = svg.find(before, at + 1)) {
    const size_t from = at + before.size();
    values.push_back(svg.substr(from, svg.find('"', from) - from));
  }
  return values;
}

TEST_CASE("every chunk and every replica of a rank has a shade of its own") {
  const auto fills = [](const ScheduleDrawing& drawing) {
    const std::vector<std::string> all = values_of(draw_svg({&drawing, 1}), "fill=\"");
    return std::set<std::string>(all.begin(), all.end()).size() - 1;  // less the white ground
  };
  CHECK(fills(drawing_of("interleaved-1f1b", 4, 8, 5)) == 2 * 5);
  CHECK(fills(drawing_of("hanayo", 2, 4, 6)) == 2 * 6);
  CHECK(fills(drawing_of("zb-v", 4, 8)) == 3 * 2);
  ScheduleDrawing pairs = drawing_of("chimera", 4, 8);
  CHECK(fills(pairs) == 2 * 2);
  pairs.schedule =
      pipeline::make_schedule({.kind = "chimera", .ranks = 4, .microbatches = 8, .pairs = 2});
  pairs.times = pipeline::timeline(pairs.schedule, {});
  CHECK(fills(pairs) == 2 * 4);
  const std::string text =
      draw_text(drawing_of("interleaved-1f1b", 1, 1, 5), {.columns = 60, .color = true});
  for (const char* color : {"117m", "111m", "75m", "69m", "68m"})
    CHECK(text.find(fmt::format("48;5;{}", color)) != std::string::npos);
}

TEST_CASE("no label of an svg touches an edge, however many ranks have a figure") {
  ScheduleDrawing drawing = drawing_of("1f1b", 128, 4);
  drawing.title = fmt::format("{:x<150}\x1b{:y<150}<&.csv", "", "");
  const std::string svg = draw_svg({&drawing, 1});
  for (const std::string& x : values_of(svg, "<text x=\"")) CHECK(*parse_double(x) >= 8);
  size_t headings = 0, letters = 0;
  for (size_t at = svg.find("class=\"name\">"); at != std::string::npos;
       at = svg.find("class=\"name\">", at + 1)) {
    const size_t from = svg.find('>', at) + 1;
    letters = std::max(letters, svg.find('<', from) - from);
    ++headings;
  }
  CHECK(headings >= 5);
  CHECK(letters <= 141 + 8);  // the longest line, with "&lt;&amp;" and "\\x1b"
  CHECK(svg.find("&lt;&amp;.csv") != std::string::npos);
  CHECK(svg.find('\x1b') == std::string::npos);
}
