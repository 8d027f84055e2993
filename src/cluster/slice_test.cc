#include "cluster/slice.h"

#include <doctest/doctest.h>

#include "cluster/group_shape.h"

using namespace mw;
using namespace mw::cluster;

namespace {

Cluster pod(const std::vector<int64_t>& torus) {
  Cluster made;
  made.name = "pod";
  made.links.resize(1);
  made.links[0].kind = LinkKind::kTorus;
  made.links[0].torus = torus;
  made.links[0].devices = 1;
  for (const int64_t side : torus) made.links[0].devices *= side;
  made.devices = made.links[0].devices;
  return made;
}

}  // namespace

TEST_CASE("a job on a part of a torus has the most cubic box of as many devices") {
  using Sides = std::vector<int64_t>;
  struct Case {
    Sides torus;
    int64_t devices;
    Sides sides;
  };
  for (const Case& c : {Case{{16, 16, 16}, 64, {4, 4, 4}},
                        {{16, 16, 16}, 512, {8, 8, 8}},
                        {{16, 16, 16}, 128, {4, 4, 8}},
                        {{16, 16, 16}, 2, {1, 1, 2}},
                        {{32, 32}, 32, {4, 8}},
                        {{32, 32}, 16, {4, 4}},
                        {{16, 2}, 16, {8, 2}},
                        {{6, 12}, 36, {6, 6}},
                        {{6, 12}, 18, {3, 6}}}) {
    const Cluster slice = slice_of(pod(c.torus), c.devices);
    CAPTURE(c.devices);
    CHECK(slice.links[0].torus == c.sides);
    CHECK(slice.links[0].devices == c.devices);
    CHECK(slice.devices == pod(c.torus).devices);
    CHECK(slice_of(slice, c.devices).links[0].torus == c.sides);
  }
  CHECK(slice_name(pod({16, 16, 16}), 64) == "pod, 4x4x4 of it");
}

TEST_CASE("without such a box, or with no torus inside, a job has the cluster as it is") {
  for (const int64_t devices : {96, 100, 3, 4096, 8192}) {
    CAPTURE(devices);
    CHECK(slice_of(pod({16, 16, 16}), devices).links[0].torus == std::vector<int64_t>{16, 16, 16});
    CHECK(slice_name(pod({16, 16, 16}), devices) == "pod");
  }
  Cluster boxes = pod({16, 16});
  boxes.links.insert(boxes.links.begin(), Link{});
  CHECK(slice_of(boxes, 16).links[1].torus == std::vector<int64_t>{16, 16});
}

TEST_CASE("of two devices along a side there is one link, not a way around") {
  const GroupShape pair = group_shape(pod({2, 4}), {RankId(0), RankId(4)});
  CHECK(pair.torus_links() == 1);
  CHECK(pair.torus_hops == 1);
}
