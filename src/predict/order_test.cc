#include "predict/order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;

namespace {

// Slots of all channels from one pipeline rank to another, the fewest first.
using SlotsByWay = std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>>;

SlotsByWay sorted(SlotsByWay slots) {
  for (auto& [way, of_way] : slots) std::sort(of_way.begin(), of_way.end());
  return slots;
}

SlotsByWay slots_of(const pipeline::Program& program) {
  SlotsByWay slots;
  for (const pipeline::Channel& channel : program.channels)
    slots[{channel.from, channel.to}].push_back(channel.slots);
  return sorted(std::move(slots));
}

// Where the backward reads what its stage received.
SlotsByWay slots_of(const Order& order) {
  SlotsByWay slots;
  for (int32_t copy = 0; copy + 1 < order.copies(); ++copy) {
    const int32_t here = order.rank_of(copy), next = order.rank_of(copy + 1);
    if (order.stage_of(copy) + 1 == order.stages() || here == next) continue;
    slots[{here, next}].push_back(order.slots()[static_cast<size_t>(copy) + 1].held);
    slots[{next, here}].push_back(order.slots()[static_cast<size_t>(copy)].gradients);
  }
  return sorted(std::move(slots));
}

}  // namespace

TEST_CASE("an order has the slots of the program's channels, under every kind of schedule") {
  for (const std::string& kind : pipeline::schedule_kinds()) {
    for (const char* pipeline : {"pp=2,microbatches=4", "pp=4,microbatches=8"}) {
      CAPTURE(kind);
      CAPTURE(std::string(pipeline));
      Request request = predict::test::small();
      request.plan = compile::parse_plan(std::string(pipeline) + ",schedule=" + kind);
      request.model.layers = request.plan.stages();
      const Order order(pipeline::make_schedule(compile::schedule_request(request.plan)));
      CHECK(slots_of(order) == slots_of(predict::test::train_of(request)));
    }
  }
}

TEST_CASE("a copy's last backward is told with what its rank does from then on") {
  const auto order_of = [](const char* plan) {
    return Order(pipeline::make_schedule(compile::schedule_request(compile::parse_plan(plan))));
  };
  const auto costs_of = [](const Order& order) {  // F, I, W and B of every stage
    std::vector<double> costs;
    for (int32_t s = 0; s < order.stages(); ++s) costs.insert(costs.end(), {1, 2, 3, 10});
    return costs;
  };
  const Order whole = order_of("pp=2,microbatches=4");
  for (const Order::Tail& tail : whole.tails(costs_of(whole))) {
    CHECK(tail.to_end == 10);
    CHECK(tail.backward == 10);
  }
  // The first stages' backwards are last on each rank: of all microbatches of a round.
  const Order chunks = order_of("pp=2,microbatches=4,schedule=interleaved-1f1b,chunks=2");
  const std::vector<Order::Tail> tails = chunks.tails(costs_of(chunks));
  CHECK(tails[0].to_end == 10);
  CHECK(tails[2].to_end == 10 + 2 * 10);
  CHECK(tails[2].backward == 10);
  const Order split = order_of("pp=2,microbatches=4,schedule=zb-h1");
  CHECK(split.tails(costs_of(split))[0].backward == 3);
  // Each replica of a stage has its own.
  CHECK(order_of("pp=2,microbatches=2,schedule=chimera").tails(std::vector<double>(8, 1)).size() ==
        4);
}
