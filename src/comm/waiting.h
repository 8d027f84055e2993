// What a rank is blocked on, as a watchdog reads it while the rank is blocked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace mw::comm {

enum class WaitKind : uint8_t {
  kGroup,       // for the other members to create the group
  kCollective,  // for the other members to reach the operation, or to finish it
  kAcquire,     // producer, for the consumer to release the slot
  kPublish,     // producer, for the consumer to call receive
  kReceive      // consumer, for the producer to publish
};

struct Waiting {
  RankId rank = {};
  WaitKind kind = WaitKind::kCollective;
  std::string where = {};      // "group 'dp'", "channel 3 (rank 0 to rank 1)"
  std::string operation = {};  // "all_reduce sum f32 [1024]"; empty for a channel
  int64_t sequence = 0;  // operation of the group, or message of the channel that it waits for
  std::vector<RankId> peers = {};  // those that have not arrived yet
  Seconds waited = {};
};

// "rank 2 waits 3.20 s in group 'dp' at operation 17 (all_reduce sum f32 [1024]) for ranks 1, 3"
std::string describe(const Waiting& waiting);

// "rank 1" or "ranks 1, 3".
std::string describe_ranks(const std::vector<RankId>& ranks);

}  // namespace mw::comm
