// How much memory a rank held when.
#pragma once

#include <array>
#include <vector>

#include "trace/trace.h"

namespace mw::trace {

struct MemoryPoint {
  Seconds time;
  Bytes total;
  std::array<Bytes, kMemoryCategories> by_category;  // by MemoryCategory
};

// The rank's memory from each point's time to the next one's; one point for all samples of one
// time. Categories without a sample yet hold nothing. REQUIRES: the trace is sorted.
std::vector<MemoryPoint> memory_curve(const Trace& trace, RankId rank);

struct MemoryPeak {
  RankId rank;
  MemoryPoint point;  // the first one with the largest total
};
// By rank, for the ranks that have samples.
std::vector<MemoryPeak> memory_peaks(const Trace& trace);

}  // namespace mw::trace
