// Which of two layouts, schedules or options a source found faster, and which one the simulator
// does.
#pragma once

#include <string>
#include <vector>

#include "calibrate/validate.h"

namespace mw::calibrate {

// Two rows of one source with the same model on the same device. Rates are a second's and a
// device's, so that batches and numbers of devices may differ: tokens where the source counts
// tokens, else the model's FLOPs.
struct Ordering {
  const Comparison *faster = nullptr, *slower = nullptr;  // as published
  double published = 0;                                   // rate over rate; 0: places alone
  double predicted = 0;
  bool kept() const { return predicted > 1; }
  // Both take the same step, sequences, batch and number of devices alike, so that schedule, layout
  // and options alone make the difference.
  bool of_one_step() const;
};

// Every pair of rows that were simulated, but for those with equal rates or places. Rows of one
// table and of one figure have the same `source` cell.
std::vector<Ordering> orderings(const std::vector<Comparison>& comparisons);

// By source: pairs, how many are kept, the mean ratios; of all also those of one step; then every
// pair that is not kept.
std::string to_text(const std::vector<Ordering>& orderings);
Json to_json(const std::vector<Ordering>& orderings);

}  // namespace mw::calibrate
