#include "comm/collective.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace mw::comm {
namespace {

int64_t sent(CollectiveKind kind, int64_t bytes, int n) {
  return collective_bytes_sent(kind, Bytes(bytes), n).value;
}

std::string check_text(const Collective& op, int size) {
  try {
    check_collective(op, size, "dp");
  } catch (const CheckFailure& e) {
    const std::string text = e.what();
    return text.substr(text.rfind("dp: "));
  }
  return "";
}

TEST_CASE("the bytes that a rank sends are the ring's share, rounded up once") {
  CHECK(sent(CollectiveKind::kAllReduce, 64, 4) == 96);
  CHECK(sent(CollectiveKind::kAllReduce, 10, 3) == 14);  // 13.33
  CHECK(sent(CollectiveKind::kReduceScatter, 64, 4) == 48);
  CHECK(sent(CollectiveKind::kAllGather, 10, 4) == 8);  // 7.5
  CHECK(sent(CollectiveKind::kAllToAll, 80, 8) == 70);
  CHECK(sent(CollectiveKind::kBroadcast, 80, 8) == 70);
  CHECK(sent(CollectiveKind::kPermute, 80, 8) == 80);
  CHECK(sent(CollectiveKind::kBarrier, 80, 8) == 0);
  for (int kind = 0; kind <= static_cast<int>(CollectiveKind::kBarrier); ++kind) {
    CHECK(sent(static_cast<CollectiveKind>(kind), 1000, 1) == 0);
  }
}

TEST_CASE("the bytes of petabytes over thousands of ranks do not overflow") {
  const int64_t peta = int64_t{1} << 50;
  CHECK(sent(CollectiveKind::kAllReduce, peta, 8192) == 2 * (peta - peta / 8192));
  CHECK(sent(CollectiveKind::kAllReduce, peta - 1, 8192) == 2 * (peta - peta / 8192) - 1);
}

TEST_CASE("an operation reads as one line") {
  float x[8];
  const std::vector<Buffer> two = {{x, 8}, {x, 4}}, one = {{x, 4}};
  const std::vector<PermutePair> pairs = {{0, 1}, {1, 0}};
  CHECK(
      describe({.kind = CollectiveKind::kAllReduce, .op = ReduceOp::kMax, .in = two, .out = two}) ==
      "all_reduce max f32 [8, 4]");
  CHECK(
      describe({.kind = CollectiveKind::kBroadcast, .dtype = DType::kI64, .root = 2, .in = one}) ==
      "broadcast i64 [4] from 2");
  CHECK(describe({.kind = CollectiveKind::kPermute, .pairs = pairs, .in = one}) ==
        "permute f32 [4] 0>1 1>0");
  CHECK(describe({.kind = CollectiveKind::kBarrier}) == "barrier");
}

TEST_CASE("buffers that do not fit the operation are named") {
  float x[8];
  const std::vector<Buffer> eight = {{x, 8}}, four = {{x, 4}}, none = {{nullptr, 4}};
  CHECK(check_text({.kind = CollectiveKind::kReduceScatter, .in = eight, .out = four}, 2) == "");
  CHECK(check_text({.kind = CollectiveKind::kReduceScatter, .in = eight, .out = four}, 3) ==
        "dp: reduce_scatter sum f32 [8]: buffer 0 has 8 elements in and 4 out");
  CHECK(check_text({.kind = CollectiveKind::kAllToAll, .in = eight, .out = eight}, 3) ==
        "dp: all_to_all f32 [8]: 8 elements do not split in 3 parts");
  CHECK(check_text({.kind = CollectiveKind::kBroadcast, .root = 2, .in = four, .out = four}, 2) ==
        "dp: broadcast f32 [4] from 2: no such root in a group of 2");
  CHECK(check_text(
            {.kind = CollectiveKind::kAllReduce, .dtype = DType::kBool, .in = four, .out = four},
            2) == "dp: all_reduce sum bool [4]: a sum of bools; use max for or, min for and");
  CHECK(check_text({.kind = CollectiveKind::kAllReduce, .in = eight}, 2) ==
        "dp: all_reduce sum f32 [8]: 1 buffers in, 0 out");
  CHECK(check_text({.kind = CollectiveKind::kAllReduce, .in = none, .out = none}, 2)
            .starts_with("dp: all_reduce sum f32 [4]: a buffer of 4 elements at "));
  const std::vector<PermutePair> twice = {{0, 1}, {2, 1}}, far = {{0, 3}};
  CHECK(check_text({.kind = CollectiveKind::kPermute, .pairs = twice, .in = four, .out = four},
                   3) == "dp: permute f32 [4] 0>1 2>1: pair 2>1 repeats a source or a destination");
  CHECK(check_text({.kind = CollectiveKind::kPermute, .pairs = far, .in = four, .out = four}, 3) ==
        "dp: permute f32 [4] 0>3: pair 0>3 leaves the group of 3");
}

}  // namespace
}  // namespace mw::comm
