#include "report/schedule_drawing.h"

#include <algorithm>
#include <cmath>
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

TEST_CASE("the legend tells of what is drawn") {
  const auto legend = [](const std::vector<const char*>& kinds, bool color = false) {
    std::vector<ScheduleDrawing> drawings;
    for (const char* kind : kinds) drawings.push_back(drawing_of(kind, 4, 8));
    return legend_line(drawings, color);
  };
  CHECK(legend({"1f1b"}) == "F forward, B backward; numbered by microbatch");
  CHECK(legend({"zb-h1"}) ==
        "F forward, I backward of inputs, W backward of weights; numbered by microbatch");
  CHECK(legend({"1f1b", "zb-v"}, true) ==
        "blue forward, brown backward, orange backward of inputs, green backward of weights; "
        "numbered by microbatch; darker: a later stage of the rank");
  CHECK(legend({"1f1b", "chimera-halving"}) ==
        "F forward, B backward; numbered by microbatch, chimera-halving by part of one; small: "
        "every other stage of a rank");
  CHECK(legend({"seq-1f1b"}) ==
        "F forward, B backward; numbered by microbatch, one box a slice of its sequences");
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

// At `columns` for a time of 1, six for the shortest action, every action fills what it takes with
// its label and dashes: small letters for every other of a rank's stages.
static std::vector<std::string> boxes_of(const ScheduleDrawing& drawing, double columns,
                                         double end) {
  std::vector<std::string> rows;
  const Shades shades(drawing.schedule.placement);
  for (size_t r = 0; r < drawing.schedule.ranks.size(); ++r) {
    std::string row(static_cast<size_t>(columns * end), '.');
    for (size_t a = 0; a < drawing.schedule.ranks[r].size(); ++a) {
      const pipeline::Action& action = drawing.schedule.ranks[r][a];
      const pipeline::ActionTime& time = drawing.times.times[r][a];
      const bool first = action.paired_with == static_cast<int32_t>(a) + 1;
      const bool second = !first && action.paired_with >= 0;
      const double middle = (time.start + time.end) / 2;
      const auto from = static_cast<size_t>(columns * (second ? middle : time.start));
      const auto to = static_cast<size_t>(columns * (first ? middle : time.end));
      const std::string kind = pipeline::to_string(action.kind);
      const std::string label =
          (shades.index(action) % 2 == 0 ? kind : to_lower(kind)) + std::to_string(action.first);
      row.replace(from, to - from, fmt::format("{:-<{}}", label, to - from));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST_CASE("every action is drawn from its begin to its end") {
  for (const std::string& kind : pipeline::all_schedule_kinds()) {
    CAPTURE(kind);
    const ScheduleDrawing drawing = drawing_of(kind.c_str(), 4, 8);
    double end = 0, shortest = 1e9;
    for (const auto& rank : drawing.times.times) {
      for (const pipeline::ActionTime& time : rank) {
        end = std::max(end, time.end);
        shortest = std::min(shortest, time.end - time.start);
      }
    }
    const auto columns = static_cast<int32_t>(6 / shortest * end) + 9;
    const std::vector<std::string> boxes = boxes_of(drawing, 6 / shortest, end);
    const std::string text = draw_text(drawing, {.columns = columns});
    std::string expected;
    for (size_t r = 0; r < boxes.size(); ++r)
      expected += fmt::format("rank {} |{}|\n", r, boxes[r]);
    CHECK(text == expected);
    // At the scale of a longer one the rest is idle.
    const std::string beside = draw_text(drawing, {.columns = 2 * columns, .end = 2 * end});
    CHECK(split_lines(beside)[0] ==
          fmt::format("rank 0 |{}{}|", boxes[0], std::string(boxes[0].size(), '.')));
  }
}

TEST_CASE("a drawing is the same in whatever unit the costs are") {
  for (const int32_t columns : {30, 42, 75, 108, 200}) {
    ScheduleDrawing drawing = drawing_of("1f1b", 4, 8);
    const std::string text = draw_text(drawing, {.columns = columns});
    const std::string beside = draw_text(drawing, {.columns = columns, .end = 40});
    for (const double unit : {1e-6, .01, .1, .35, .7, 1.19, 1.41, 1e3}) {
      CAPTURE(columns);
      CAPTURE(unit);
      drawing.times = pipeline::timeline(drawing.schedule, {.f = {unit}, .b = {unit}, .w = {unit}});
      CHECK(draw_text(drawing, {.columns = columns}) == text);
      CHECK(draw_text(drawing, {.columns = columns, .end = 40 * unit}) == beside);
    }
  }
}

TEST_CASE("where a label does not fit its letter stands, and a box without a column is left out") {
  CHECK(draw_text(drawing_of("interleaved-1f1b", 2, 2), {.columns = 24}) ==
        "rank 0 |FFff..b0.b1B0B1|\n"
        "rank 1 |.FFfb0fb1B0B1..|\n");
  const std::string narrow = draw_text(drawing_of("gpipe", 11, 40), {.columns = 0});
  const std::vector<std::string_view> lines = split_lines(narrow);
  REQUIRE(lines.size() == 11);
  CHECK(lines[0].starts_with("rank  0 |"));
  CHECK(lines[10].starts_with("rank 10 |"));
  for (const std::string_view line : lines) CHECK(line.size() == lines[0].size());
  CHECK(lines[0].size() == std::string("rank  0 |").size() + 10 + 1);
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

TEST_CASE("an svg's boxes begin and end at their times, on one scale up to the right edge") {
  const ScheduleDrawing drawings[] = {drawing_of("1f1b", 4, 8), drawing_of("zb-h1", 4, 8)};
  const std::string svg = draw_svg(drawings);
  const std::vector<std::string> xs = values_of(svg, "<rect x=\"");
  // Beside "rank 0": 8 pixels, 6 letters, 8 pixels.
  const double left = 8 + 6 * 7.7 + 8, scale = (1200 - 8 - left) / 33;
  size_t box = 0;
  for (const ScheduleDrawing& drawing : drawings) {
    for (const auto& rank : drawing.times.times) {
      for (const pipeline::ActionTime& time : rank) {
        REQUIRE(box < xs.size());
        CHECK(std::abs(*parse_double(xs[box]) - (left + time.start * scale)) < .006);
        const double width = (time.end - time.start) * scale;
        CHECK(svg.find(fmt::format("width=\"{:.2f}\"", width)) != std::string::npos);
        CHECK(svg.find(fmt::format("<text x=\"{:.2f}\"", left + time.start * scale + width / 2)) !=
              std::string::npos);
        ++box;
      }
    }
  }
  CHECK(box == xs.size());
}

TEST_CASE("boxes too narrow for a white edge have none") {
  for (const auto& [microbatches, edges] :
       {std::pair(8, 64), std::pair(256, 1024), std::pair(1024, 0)}) {
    const ScheduleDrawing drawing = drawing_of("1f1b", 4, microbatches);
    const std::string svg = draw_svg({&drawing, 1});
    CHECK(values_of(svg, " stroke=\"").size() == static_cast<size_t>(edges));
    CHECK(values_of(svg, "<title>").size() == static_cast<size_t>(2 * 4 * microbatches));
  }
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
