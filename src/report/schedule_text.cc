#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "base/text.h"
#include "report/schedule_drawing.h"

namespace mw::report {

using pipeline::Action;
using pipeline::ActionKind;

namespace {

constexpr int32_t kWidestUnit = 6;  // columns of the shortest action at most

// 256-colour backgrounds, from light to dark: forwards blue, input gradients orange, weight
// gradients green, whole backwards brown.
using Ramp = std::array<int32_t, 5>;
constexpr Ramp kBlue = {117, 111, 75, 69, 68}, kOrange = {222, 221, 215, 208, 172},
               kGreen = {157, 120, 114, 77, 71}, kBrown = {216, 180, 174, 173, 137};

int32_t color_of(const Action& action, double darkness) {
  const auto shade = static_cast<size_t>(std::lround(darkness * (kBlue.size() - 1)));
  switch (action.kind) {
    case ActionKind::kF: return kBlue[shade];
    case ActionKind::kI: return kOrange[shade];
    case ActionKind::kW: return kGreen[shade];
    case ActionKind::kB: return kBrown[shade];
    default: return 250;
  }
}

double last_end(const pipeline::Timeline& times) {
  double end = 0;
  for (const auto& rank : times.times) {
    if (!rank.empty()) end = std::max(end, rank.back().end);
  }
  return end;
}

double shortest(const pipeline::Timeline& times) {
  double least = 0;
  for (const auto& rank : times.times) {
    for (const pipeline::ActionTime& time : rank) {
      const double length = time.end - time.start;
      if (length > 0 && (least == 0 || length < least)) least = length;
    }
  }
  return least;
}

std::string label_of(const Action& action, bool color, bool small, int32_t width) {
  const std::string number = std::to_string(action.first);
  const std::string kind = pipeline::to_string(action.kind);
  const std::string letter = color ? "" : small ? to_lower(kind) : kind;
  const std::string full = letter + number;
  const auto fits = [&](const std::string& text) {
    return static_cast<int32_t>(text.size()) <= width;
  };
  if (fits(full)) return full;
  return letter.substr(0, static_cast<size_t>(width));
}

class TextRow {
 public:
  TextRow(int32_t columns, bool color) : columns_(columns), color_(color) {}

  void add(const Action& action, int32_t from, int32_t to, const Shades& shades) {
    idle(from);
    const int32_t width = to - at_;
    if (width <= 0) return;
    // Without colours every other stage of a rank has small letters.
    const std::string label = label_of(action, color_, shades.index(action) % 2 == 1, width);
    if (color_) {
      text_ += fmt::format("\x1b[38;5;16;48;5;{}m{:^{}}\x1b[0m",
                           color_of(action, shades.darkness(action)), label, width);
    } else {
      text_ += fmt::format("{:-<{}}", label, width);
    }
    at_ = to;
  }
  std::string finish() {
    idle(columns_);
    return text_;
  }

 private:
  void idle(int32_t to) {
    if (to <= at_) return;
    text_ += std::string(static_cast<size_t>(to - at_), color_ ? ' ' : '.');
    at_ = to;
  }

