// Drawings of schedules: one row a rank, one box an action, numbered by microbatch.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "pipeline/schedule_timeline.h"

namespace mw::report {

struct ScheduleDrawing {
  std::string title;
  pipeline::Schedule schedule;
  pipeline::Timeline times;
};

struct TextStyle {
  int32_t columns = 160;  // of the terminal
  bool color = false;     // 256-colour escapes; without, F, I, W and B are letters
  double end = 0;         // the time at the right edge; 0: the drawing's own last end
  double unit = 0;        // the shortest action that has its columns; 0: the drawing's own
};

// Which of its rank's stages an action is of, replica after replica: later ones are darker.
class Shades {
 public:
  explicit Shades(const pipeline::Placement& placement);

  int32_t index(const pipeline::Action& action) const;  // from 0
  // From 0 for the first to 1 for the last of the rank that hosts the most.
  double darkness(const pipeline::Action& action) const;
  int32_t most() const { return most_; }  // stages of a rank

 private:
  std::vector<std::vector<int32_t>> index_;  // [replica][stage]
  int32_t most_ = 1;
};

// "rank 0 |0 1 2 3 …|": every row as wide as the others; idle time is dots. A box is numbered where
// it is wide enough. Ends with '\n'.
std::string draw_text(const ScheduleDrawing& drawing, const TextStyle& style);
// The style in which all of them have one time scale.
TextStyle with_one_scale(TextStyle style, std::span<const ScheduleDrawing> drawings);

// All drawings at one time scale, one above the other, in the order given; no label leaves the
// picture.
std::string draw_svg(std::span<const ScheduleDrawing> drawings);

// What the boxes of all drawings together are: "F forward, B backward; numbered by microbatch".
std::string legend_line(std::span<const ScheduleDrawing> drawings, bool color);

// "makespan 33, bubble 0.2727 (without a flush 0.2727), weight copies 1, peak activations 4 3 2 1"
std::string figures_line(const ScheduleDrawing& drawing);

}  // namespace mw::report
