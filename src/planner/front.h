// The front of coarse step time against memory. Private to room planner.
#pragma once

#include <vector>

#include "compile/plan.h"

namespace mw::planner {

struct Estimated {
  compile::Plan plan;
  Seconds step;
  Bytes peak;
};
bool faster(const Estimated& a, const Estimated& b);

class Front {
 public:
  // Whether a plan that takes no less than this may belong to it: no slower than kReach times the
  // fastest, and by more than kDetail better in one of the two than each plan that is kept.
  bool takes(Seconds step, Bytes peak) const;
  void keep(const Estimated& here);
  // From the fastest on, each with at least a tenth less memory than the one before: whatever is
  // kept has one that is no slower and needs at most a ninth more.
  std::vector<Estimated> told() const;

  static constexpr double kReach = 1.5;
  static constexpr double kLess = 0.9;  // of the memory of the one before: what is told

 private:
  static constexpr double kDetail = 1.01;
  Seconds fastest_;              // of all that came
  std::vector<Estimated> kept_;  // none better than another in both
};

}  // namespace mw::planner
