// Where the time of a step went.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/trace.h"

namespace mw::trace {

struct Window {
  Seconds begin;
  Seconds end;
};

// From the first to the last moment of anything in the trace; {0, 0} for an empty one.
Window whole(const Trace& trace);

struct StepWindow {
  int32_t step = 0;  // the step spans' `command`
  Window window;     // from the first rank's begin to the last rank's end
};
// By step.
std::vector<StepWindow> step_windows(const Trace& trace);

// One rank's time in a window. Spans are cut at the window's borders.
struct RankBreakdown {
  RankId rank;
  Seconds window;
  // Time with at least one span of the category on any stream: overlapping spans count once. By
  // Category.
  std::array<Seconds, kCategories> active;
  // Each moment belongs to the first category that is active then, in the order compute, comm,
  // copy, io, wait, update. So exposed[kComm] is communication that no computation hides, an update
  // is what its waits leave of it, and all of them (kStep and kCall are zero) and idle add up to
  // the window.
  std::array<Seconds, kCategories> exposed;
  Seconds idle;      // no span but steps and calls
  Bytes comm_bytes;  // of comm spans that start in the window
  Flops flops;       // of spans that start in the window

  Seconds exposed_comm() const { return exposed[static_cast<size_t>(Category::kComm)]; }
  // Waits that nothing hides, and idle time: the pipeline's bubble and whatever else stands still.
  Seconds not_working() const { return exposed[static_cast<size_t>(Category::kWait)] + idle; }
};

// By rank.
std::vector<RankBreakdown> breakdown(const Trace& trace, Window window);

// Time, count and bytes by name and category over all ranks, largest time first; times of
// overlapping spans add up.
struct NameTotal {
  std::string name;
  Category category = Category::kCompute;
  int64_t count = 0;
  Seconds time;
  Bytes bytes;
  Flops flops;
};
// Of spans that start in the window; steps are left out.
std::vector<NameTotal> totals_by_name(const Trace& trace, Window window);

}  // namespace mw::trace
