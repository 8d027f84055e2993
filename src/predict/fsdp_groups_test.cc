// What groups of weights hold, in bytes that are counted by hand.
#include "predict/fsdp_groups.h"

#include <doctest/doctest.h>

using namespace mw;
using namespace mw::predict;
using pipeline::Category;

namespace {

// Blocks of 80 elements and ends of 120; a device has a part of `parts`.
struct Device {
  explicit Device(int64_t parts) {
    for (const FsdpGroups::Key key :
         {FsdpGroups::Key{0, FsdpGroups::kEnds}, {0, 1}, {0, 2}, {1, FsdpGroups::kEnds}, {1, 3}}) {
      const bool ends = key.layer == FsdpGroups::kEnds;
      groups.add(key, {{ends ? 100 : 64, ends ? 20 : 16}, ends ? 120 : 80});
    }
    groups.hold_weights(kAll * 4 / parts);
    at_rest = bytes(Category::kWeights);
  }
  int64_t bytes(Category category) const {
    return tensors.by_category()[static_cast<size_t>(category)];
  }
  int64_t gathered() const { return bytes(Category::kWeights) - at_rest; }
  int64_t workspace() const { return bytes(Category::kWorkspace); }
  int64_t gradients() const { return bytes(Category::kGradients); }
  void make_gradients(int g) {
    for (const int64_t elements : {64, 16}) groups.add_gradient(g, elements);
  }
  // The most that is alive meanwhile, beside what was.
  template <typename Do>
  int64_t most(const Do& what) {
    const int64_t alive = tensors.alive();
    tensors.watch();
    what();
    return tensors.most() - alive;
  }

  static constexpr int64_t kAll = 2 * 120 + 3 * 80;
  TorchTensors tensors{cluster::Allocator::kExpandable, Bytes(1 << 30)};
  FsdpGroups groups{tensors, DType::kBF16};
  int64_t at_rest = 0;
  int ends() const { return groups.find({0, FsdpGroups::kEnds}); }
  int first() const { return groups.find({0, 1}); }
  int second() const { return groups.find({0, 2}); }
  int other() const { return groups.find({1, 3}); }
};

}  // namespace

TEST_CASE("a group is found by stage and layer, and knows its neighbours in the stage") {
  TorchTensors tensors(cluster::Allocator::kExpandable, Bytes(1 << 30));
  FsdpGroups groups(tensors, DType::kBF16);
  const std::vector<FsdpGroups::Key> keys = {
      {0, FsdpGroups::kEnds}, {0, 1}, {0, 2}, {1, FsdpGroups::kEnds}, {2, 5}, {3, 7}, {3, 8}};
  for (const FsdpGroups::Key& key : keys) groups.add(key, {{8}, 8});
  groups.add({0, 1}, {{8}, 8});  // more of the same
  CHECK(groups.size() == 7);
  CHECK(groups.find({0, 7}) == -1);
  struct Case {
    FsdpGroups::Key key;
    bool last;
    FsdpGroups::Key before;
  };
  const FsdpGroups::Key none{9, 9};
  for (const Case& c : std::vector<Case>{{keys[0], false, none},
                                         {keys[1], false, none},
                                         {keys[2], true, keys[1]},
                                         {keys[3], false, none},
                                         {keys[4], true, none},
                                         {keys[5], false, none},
                                         {keys[6], true, keys[5]}}) {
    CAPTURE(c.key.stage);
    CAPTURE(c.key.layer);
    const int g = groups.find(c.key);
    REQUIRE(g >= 0);
    CHECK(groups.is_ends(g) == (c.key.layer == FsdpGroups::kEnds));
    CHECK(groups.is_last_block(g) == c.last);
    CHECK(groups.before(g) == groups.find(c.before));
  }
}

TEST_CASE("between steps a device holds its part of weights and moments in f32") {
  for (const int64_t parts : {1, 2, 4}) {
    Device device(parts);
    CHECK(device.at_rest == 4 * Device::kAll / parts);
    device.groups.hold_moments();
    CHECK(device.bytes(Category::kOptimizer) == 2 * 4 * Device::kAll / parts);
    CHECK(device.tensors.alive() == 3 * 4 * Device::kAll / parts);
  }
}

