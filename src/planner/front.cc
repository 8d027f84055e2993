#include "planner/front.h"

#include <algorithm>

namespace mw::planner {

bool faster(const Estimated& a, const Estimated& b) {
  return a.step != b.step ? a.step < b.step : a.peak < b.peak;
}

bool Front::takes(Seconds step, Bytes peak) const {
  if (kept_.empty()) return true;
  const auto bytes = static_cast<double>(peak.value);
  return step.value <= kReach * fastest_.value &&
         std::none_of(kept_.begin(), kept_.end(), [&](const Estimated& other) {
           return other.step.value <= kDetail * step.value &&
                  static_cast<double>(other.peak.value) <= kDetail * bytes;
         });
}

void Front::keep(const Estimated& here) {
  if (kept_.empty() || here.step < fastest_) fastest_ = here.step;
  const bool dominated = std::any_of(kept_.begin(), kept_.end(), [&](const Estimated& other) {
    return other.step <= here.step && other.peak <= here.peak;
  });
  if (dominated) return;
  std::erase_if(kept_, [&](const Estimated& other) {
    return here.step <= other.step && here.peak <= other.peak;
  });
  kept_.push_back(here);
}

std::vector<Estimated> Front::told() const {
  std::vector<Estimated> sorted = kept_;
  std::sort(sorted.begin(), sorted.end(), faster);
  std::vector<Estimated> told;
  double least = 0;  // bytes of the last one
  for (const Estimated& here : sorted) {
    if (here.step.value > kReach * fastest_.value) break;
    if (!told.empty() && static_cast<double>(here.peak.value) > kLess * least) continue;
    least = static_cast<double>(here.peak.value);
    told.push_back(here);
  }
  return told;
}

}  // namespace mw::planner
