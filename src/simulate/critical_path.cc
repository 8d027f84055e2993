#include "simulate/critical_path.h"

#include <algorithm>

namespace mw::simulate {
namespace {

// The last wait of a rank that its peer had ended by then, at this command or before; nullptr:
// none.
const Wait* last_wait(const std::vector<Wait>& waits, int32_t command, double time) {
  const auto behind =
      std::upper_bound(waits.begin(), waits.end(), command,
                       [](int32_t c, const Wait& wait) { return c < wait.command; });
  for (auto it = behind; it != waits.begin();) {
    --it;
    if (it->end.value <= time && it->peer_time <= it->end) return &*it;
  }
  return nullptr;
}

}  // namespace

std::vector<PathPart> critical_path(const std::vector<std::vector<Wait>>& waits,
                                    const std::vector<double>& ends,
                                    const std::vector<int32_t>& commands) {
  std::vector<PathPart> path;
  auto rank = static_cast<int32_t>(std::max_element(ends.begin(), ends.end()) - ends.begin());
  double time = ends[static_cast<size_t>(rank)];
  int32_t command = commands[static_cast<size_t>(rank)] - 1;
  size_t left = 1;  // every wait is passed at most once
  for (const auto& of_rank : waits) left += of_rank.size();
  for (; left > 0; --left) {
    const Wait* wait = last_wait(waits[static_cast<size_t>(rank)], command, time);
    const double begin = wait == nullptr ? 0 : wait->end.value;
    if (time > begin) {
      path.push_back({rank, Seconds(begin), Seconds(time), false});
    }
    if (wait == nullptr) break;
    if (wait->peer_time < wait->end) {
      // Gathers of the rank's own weights are no messages.
      path.push_back({wait->peer, wait->peer_time, wait->end, wait->reason != WaitReason::kGather});
    }
    rank = wait->peer;
    command = wait->peer_command;
    time = wait->peer_time.value;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace mw::simulate
