#include "trace/memory_curve.h"

#include <algorithm>
#include <ranges>

namespace mw::trace {

std::vector<MemoryPoint> memory_curve(const Trace& trace, RankId rank) {
  std::vector<MemoryPoint> curve;
  const auto [first, behind] =
      std::ranges::equal_range(trace.memory, rank, {}, &MemorySample::rank);
  for (const MemorySample& sample : std::ranges::subrange(first, behind)) {
    if (curve.empty()) {
      curve.push_back({sample.time, {}, {}});
    } else if (curve.back().time != sample.time) {
      MemoryPoint next = curve.back();
      next.time = sample.time;
      curve.push_back(next);
    }
    MemoryPoint& point = curve.back();
    Bytes& held = point.by_category[static_cast<size_t>(sample.category)];
    point.total += sample.bytes - held;
    held = sample.bytes;
  }
  return curve;
}

std::vector<MemoryPeak> memory_peaks(const Trace& trace) {
  std::vector<MemoryPeak> peaks;
  for (RankId rank : ranks(trace)) {
    const std::vector<MemoryPoint> curve = memory_curve(trace, rank);
    if (curve.empty()) continue;
    // max_element gives the first of equals.
    const auto peak = std::max_element(
        curve.begin(), curve.end(),
        [](const MemoryPoint& a, const MemoryPoint& b) { return a.total < b.total; });
    peaks.push_back({rank, *peak});
  }
  return peaks;
}

}  // namespace mw::trace
