// What a collective operation is: a value that a communicator runs, a verifier compares between
// ranks and a cost model counts bytes of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/dtype.h"
#include "base/ids.h"

namespace mw::comm {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kPermute,
  kBarrier
};

std::string_view reduce_op_name(ReduceOp op);
// "all_reduce", "reduce_scatter", …
std::string_view collective_kind_name(CollectiveKind kind);

// Elements in memory that the caller owns; the DType is the operation's. An operation's input is
// only read.
struct Buffer {
  void* data = nullptr;
  int64_t count = 0;  // elements
};

// (source, destination), both indices into the group.
using PermutePair = std::pair<int, int>;

// One operation of one rank on a list of buffers; the spans are borrowed for the time of the call.
//
//   kind            in                        out
//   all_reduce      the buffers               the same buffers
//   reduce_scatter  [n * c] each              [c] each, may be the own part of its in
//   all_gather      [c] each, may be the      [n * c] each
//                   own part of its out
//   all_to_all      [n * c] each              [n * c] each, disjoint from in
//   broadcast       the buffers               the same buffers
//   permute         [c] each                  [c] each, disjoint from in
//   barrier         none                      none
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;  // all_reduce and reduce_scatter
  int root = 0;                  // broadcast
  std::span<const PermutePair> pairs =
      {};  // permute: each source and each destination at most once
  std::span<const Buffer> in = {};
  std::span<const Buffer> out = {};
};

// "all_reduce sum f32 [1024, 8]", "permute bf16 [64] 0>1 1>0"; counts are those of `in`.
std::string describe(const Collective& op);

// Throws CheckFailure if the lists do not fit the table above for a group of `size` ranks; `where`
// begins the message.
void check_collective(const Collective& op, int size, std::string_view where);

// The whole tensor's bytes, summed over the list: of `in` for reduce_scatter, of `out` for all
// others.
Bytes collective_bytes(const Collective& op);

// Bytes that one rank sends in an operation on a group of n ranks, where `bytes` is the whole
// tensor's:
//   all_reduce                                          2(n-1)/n * bytes
//   reduce_scatter, all_gather, all_to_all, broadcast    (n-1)/n * bytes
//   permute     bytes, for a rank that is the source of a pair, be it to itself (others send
//   nothing) barrier     0
// (n-1)/n is the ring's share [Thakur 2005]; broadcast is the mean over the ranks of the pipelined
// ring, of which only the last rank forwards nothing. A quotient that is not whole is rounded up,
// once for the whole operation: ceil(2(n-1) * bytes / n). The numbers depend on neither the rank
// nor the split into buffers. REQUIRES: bytes >= 0, group_size >= 1. A group of one sends nothing.
Bytes collective_bytes_sent(CollectiveKind kind, Bytes bytes, int group_size);

}  // namespace mw::comm
