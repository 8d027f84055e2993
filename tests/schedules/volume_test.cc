// The verifier counts what the communicator will: two formulas in two rooms that do not know each
// other.
#include "pipeline/volume.h"

#include <doctest/doctest.h>

#include "base/rng.h"
#include "comm/collective.h"

namespace mw {
namespace {

TEST_CASE("the verifier's volume of a collective is what a communicator counts as sent") {
  const std::pair<ir::OpKind, comm::CollectiveKind> kinds[] = {
      {ir::OpKind::kAllReduce, comm::CollectiveKind::kAllReduce},
      {ir::OpKind::kReduceScatter, comm::CollectiveKind::kReduceScatter},
      {ir::OpKind::kAllGather, comm::CollectiveKind::kAllGather},
      {ir::OpKind::kAllToAll, comm::CollectiveKind::kAllToAll},
      {ir::OpKind::kPermute, comm::CollectiveKind::kPermute}};
  int collectives = 0;
  for (int kind = 0; kind < ir::kOpKinds; ++kind)
    collectives += ir::is_collective(static_cast<ir::OpKind>(kind)) ? 1 : 0;
  CHECK(collectives == std::size(kinds));
  for (const auto& [op, kind] : kinds) {
    CAPTURE(ir::op_name(op));
    for (int n = 1; n <= 130; ++n) {
      CAPTURE(n);
      for (int64_t bytes = 0; bytes <= 300; ++bytes) {
        if (pipeline::collective_volume(op, Bytes(bytes), n) !=
            comm::collective_bytes_sent(kind, Bytes(bytes), n)) {
          FAIL_CHECK(bytes);
        }
      }
      for (uint64_t i = 0; i < 200; ++i) {  // up to 2^59
        const uint64_t draw = mix_bits(i * 1000 + static_cast<uint64_t>(n));
        const auto bytes = static_cast<int64_t>((draw >> 5) >> (draw % 59));
        if (pipeline::collective_volume(op, Bytes(bytes), n) !=
            comm::collective_bytes_sent(kind, Bytes(bytes), n)) {
          FAIL_CHECK(bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mw
