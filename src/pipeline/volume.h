// Bytes that one device sends in a collective: the ring's volume, as comm::collective_bytes_sent
// counts it.
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "ir/op_kind.h"

namespace mw::pipeline {

// all_reduce: ceil(2(n-1) bytes / n); reduce_scatter, all_gather, all_to_all: ceil((n-1) bytes /
// n), where `bytes` is the whole tensor's, summed over the op's list, and n the group's size
// [Thakur 2005]. permute: `bytes`, which are one shard's, unless the group has one member.
// REQUIRES: ir::is_collective(kind), bytes >= 0, n >= 1.
inline Bytes collective_volume(ir::OpKind kind, Bytes bytes, int64_t n) {
  MW_CHECK(ir::is_collective(kind) && bytes.value >= 0 && n >= 1, "{} of {} bytes in a group of {}",
           ir::op_name(kind), bytes.value, n);
  if (kind == ir::OpKind::kPermute) return n == 1 ? Bytes(0) : bytes;
  const int64_t factor = (kind == ir::OpKind::kAllReduce ? 2 : 1) * (n - 1);
  // Split so that the product does not leave int64_t.
  const int64_t whole = bytes.value / n * factor, rest = bytes.value % n * factor;
  return Bytes(whole + (rest + n - 1) / n);
}

}  // namespace mw::pipeline
