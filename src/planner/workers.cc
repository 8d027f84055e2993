#include "planner/workers.h"

#include <atomic>
#include <map>
#include <string_view>
#include <tuple>

#include "base/in_parallel.h"

namespace mw::planner {

using compile::Plan;

Workers::Workers(const predict::Coarse& coarse, int threads) {
  for (int t = 0; t < threads; ++t) each_.push_back(coarse.another());
}

void Workers::run(size_t count, const std::function<void(predict::Coarse&, size_t)>& work) {
  std::atomic<size_t> next{0};
  in_parallel(each_.size(), threads(), [&](size_t t) {
    for (size_t i = next++; i < count; i = next++) work(each_[t], i);
  });
}

void Workers::make_orders(const std::vector<const Plan*>& plans) {
  using Key = std::tuple<int64_t, int64_t, int64_t, std::string_view>;
  std::map<Key, const Plan*> of;
  for (const Plan* plan : plans) {
    of.try_emplace({-plan->stages() * plan->microbatches, plan->pp, plan->chunks, plan->schedule},
                   plan);
  }
  std::vector<const Plan*> each;
  for (const auto& [key, plan] : of) each.push_back(plan);
  run(each.size(), [&](predict::Coarse& coarse, size_t i) { coarse.has_order(*each[i]); });
}

}  // namespace mw::planner
