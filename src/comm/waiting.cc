#include "comm/waiting.h"

#include <fmt/core.h>

namespace mw::comm {

std::string describe_ranks(const std::vector<RankId>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += fmt::format("{}{}", i ? ", " : "", ranks[i].value);
  return text;
}

std::string describe(const Waiting& w) {
  const std::string head = fmt::format("rank {} waits {:.2f} s", w.rank.value, w.waited.value);
  // A wait that ends while it is being read has no peers left.
  const std::string peers = w.peers.empty() ? "its own wake-up" : describe_ranks(w.peers);
  switch (w.kind) {
    case WaitKind::kGroup: return fmt::format("{} for {} to create {}", head, peers, w.where);
    case WaitKind::kCollective:
      return fmt::format("{} in {} at operation {} ({}) for {}", head, w.where, w.sequence,
                         w.operation, peers);
    case WaitKind::kAcquire:
      return fmt::format("{} on {} for {} to release message {}", head, w.where, peers, w.sequence);
    case WaitKind::kPublish:
      return fmt::format("{} on {} for {} to receive message {}", head, w.where, peers, w.sequence);
    case WaitKind::kReceive:
      return fmt::format("{} on {} for {} to publish message {}", head, w.where, peers, w.sequence);
  }
  return head;
}

}  // namespace mw::comm
