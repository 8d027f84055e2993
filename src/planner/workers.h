// Estimates on several threads. Private to room planner.
#pragma once

#include <functional>
#include <vector>

#include "compile/plan.h"
#include "predict/coarse.h"

namespace mw::planner {

class Workers {
 public:
  Workers(const predict::Coarse& coarse, int threads);

  int threads() const { return static_cast<int>(each_.size()); }

  // Calls work(estimates, i) for all i below `count`.
  void run(size_t count, const std::function<void(predict::Coarse&, size_t)>& work);

  // Makes the orders of such plans, each once and the longest first, so that no thread waits.
  void make_orders(const std::vector<const compile::Plan*>& plans);

 private:
  std::vector<predict::Coarse> each_;  // [thread]
};

}  // namespace mw::planner