TEST_CASE("weights are gathered through a flat buffer, which stays in the forward pass") {
  Device device(4);
  FsdpGroups& groups = device.groups;
  // The part in bf16, a quarter, beside the buffer.
  CHECK(device.most([&] { groups.begin_gather(device.first()); }) == 2 * 20 + 2 * 80);
  CHECK(device.workspace() == 2 * 80);
  CHECK(device.most([&] { groups.begin_gather(device.first()); }) == 0);
  groups.gather(device.first(), true);
  CHECK(device.gathered() == 2 * 80);
  CHECK(device.workspace() == 2 * 80);
  groups.gather(device.first(), true);
  CHECK(device.gathered() == 2 * 80);
  // The last one's buffer is there until this one is read out of its own.
  CHECK(device.most([&] { groups.gather(device.ends(), true); }) == 2 * 120 + 2 * 120 - 2 * 80);
  CHECK(device.gathered() == 2 * 80 + 2 * 120);
  CHECK(device.workspace() == 2 * 120);
  groups.end_forward();
  CHECK(device.workspace() == 0);
  groups.release(device.ends());
  CHECK(device.gathered() == 2 * 80);
  // In the backward pass it goes at once.
  groups.gather(device.second(), false);
  CHECK(device.gathered() == 2 * 80 + 2 * 80);
  CHECK(device.workspace() == 0);
  // What is on its way when a step ends goes too.
  groups.begin_gather(device.other());
  CHECK(device.workspace() == 2 * 80);
  groups.end_step();
  CHECK(device.workspace() == 0);
  CHECK(device.gathered() == 0);
}

TEST_CASE("weights that are not divided are cast, without a buffer") {
  Device device(1);
  CHECK(device.most([&] { device.groups.gather(device.first(), true); }) == 2 * 80);
  CHECK(device.gathered() == 2 * 80);
  CHECK(device.workspace() == 0);
}

TEST_CASE("gradients are summed in f32, once a weight") {
  Device device(1);
  FsdpGroups& groups = device.groups;
  groups.sum_gradients(device.first());
  CHECK(device.gradients() == 0);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    const int64_t before = device.gradients();
    device.make_gradients(device.first());
    CHECK(device.gradients() == before + 2 * 80);
    groups.scatter(device.first());  // nothing is divided
    CHECK(device.gradients() == 4 * 80);
    CHECK(device.workspace() == 0);
  }
  groups.forget_gradients();
  CHECK(device.gradients() == 0);
}

TEST_CASE("gradients are scattered through a buffer in f32, one a stage, into parts") {
  Device device(4);
  FsdpGroups& groups = device.groups;
  groups.scatter(device.first());
  CHECK(device.gradients() == 0);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    for (const int g : {device.first(), device.ends()}) {
      device.make_gradients(g);
      groups.scatter(g);
      CHECK(device.workspace() == 4 * (g == device.first() ? 80 : 120));
    }
    CHECK(device.gradients() == 4 * (20 + 30 + (microbatch > 0 ? 20 : 0)));
    device.make_gradients(device.other());
    groups.scatter(device.other());
    CHECK(device.workspace() == 4 * 120 + 4 * 80);
    CHECK(device.gradients() == 4 * (20 + 30 + 20));
    groups.end_backward();
    CHECK(device.workspace() == 0);
  }
  // Sums of several microbatches, too.
  device.make_gradients(device.second());
  groups.sum_gradients(device.second());
  CHECK(device.gradients() == 4 * (20 + 30 + 20) + 4 * 80);
  groups.scatter(device.second());
  CHECK(device.gradients() == 4 * (20 + 30 + 20 + 20));
  groups.forget_gradients();
  CHECK(device.gradients() == 0);
}

TEST_CASE("behind its last backward pass a stage's groups are scattered and released, no others") {
  Device device(4);
  FsdpGroups& groups = device.groups;
  for (const int g : {device.ends(), device.first(), device.second(), device.other()}) {
    groups.gather(g, false);
    device.make_gradients(g);
  }
  groups.scatter_stage(0);
  CHECK(device.gathered() == 2 * 80);
  CHECK(device.gradients() == 4 * (30 + 20 + 20) + 2 * 80);
  CHECK(device.workspace() == 4 * 80);
}
