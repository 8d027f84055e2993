// Time of a collective and of a message, by algorithm and protocol, chosen by size and group as
// NCCL chooses: whatever its own cost model says is fastest.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cluster/group_shape.h"
#include "ir/op_kind.h"

namespace mw::cost {

enum class Algorithm : uint8_t {
  kNone,          // one device
  kRing,          // every member sends to the next
  kTree,          // two complementary binary trees over nodes, chains inside [Sanders 2009]
  kHierarchical,  // reduce-scatter inside, the rest outside, all-gather inside
  kSwitch,        // the switch adds (NVLS)
  kTorus,         // a ring in both directions of every dimension
  kDirect         // all to all: every member to every other
};

// NCCL's: LL and LL128 send data and flag together: low latency, part of the bandwidth.
enum class Protocol : uint8_t { kLL, kLL128, kSimple };

struct CollectiveTime {
  Seconds time;
  Seconds latency;  // the part of it that does not grow with the bytes
  Algorithm algorithm = Algorithm::kNone;
  Protocol protocol = Protocol::kSimple;
  size_t level = 0;  // the outermost link level that the group crosses
};

// `bytes` is the whole tensor's: of the operand for all_reduce and reduce_scatter, of the result
// for all_gather, of one device's operand for all_to_all and permute, which is one message across
// the outermost level. Groups along the same axes all
// communicate at once, so a device has its own card's bandwidth and no other's.
// REQUIRES: is_collective(kind), bytes >= 0.
CollectiveTime collective_time(const cluster::Cluster& cluster, ir::OpKind kind, Bytes bytes,
                               const cluster::GroupShape& group);
// The slowest of several groups that go at once and are waited for. REQUIRES: groups are not empty.
CollectiveTime collective_time(const cluster::Cluster& cluster, ir::OpKind kind, Bytes bytes,
                               const std::vector<cluster::GroupShape>& groups);

// [level of the group] which share of a level's bandwidth its transfer takes, all of the narrowest
// one's. REQUIRES: the group has several members.
std::vector<double> link_uses(const cluster::Cluster& cluster, ir::OpKind kind, Bytes bytes,
                              const cluster::GroupShape& group);

// Of messages between two devices whose innermost common level is `level`, by link and stack.
Seconds message_latency(const cluster::Cluster& cluster, size_t level);
cluster::BytesPerSecond message_bandwidth(const cluster::Cluster& cluster, size_t level);
// latency + bytes / bandwidth
Seconds message_time(const cluster::Cluster& cluster, Bytes bytes, size_t level);

}  // namespace mw::cost
