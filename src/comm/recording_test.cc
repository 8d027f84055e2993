#include "comm/recording.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace mw::comm {
namespace {

TEST_CASE("a recording endpoint writes down what one rank asked for, and never blocks") {
  RecordingEndpoint endpoint(RankId(2), 4);
  const auto group = endpoint.group({RankId(0), RankId(2)}, "dp");
  float x[8] = {1, 2};
  const Buffer buffers[] = {{x, 8}};
  group->all_reduce(buffers, DType::kF32, ReduceOp::kSum);
  const auto channel = endpoint.channel(RankId(3), 1, Bytes(64), 2, false);
  CHECK(*static_cast<const int64_t*>(channel->receive(0)) == 0);
  channel->release(0);
  CHECK(group->rank() == 1);
  CHECK(group->bytes_sent() == Bytes(32));
  CHECK(x[1] == 2);
  CHECK(endpoint.log() == std::vector<std::string>{
                              "group dp [0, 2]",
                              "dp: all_reduce sum f32 [8]",
                              "channel 1 3>2: open 2 x 64 bytes",
                              "channel 1 3>2: receive 0",
                              "channel 1 3>2: release 0",
                          });
  endpoint.abort("enough");
  CHECK_THROWS_WITH_AS(group->barrier(), "enough", Aborted);
}

}  // namespace
}  // namespace mw::comm
