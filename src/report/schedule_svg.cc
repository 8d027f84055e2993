#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/text.h"
#include "report/schedule_drawing.h"

namespace mw::report {

using pipeline::Action;
using pipeline::ActionKind;

namespace {

// All lengths in pixels. A letter is as wide as the widest of usual sans-serif fonts' digits, bold
// ones in headings.
constexpr double kRow = 20, kHead = 22, kLine = 15, kGap = 16, kWidth = 1200, kEdge = 8, kEdged = 2;
constexpr double kLetter = 7.7, kBoldLetter = 8.4, kDigit = 6.4;  // of 12, 12 and 10 pixels

struct Color {
  int32_t red, green, blue;
};

std::string between(Color light, Color dark, double darkness) {
  const auto mixed = [&](int32_t from, int32_t to) {
    return std::lround(from + (to - from) * darkness);
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mixed(light.red, dark.red),
                     mixed(light.green, dark.green), mixed(light.blue, dark.blue));
}

// Forwards blue, input gradients orange, weight gradients green, whole backwards brown.
std::string fill_of(const Action& action, double darkness) {
  switch (action.kind) {
    case ActionKind::kF: return between({0x9e, 0xca, 0xe9}, {0x3a, 0x86, 0xc4}, darkness);
    case ActionKind::kI: return between({0xf9, 0xc7, 0x8b}, {0xe0, 0x7d, 0x1c}, darkness);
    case ActionKind::kW: return between({0xa8, 0xd8, 0xa8}, {0x45, 0x9a, 0x4a}, darkness);
    case ActionKind::kB: return between({0xe0, 0xb4, 0x8c}, {0xa8, 0x74, 0x42}, darkness);
    default: return "#cccccc";
  }
}

std::string escaped(const std::string& text) {
  return replace_all(replace_all(replace_all(printable(text), "&", "&amp;"), "<", "&lt;"), ">",
                     "&gt;");
}

// The words of `text` in lines that are no wider than the picture; a longer word is cut.
std::vector<std::string> heading_lines(const std::string& text) {
  const auto most = static_cast<size_t>((kWidth - 2 * kEdge) / kBoldLetter);
  std::vector<std::string> lines = {""};
  for (std::string_view word : split_words(text)) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > most) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    while (word.size() > most) {
      size_t end = most;  // no character is cut in two
      while (end > 1 && (static_cast<unsigned char>(word[end]) & 0xC0) == 0x80) --end;
      lines.back() += word.substr(0, end);
      lines.emplace_back();
      word.remove_prefix(end);
    }
    lines.back() += word;
  }
  return lines;
}

// Where the boxes begin: right of the widest "rank 12".
double left_of(std::span<const ScheduleDrawing> drawings) {
  size_t most = 1;
  for (const ScheduleDrawing& drawing : drawings)
    most = std::max(most, drawing.schedule.ranks.size());
  const size_t letters = fmt::format("rank {}", most - 1).size();
  return 2 * kEdge + kLetter * static_cast<double>(letters);
}

std::string box(const Action& action, double x, double y, double width, const std::string& fill) {
  // The edges of thousands of narrow boxes would leave nothing of them.
  const char* edge = width < kEdged ? "" : " stroke=\"#fff\" stroke-width=\"0.5\"";
  std::string text = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" "
      "fill=\"{}\"{}><title>{}</title>"
      "</rect>\n",
      x, y, width, kRow - 2, fill, edge, pipeline::to_string(action));
  const std::string number = std::to_string(action.first);
  if (width >= kDigit * static_cast<double>(number.size())) {
    text += fmt::format(
        "<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"middle\" class=\"n\">{}</text>\n",
        x + width / 2, y + 13, number);
  }
  return text;
}

struct Panel {
  std::string text;
  double height = 0;
};

Panel panel_of(const ScheduleDrawing& drawing, double top, double left, double scale) {
  std::string text;
  double head = kHead - kLine;
  for (const std::string& line : heading_lines(drawing.title + ": " + figures_line(drawing))) {
    text += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" class=\"name\">{}</text>\n", kEdge,
                        top + head + 6, escaped(line));
    head += kLine;
  }
  const Shades shades(drawing.schedule.placement);
  for (size_t r = 0; r < drawing.schedule.ranks.size(); ++r) {
    const double y = top + head + static_cast<double>(r) * kRow;
    text += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">rank {}</text>\n", kEdge, y + 14, r);
    const std::vector<Action>& actions = drawing.schedule.ranks[r];
    for (size_t a = 0; a < actions.size(); ++a) {
      const pipeline::ActionTime& time = drawing.times.times[r][a];
      // The two of a pair share their time: one half each.
      const bool upper = actions[a].paired_with == static_cast<int32_t>(a) + 1;
      const bool lower = actions[a].paired_with >= 0 && !upper;
      const double half = (time.end - time.start) / 2;
      const double from = lower ? time.start + half : time.start;
      const double to = upper ? time.start + half : time.end;
      text += box(actions[a], left + from * scale, y, (to - from) * scale,
                  fill_of(actions[a], shades.darkness(actions[a])));
    }
  }
  return {std::move(text), head + static_cast<double>(drawing.schedule.ranks.size()) * kRow + kGap};
}

}  // namespace

std::string draw_svg(std::span<const ScheduleDrawing> drawings) {
  double end = 0;
  for (const ScheduleDrawing& drawing : drawings) {
    for (const auto& rank : drawing.times.times) {
      if (!rank.empty()) end = std::max(end, rank.back().end);
    }
  }
  const double left = left_of(drawings);
  const double scale = end > 0 ? (kWidth - left - kEdge) / end : 1;
  std::string panels;
  double height = kEdge;
  for (const ScheduleDrawing& drawing : drawings) {
    const Panel panel = panel_of(drawing, height, left, scale);
    panels += panel.text;
    height += panel.height;
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
             "width=\"{0:.0f}\" height=\"{1:.0f}\">\n"
             "<style>text{{font:12px sans-serif;fill:#333}}.name{{font-weight:bold}}"
             ".n{{font-size:10px;fill:#222}}</style>\n"
             "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#fff\"/>\n",
             kWidth, height) +
         panels + "</svg>\n";
}

}  // namespace mw::report
