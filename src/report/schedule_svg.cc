#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "report/schedule_drawing.h"

namespace mw::report {

using pipeline::Action;
using pipeline::ActionKind;

namespace {

// All lengths in pixels.
constexpr double kRow = 20, kLeft = 64, kHead = 22, kGap = 16, kWidth = 1200;

// Forwards blue, input gradients orange, weight gradients green, whole backwards brown; later
// chunks and replicas are darker.
const char* fill_of(const Action& action, const pipeline::Placement& placement) {
  const bool dark = action.replica > 0 || action.stage.value / placement.ranks % 2 == 1;
  switch (action.kind) {
    case ActionKind::kF: return dark ? "#4c9ed9" : "#9ecae9";
    case ActionKind::kI: return dark ? "#ee9336" : "#f9c78b";
    case ActionKind::kW: return dark ? "#5bae5b" : "#a8d8a8";
    case ActionKind::kB: return dark ? "#b98554" : "#e0b48c";
    default: return "#ccc";
  }
}

std::string escaped(const std::string& text) {
  return replace_all(replace_all(replace_all(text, "&", "&amp;"), "<", "&lt;"), ">", "&gt;");
}

std::string box(const Action& action, double x, double y, double width, const char* fill) {
  std::string text = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\" "
      "stroke=\"#fff\" stroke-width=\"0.5\"><title>{}</title></rect>\n",
      x, y, width, kRow - 2, fill, pipeline::to_string(action));
  const std::string number = std::to_string(action.first);
  if (width >= 6.0 * static_cast<double>(number.size())) {
    text += fmt::format(
        "<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"middle\" class=\"n\">{}</text>\n",
        x + width / 2, y + 13, number);
  }
  return text;
}

std::string panel(const ScheduleDrawing& drawing, double top, double scale) {
  std::string text =
      fmt::format("<text x=\"0\" y=\"{:.0f}\" class=\"name\">{}: {}</text>\n", top + 13,
                  escaped(drawing.title), escaped(figures_line(drawing.times)));
  for (size_t r = 0; r < drawing.schedule.ranks.size(); ++r) {
    const double y = top + kHead + static_cast<double>(r) * kRow;
    text += fmt::format("<text x=\"0\" y=\"{:.0f}\">rank {}</text>\n", y + 14, r);
    const std::vector<Action>& actions = drawing.schedule.ranks[r];
    for (size_t a = 0; a < actions.size(); ++a) {
      const pipeline::ActionTime& time = drawing.times.times[r][a];
      // The two of a pair share their time: one half each.
      const bool upper = actions[a].paired_with == static_cast<int32_t>(a) + 1;
      const bool lower = actions[a].paired_with >= 0 && !upper;
      const double half = (time.end - time.start) / 2;
      const double from = lower ? time.start + half : time.start;
      const double to = upper ? time.start + half : time.end;
      text += box(actions[a], kLeft + from * scale, y, (to - from) * scale,
                  fill_of(actions[a], drawing.schedule.placement));
    }
  }
  return text;
}

}  // namespace

std::string draw_svg(std::span<const ScheduleDrawing> drawings) {
  double end = 0, height = 0;
  for (const ScheduleDrawing& drawing : drawings) {
    for (const auto& rank : drawing.times.times) {
      if (!rank.empty()) end = std::max(end, rank.back().end);
    }
    height += kHead + static_cast<double>(drawing.schedule.ranks.size()) * kRow + kGap;
  }
  const double scale = end > 0 ? (kWidth - kLeft - 2) / end : 1;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\">\n"
      "<style>text{{font:12px sans-serif;fill:#333}}.name{{font-weight:bold}}.n{{font-size:10px;"
      "fill:#222}}</style>\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#fff\"/>\n",
      kWidth, height);
  double top = 0;
  for (const ScheduleDrawing& drawing : drawings) {
    text += panel(drawing, top, scale);
    top += kHead + static_cast<double>(drawing.schedule.ranks.size()) * kRow + kGap;
  }
  return text + "</svg>\n";
}

}  // namespace mw::report