  int32_t columns_;
  bool color_;
  int32_t at_ = 0;
  std::string text_;
};

}  // namespace

Shades::Shades(const pipeline::Placement& placement) {
  std::vector<int32_t> hosted(static_cast<size_t>(placement.ranks), 0);
  for (int32_t j = 0; j < placement.replicas(); ++j) {
    std::vector<int32_t>& row = index_.emplace_back();
    for (int32_t s = 0; s < placement.stages(); ++s)
      row.push_back(hosted[static_cast<size_t>(placement.rank_of(s, j))]++);
  }
  for (const int32_t count : hosted) most_ = std::max(most_, count);
}

int32_t Shades::index(const Action& action) const {
  return index_[static_cast<size_t>(action.replica)][action.stage.index()];
}

double Shades::darkness(const Action& action) const {
  return most_ == 1 ? 0 : static_cast<double>(index(action)) / (most_ - 1);
}

TextStyle with_one_scale(TextStyle style, std::span<const ScheduleDrawing> drawings) {
  for (const ScheduleDrawing& drawing : drawings) {
    style.end = std::max(style.end, last_end(drawing.times));
    const double unit = shortest(drawing.times);
    if (unit > 0 && (style.unit == 0 || unit < style.unit)) style.unit = unit;
  }
  return style;
}

std::string draw_text(const ScheduleDrawing& drawing, const TextStyle& style) {
  const double end = style.end > 0 ? style.end : last_end(drawing.times);
  const size_t ranks = drawing.schedule.ranks.size();
  const auto digits = static_cast<int32_t>(std::to_string(ranks - 1).size());
  const int32_t room = std::max(10, style.columns - digits - 8);
  const double unit = style.unit > 0 ? style.unit : shortest(drawing.times);
  double scale = end > 0 ? std::min(room / end, unit > 0 ? kWidestUnit / unit : 1) : 1;
  // Whole columns a unit look regular where there is room for them, which a rounding does not take.
  const double whole = std::floor(scale * unit * (1 + 1e-9));
  if (whole >= 1) scale = whole / unit;
  const auto column = [&](double time) { return static_cast<int32_t>(std::lround(time * scale)); };
  const Shades shades(drawing.schedule.placement);
  std::string text;
  for (size_t r = 0; r < ranks; ++r) {
    TextRow row(column(end), style.color);
    for (size_t a = 0; a < drawing.schedule.ranks[r].size(); ++a) {
      const Action& action = drawing.schedule.ranks[r][a];
      pipeline::ActionTime time = drawing.times.times[r][a];
      // The two of a pair share their time: one half of the box each.
      const auto here = static_cast<int32_t>(a);
      const double middle = (time.start + time.end) / 2;
      if (action.paired_with == here + 1) time.end = middle;
      if (action.paired_with >= 0 && action.paired_with == here - 1) time.start = middle;
      row.add(action, column(time.start), column(time.end), shades);
    }
    text += fmt::format("rank {:>{}} |{}|\n", r, digits, row.finish());
  }
  return text;
}

std::string legend_line(std::span<const ScheduleDrawing> drawings, bool color) {
  bool small = false, sliced = false;
  std::string parted;
  std::set<ActionKind> kinds;
  for (const ScheduleDrawing& drawing : drawings) {
    small = small || Shades(drawing.schedule.placement).most() > 1;
    if (drawing.schedule.parts > 1) parted += fmt::format(", {} by part of one", drawing.title);
    for (const std::vector<Action>& rank : drawing.schedule.ranks) {
      for (const Action& action : rank) {
        kinds.insert(action.kind);
        sliced = sliced || action.slice >= 0;
      }
    }
  }
  std::vector<std::string> boxes;
  for (const auto& [kind, letter, shade, what] :
       {std::tuple(ActionKind::kF, "F", "blue", "forward"),
        std::tuple(ActionKind::kB, "B", "brown", "backward"),
        std::tuple(ActionKind::kI, "I", "orange", "backward of inputs"),
        std::tuple(ActionKind::kW, "W", "green", "backward of weights")}) {
    if (kinds.contains(kind)) boxes.push_back(fmt::format("{} {}", color ? shade : letter, what));
  }
  std::string text = join(boxes, ", ");
  text += "; numbered by microbatch" + parted;
  if (sliced) text += ", one box a slice of its sequences";
  if (small)
    text += color ? "; darker: a later stage of the rank" : "; small: every other stage of a rank";
  return text;
}

std::string figures_line(const ScheduleDrawing& drawing) {
  const pipeline::Timeline& times = drawing.times;
  std::vector<std::string> peaks;
  for (const double peak : times.peak_activations) peaks.push_back(fmt::format("{:.6g}", peak));
  std::string text = fmt::format(
      "makespan {:.6g}, bubble {:.4f} (without a flush {:.4f}), weight copies {}, peak activations "
      "{}",
      times.makespan, std::abs(times.bubble), std::abs(times.span_bubble), times.weight_copies,
      join(peaks, " "));
  if (drawing.schedule.post_validation || times.period < times.makespan) {
    text += fmt::format(", a step every {:.6g} (bubble {:.4f})", times.period,
                        std::abs(times.period_bubble));
  }
  // What the bars do not show.
  if (drawing.schedule.weight_versions > 1) {
    text += "; drawn with a flush, which it has not";
  } else if (times.makespan > last_end(times) * (1 + 1e-9)) {
    text += fmt::format("; behind what is drawn the sums of replicas, to {:.6g}", times.makespan);
  }
  return text;
}

}  // namespace mw::report
