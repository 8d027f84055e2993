// What the plans of a search may have: --only tp=1,2,4,8 --only schedule=1f1b,interleaved-1f1b.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "compile/plan.h"

namespace mw::planner {

// A key that is not there may have any value.
struct Only {
  // tp, pp, dp, ep, chunks, microbatches, zero; sp (0 or 1).
  std::map<std::string, std::vector<int64_t>, std::less<>> counts;
  std::vector<compile::Recompute> recompute;
  std::vector<std::string> schedules;  // of pipelines; one stage has no schedule

  bool takes(std::string_view key, int64_t value) const;
  bool takes(compile::Recompute value) const;
  bool takes_schedule(const std::string& kind) const;
  bool empty() const { return counts.empty() && recompute.empty() && schedules.empty(); }
};

// One KEY=VALUE,VALUE… each. Adds what is wrong to the findings.
Only parse_only(const std::vector<std::string>& texts, Diagnostics& diagnostics);
// "tp=1,2,4,8 schedule=1f1b"; "" for anything.
std::string to_string(const Only& only);

}  // namespace mw::planner
