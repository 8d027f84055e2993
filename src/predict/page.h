// Predictions as the page that people look at.
#pragma once

#include <string>
#include <vector>

#include "predict/predict.h"
#include "report/page.h"

namespace mw::predict {

inline constexpr const char* kIdleShare = "idle at the end";  // the last share

// "151.8", "0.0503": TFLOP/s, and percent of a part, "48.7" and "0.02". Small ones keep their
// digits.
std::string tflops_text(double tflops);
std::string percent_text(double part);
std::string stages_text(const std::vector<int32_t>& stages);  // "stages 0, 3"; "" of none

// Where a rank's step goes: computation, exposed communication by group, gaps, waits by reason,
// idle time; those that take no nanosecond are left out. They add up to the step.
std::vector<report::Share> shares_of(const simulate::RankResult& rank);

// Several plans of one model on one cluster. REQUIRES: at least one, simulated with a trace.
report::Page page_of(const std::vector<const Request*>& requests,
                     const std::vector<const Prediction*>& predictions);

// One more figure of the run.
void add_goodput(const Goodput& goodput, report::PageRun& run);

}  // namespace mw::predict
