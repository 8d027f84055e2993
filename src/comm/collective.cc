#include "comm/collective.h"

#include <fmt/core.h>

#include <vector>

#include "base/error.h"

namespace mw::comm {
namespace {

// ceil(times * bytes / n) without overflow for any tensor and group that fit 63 bits.
int64_t share(int64_t bytes, int64_t times, int64_t n) {
  return bytes / n * times + ((bytes % n) * times + n - 1) / n;
}

int64_t elements(std::span<const Buffer> buffers) {
  int64_t sum = 0;
  for (const Buffer& buffer : buffers) sum += buffer.count;
  return sum;
}

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
}

// in.count * in_times == out.count * out_times for the kinds that change the size.
void check_sizes(const Collective& op, int64_t in_times, int64_t out_times,
                 std::string_view where) {
  for (size_t i = 0; i < op.in.size(); ++i) {
    MW_CHECK(op.in[i].count * in_times == op.out[i].count * out_times,
             "{}: {}: buffer {} has {} elements in and {} out", where, describe(op), i,
             op.in[i].count, op.out[i].count);
  }
}

void check_pairs(const Collective& op, int size, std::string_view where) {
  std::vector<int8_t> sends(size, 0), receives(size, 0);
  for (auto [source, destination] : op.pairs) {
    MW_CHECK(source >= 0 && source < size && destination >= 0 && destination < size,
             "{}: {}: pair {}>{} leaves the group of {}", where, describe(op), source, destination,
             size);
    MW_CHECK(!sends[source] && !receives[destination],
             "{}: {}: pair {}>{} repeats a source or a destination", where, describe(op), source,
             destination);
    sends[source] = receives[destination] = 1;
  }
}

}  // namespace

std::string_view reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kMin: return "min";
  }
  return "?";
}

std::string_view collective_kind_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce: return "all_reduce";
    case CollectiveKind::kReduceScatter: return "reduce_scatter";
    case CollectiveKind::kAllGather: return "all_gather";
    case CollectiveKind::kAllToAll: return "all_to_all";
    case CollectiveKind::kBroadcast: return "broadcast";
    case CollectiveKind::kPermute: return "permute";
    case CollectiveKind::kBarrier: return "barrier";
  }
  return "?";
}

std::string describe(const Collective& op) {
  std::string text(collective_kind_name(op.kind));
  if (op.kind == CollectiveKind::kBarrier) return text;
  if (reduces(op.kind)) text += fmt::format(" {}", reduce_op_name(op.op));
  text += fmt::format(" {} [", dtype_name(op.dtype));
  for (size_t i = 0; i < op.in.size(); ++i)
    text += fmt::format("{}{}", i ? ", " : "", op.in[i].count);
  text += ']';
  if (op.kind == CollectiveKind::kBroadcast) text += fmt::format(" from {}", op.root);
  for (auto [source, destination] : op.pairs) text += fmt::format(" {}>{}", source, destination);
  return text;
}

void check_collective(const Collective& op, int size, std::string_view where) {
  MW_CHECK(op.in.size() == op.out.size(), "{}: {}: {} buffers in, {} out", where, describe(op),
           op.in.size(), op.out.size());
  for (std::span<const Buffer> list : {op.in, op.out}) {
    for (const Buffer& buffer : list) {
      MW_CHECK(buffer.count >= 0 && (buffer.count == 0 || buffer.data != nullptr),
               "{}: {}: a buffer of {} elements at {}", where, describe(op), buffer.count,
               buffer.data);
    }
  }
  MW_CHECK(!(reduces(op.kind) && op.op == ReduceOp::kSum && op.dtype == DType::kBool),
           "{}: {}: a sum of bools; use max for or, min for and", where, describe(op));
  switch (op.kind) {
    case CollectiveKind::kAllReduce: check_sizes(op, 1, 1, where); break;
    case CollectiveKind::kReduceScatter: check_sizes(op, 1, size, where); break;
    case CollectiveKind::kAllGather: check_sizes(op, size, 1, where); break;
    case CollectiveKind::kAllToAll:
      check_sizes(op, 1, 1, where);
      for (const Buffer& in : op.in) {
        MW_CHECK(in.count % size == 0, "{}: {}: {} elements do not split in {} parts", where,
                 describe(op), in.count, size);
      }
      break;
    case CollectiveKind::kBroadcast:
      check_sizes(op, 1, 1, where);
      MW_CHECK(op.root >= 0 && op.root < size, "{}: {}: no such root in a group of {}", where,
               describe(op), size);
      break;
    case CollectiveKind::kPermute:
      check_sizes(op, 1, 1, where);
      check_pairs(op, size, where);
      break;
    case CollectiveKind::kBarrier:
      MW_CHECK(op.in.empty(), "{}: a barrier with buffers", where);
      break;
  }
}

Bytes collective_bytes(const Collective& op) {
  return Bytes(elements(op.kind == CollectiveKind::kReduceScatter ? op.in : op.out) *
               dtype_size(op.dtype));
}

Bytes collective_bytes_sent(CollectiveKind kind, Bytes bytes, int group_size) {
  MW_CHECK(bytes.value >= 0 && group_size >= 1, "{} of {} bytes in a group of {}",
           collective_kind_name(kind), bytes.value, group_size);
  const int64_t n = group_size;
  if (n == 1) return Bytes(0);
  switch (kind) {
    case CollectiveKind::kAllReduce: return Bytes(share(bytes.value, 2 * (n - 1), n));
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kBroadcast: return Bytes(share(bytes.value, n - 1, n));
    case CollectiveKind::kPermute: return bytes;
    case CollectiveKind::kBarrier: return Bytes(0);
  }
  return Bytes(0);
}

}  // namespace mw::comm
