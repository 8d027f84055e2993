#include "report/schedule_drawing.h"

#include <doctest/doctest.h>

#include "base/text.h"

using namespace mw;
using namespace mw::report;

static ScheduleDrawing drawing_of(const char* kind, int32_t ranks, int32_t microbatches) {
  ScheduleDrawing drawing;
  drawing.title = kind;
  drawing.schedule =
      pipeline::make_schedule({.kind = kind, .ranks = ranks, .microbatches = microbatches});
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
