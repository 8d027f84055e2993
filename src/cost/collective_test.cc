#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <vector>

#include "base/test_close_to.h"
#include "cost/collective.h"

using namespace mw;
using namespace mw::cost;
using cluster::Cluster;
using cluster::GroupShape;
using ir::OpKind;

namespace {

// Eight devices inside, 100 GB/s; outside 10 GB/s a device; plain latencies of 1 and 5 us.
Cluster plain(cluster::LinkKind inside = cluster::LinkKind::kMemory) {
  Cluster c;
  c.links.resize(2);
  c.links[0].kind = inside;
  c.links[0].devices = 8;
  c.links[0].bandwidth = c.links[0].bus_bandwidth = cluster::BytesPerSecond(100e9);
  c.links[0].latency = Seconds(1e-6);
  c.links[1].kind = inside == cluster::LinkKind::kMemory ? inside : cluster::LinkKind::kNetwork;
  c.links[1].bandwidth = c.links[1].bus_bandwidth = cluster::BytesPerSecond(10e9);
  c.links[1].latency = Seconds(5e-6);
  return c;
}

GroupShape shape(std::vector<int64_t> ways) {
  GroupShape group;
  group.ways = std::move(ways);
  for (const int64_t w : group.ways) group.size *= w;
  return group;
}

double time_of(const Cluster& c, OpKind kind, int64_t bytes, std::vector<int64_t> ways) {
  return collective_time(c, kind, Bytes(bytes), shape(std::move(ways))).time.value;
}

}  // namespace

TEST_CASE("a ring takes 2(n-1)/n of the bytes over the bus, and 2(n-1) hops") {
  struct Case {
    OpKind kind;
    int64_t bytes;
    std::vector<int64_t> ways;
    double seconds;
  };
  const std::vector<Case> cases = {
      {OpKind::kAllReduce, 800'000'000, {8, 1}, 2 * 7.0 / 8 * 8e8 / 100e9 + 14e-6},
      {OpKind::kAllReduce, 0, {8, 1}, 14e-6},
      {OpKind::kReduceScatter, 800'000'000, {8, 1}, 7.0 / 8 * 8e8 / 100e9 + 7e-6},
      {OpKind::kAllGather, 800'000'000, {4, 1}, 3.0 / 4 * 8e8 / 100e9 + 3e-6},
      // One member a node: only the outer links count.
      {OpKind::kAllReduce, 800'000'000, {1, 4}, 2 * 3.0 / 4 * 8e8 / 10e9 + 6 * 5e-6},
      {OpKind::kAllReduce, 1, {1, 1}, 0},
  };
  for (const Case& c : cases) {
    CHECK(time_of(plain(), c.kind, c.bytes, c.ways) == mw::test::close_to(c.seconds));
  }
}

TEST_CASE("members of one node share the work outside: each of g sends 1/g of the bytes") {
  // Hierarchical: inside 2 * 7/8 * 8e8 / 100e9 = 14 ms; outside 2 * 3/4 * 1e8 / 10e9 = 15 ms.
  const CollectiveTime t =
      collective_time(plain(), OpKind::kAllReduce, Bytes(800'000'000), shape({8, 4}));
  CHECK(t.algorithm == Algorithm::kHierarchical);
  CHECK(t.level == 1);
  CHECK(t.time.value == mw::test::close_to(15e-3 + 2 * (7e-6 + 15e-6)));
  // A flat ring would take 2 * 31/32 * 8e8 / 80e9.
  CHECK(t.time.value < 2 * 31.0 / 32 * 8e8 / 80e9);
}

TEST_CASE("a ring crosses a node's border once for each node and pass, NCCL's constants or not") {
  Cluster c = plain(cluster::LinkKind::kNvlink);
  c.stack.gloo = true;
  CHECK(time_of(c, OpKind::kAllReduce, 0, {8, 4}) == mw::test::close_to(8 * 5e-6 + 54 * 1e-6));
  CHECK(time_of(c, OpKind::kAllGather, 0, {8, 4}) == mw::test::close_to(4 * 5e-6 + 27 * 1e-6));
  c.stack.gloo = false;
  CHECK(time_of(c, OpKind::kAllGather, 0, {8, 4}) ==
        mw::test::close_to(3.6e-6 + 4 * 2.7e-6 + 27 * 0.47e-6));
}

TEST_CASE("a border that is one of a level outside, too, is crossed there alone") {
  // Four nodes of two boards of three devices, by Gloo: of 23 hops 4 between nodes, 4 between
  // boards.
  Cluster c = plain();
  c.stack.gloo = true;
  c.links.insert(c.links.begin() + 1, c.links[0]);
  c.links[1].latency = Seconds(2e-6);
  CHECK(time_of(c, OpKind::kAllGather, 0, {3, 2, 4}) ==
        mw::test::close_to(4 * 5e-6 + 4 * 2e-6 + 15 * 1e-6));
  CHECK(time_of(c, OpKind::kAllReduce, 0, {3, 2, 1}) ==
        mw::test::close_to(2 * (2 * 2e-6 + 3 * 1e-6)));
  CHECK(time_of(c, OpKind::kAllGather, 0, {1, 2, 4}) == mw::test::close_to(4 * 5e-6 + 3 * 2e-6));
}

TEST_CASE("what is no NCCL takes its links' latency, inside and outside") {
  Cluster c = plain();
  c.links[1].kind = cluster::LinkKind::kNetwork;
  c.links[1].latency = Seconds(200e-6);
  const CollectiveTime t =
      collective_time(c, OpKind::kAllReduce, Bytes(800'000'000), shape({8, 4}));
  CHECK(t.algorithm == Algorithm::kHierarchical);
  CHECK(t.latency.value == mw::test::close_to(2 * (7 * 1e-6 + 3 * 200e-6)));
}

TEST_CASE("all to all sends to peers inside and outside at the same time") {
  // Of 32 parts 24 leave the node at 10 GB/s, 7 stay inside at 100 GB/s.
  const CollectiveTime t =
      collective_time(plain(), OpKind::kAllToAll, Bytes(320'000'000), shape({8, 4}));
  CHECK(t.algorithm == Algorithm::kDirect);
  CHECK(t.time.value == mw::test::close_to(240e6 / 10e9 + 5e-6));
  // A device's card has all that goes beyond the first switch, too.
  cluster::Cluster switches = plain();
  cluster::Link& leaf = switches.links[0];
  leaf.kind = cluster::LinkKind::kNetwork;
  const double rate = leaf.bus_bandwidth.value;
  switches.links[1] = leaf;
  switches.links[0].devices = 8;
  const double there =
      collective_time(switches, OpKind::kAllToAll, Bytes(320'000'000), shape({8, 4})).time.value;
  CHECK(there == mw::test::close_to(320e6 * 31 / 32 / rate + leaf.latency.value));
  CHECK(time_of(plain(), OpKind::kAllToAll, 320'000'000, {8, 1}) ==
        mw::test::close_to(280e6 / 100e9 + 1e-6));
  // What leaves the node goes through no link inside.
  Cluster fast = plain(cluster::LinkKind::kNvlink);
  fast.links[1].bus_bandwidth = cluster::BytesPerSecond(400e9);
  CHECK(time_of(fast, OpKind::kAllToAll, 320'000'000, {8, 4}) ==
        mw::test::close_to(70e6 / 100e9 + 5e-6));
}

TEST_CASE("a collective takes all of its narrowest links, and of the others a part") {
  struct Case {
    const char* what;
    Cluster cluster;
    OpKind kind;
    std::vector<int64_t> ways;
    std::vector<double> uses;
  };
  Cluster gloo = plain();
  gloo.stack.gloo = true;
  const Case cases[] = {
      {"one level", plain(), OpKind::kAllReduce, {8}, {1}},
      {"hierarchical, 14 ms inside and 15 ms outside",
       plain(),
       OpKind::kAllReduce,
       {8, 4},
       {14. / 15, 1}},
      {"eight rings of 10 GB/s, 100 GB/s inside", gloo, OpKind::kAllReduce, {8, 4}, {0.8, 1}},
      {"one ring of 10 GB/s", gloo, OpKind::kAllGather, {1, 4}, {0, 1}},
      {"24 of 32 parts at 10 GB/s, 7 at 100 GB/s",
       plain(),
       OpKind::kAllToAll,
       {8, 4},
       {0.07 / 2.4, 1}}};
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const std::vector<double> uses =
        link_uses(c.cluster, c.kind, Bytes(800'000'000), shape(c.ways));
    REQUIRE(uses.size() == c.uses.size());
    for (size_t l = 0; l < uses.size(); ++l) CHECK(uses[l] == mw::test::close_to(c.uses[l]));
  }
  // NCCL's tree over 64 nodes, whose eight cards have 80 GB/s and the ring inside has 100 GB/s.
  const Cluster nccl = plain(cluster::LinkKind::kNvlink);
  const Bytes some(1 << 20);
  REQUIRE(collective_time(nccl, OpKind::kAllReduce, some, shape({8, 64})).algorithm ==
          Algorithm::kTree);
  const std::vector<double> of_tree = link_uses(nccl, OpKind::kAllReduce, some, shape({8, 64}));
  REQUIRE(of_tree.size() == 2);
  CHECK(of_tree[0] == mw::test::close_to(0.8));
  CHECK(of_tree[1] == 1);
}

TEST_CASE("a permutation is one message across the outermost level") {
  for (const auto& [ways, level, latency, rate] :
       {std::tuple{std::vector<int64_t>{4, 1}, 0, 1e-6, 100e9}, {{2, 2}, 1, 5e-6, 10e9}}) {
    const CollectiveTime time =
        collective_time(plain(), OpKind::kPermute, Bytes(100'000'000), shape(ways));
    CHECK(time.level == static_cast<size_t>(level));
    CHECK(time.latency.value == mw::test::close_to(latency));
    CHECK(time.time.value == mw::test::close_to(latency + 100e6 / rate));
  }
}

TEST_CASE("small messages take LL or a tree, large ones a ring with Simple") {
  Cluster box = plain(cluster::LinkKind::kNvlink);
  box.links[0].bus_bandwidth = cluster::BytesPerSecond(235e9);
  box.links[1].bus_bandwidth = cluster::BytesPerSecond(25e9);
  const auto chosen = [&](int64_t bytes, std::vector<int64_t> ways) {
    return collective_time(box, OpKind::kAllReduce, Bytes(bytes), shape(std::move(ways)));
  };
  CHECK(chosen(1 << 10, {8, 1}).protocol == Protocol::kLL);
  CHECK(chosen(1 << 10, {1, 64}).algorithm == Algorithm::kTree);
  CHECK(chosen(1 << 30, {8, 1}).algorithm == Algorithm::kRing);
  CHECK(chosen(1 << 30, {8, 1}).protocol == Protocol::kSimple);
  // NCCL's ring of eight with LL: 3.6 + 14 * 0.47 us.
  CHECK(chosen(0, {8, 1}).time.value <= 3.6e-6 + 14 * 0.47e-6);
  // Of a tree over 64 nodes: 4.4 + 2 * log2(64) * 5 us.
  CHECK(chosen(0, {1, 64}).time.value == mw::test::close_to(64.4e-6));
  double before = 0;
  for (int64_t bytes = 1; bytes <= (int64_t{1} << 34); bytes *= 2) {
    const double now = chosen(bytes, {8, 4}).time.value;
    CHECK(now >= before);
    before = now;
  }
}

TEST_CASE("a tree across nodes reaches a part of the bus inside, less on more than two of them") {
  Cluster box = plain(cluster::LinkKind::kNvlink);
  box.links[0].bus_bandwidth = cluster::BytesPerSecond(235e9);
  box.links[1].bus_bandwidth = cluster::BytesPerSecond(25e9);
  struct Case {
    int64_t bytes, nodes;
    double latency, bus;
  };
  // LL128: 4.4 + 2 (7 * 1.25 + log2(nodes) * 8.5) us.
  const std::vector<Case> cases = {{1 << 20, 2, 38.9e-6, 130e9 * 0.92},
                                   {1 << 24, 64, 123.9e-6, 105e9 * 0.92}};
  for (const Case& c : cases) {
    const CollectiveTime t =
        collective_time(box, OpKind::kAllReduce, Bytes(c.bytes), shape({8, c.nodes}));
    CHECK(t.algorithm == Algorithm::kTree);
    CHECK(t.protocol == Protocol::kLL128);
    CHECK(t.latency.value == mw::test::close_to(c.latency));
    CHECK(t.time.value == mw::test::close_to(c.latency + 2 * static_cast<double>(c.bytes) / c.bus));
  }
}

TEST_CASE("a tree over a network alone has no bus inside that it reaches a part of") {
  Cluster cards = plain(cluster::LinkKind::kNvlink);
  cards.links.erase(cards.links.begin());
  cards.links[0].bus_bandwidth = cluster::BytesPerSecond(8e9);
  const CollectiveTime t =
      collective_time(cards, OpKind::kAllReduce, Bytes(1 << 24), shape({1024}));
  CHECK(t.algorithm == Algorithm::kTree);
  CHECK(t.protocol == Protocol::kLL128);
  CHECK(t.time.value ==
        mw::test::close_to(4.4e-6 + 2 * 10 * 8.5e-6 + 2 * (1 << 24) / (8e9 * 0.92)));
}

TEST_CASE("a tree of one device a node is as fast as the network") {
  Cluster box = plain(cluster::LinkKind::kNvlink);
  box.links[0].bus_bandwidth = cluster::BytesPerSecond(235e9);
  box.links[1].bus_bandwidth = cluster::BytesPerSecond(25e9);
  // LL, which leaves 1 / 3.8 of the network's 25 GB/s.
  CHECK(time_of(box, OpKind::kAllReduce, 1 << 16, {1, 64}) ==
        mw::test::close_to(64.4e-6 + 2.0 * (1 << 16) * 3.8 / 25e9));
}

TEST_CASE("the factor of a link's hops scales NCCL's constants and leaves its base") {
  Cluster box = plain(cluster::LinkKind::kNvlink);
  box.links[0].hop_factor = 0.5;
  CHECK(time_of(box, OpKind::kAllGather, 0, {8, 1}) ==
        mw::test::close_to(3.6e-6 + 0.5 * 7 * 0.47e-6));
  box.links[0].hop_factor = 0;
  CHECK(time_of(box, OpKind::kAllGather, 0, {8, 1}) == mw::test::close_to(3.6e-6));
  box.links[1].hop_factor = 2;
  CHECK(time_of(box, OpKind::kAllReduce, 0, {1, 64}) == mw::test::close_to(124.4e-6));
  box.links[0].switch_bus_bandwidth = cluster::BytesPerSecond(400e9);
  CHECK(time_of(box, OpKind::kAllReduce, 1 << 30, {8, 1}) ==
        mw::test::close_to(2 * 7.0 / 8 * (1 << 30) / 400e9));
}

TEST_CASE("hops through a host's bridges have NCCL's constants of PCIe") {
  const Cluster box = plain(cluster::LinkKind::kPcie);
  const int64_t bytes = int64_t{1} << 30;
  CHECK(time_of(box, OpKind::kAllGather, 0, {8, 1}) == mw::test::close_to(3.6e-6 + 7 * 1.0e-6));
  const CollectiveTime large =
      collective_time(box, OpKind::kAllReduce, Bytes(bytes), shape({8, 1}));
  CHECK(large.protocol == Protocol::kSimple);
  CHECK(large.latency.value == mw::test::close_to(8.4e-6 + 14 * 5.7e-6));
}

TEST_CASE("Gloo has rings alone, whose every step takes the link's latency") {
  Cluster c = plain(cluster::LinkKind::kNvlink);
  c.stack.gloo = true;
  c.links[1].latency = Seconds(200e-6);
  const CollectiveTime time =
      collective_time(c, OpKind::kAllReduce, Bytes(1 << 20), shape({1, 16}));
  CHECK(time.algorithm == Algorithm::kRing);
  CHECK(time.time.value == mw::test::close_to(30 * 200e-6 + 2 * 15.0 / 16 * (1 << 20) / 10e9));
  c.stack.gloo = false;
  CHECK(time_of(c, OpKind::kAllReduce, 1 << 20, {1, 16}) < time.time.value / 10);
}

TEST_CASE("a torus uses both directions of every dimension") {
  Cluster pod;
  pod.links.resize(1);
  pod.links[0].kind = cluster::LinkKind::kTorus;
  pod.links[0].torus = {4, 8};
  pod.links[0].devices = 32;
  pod.links[0].bandwidth = pod.links[0].bus_bandwidth = cluster::BytesPerSecond(50e9);
  pod.links[0].latency = Seconds(1e-6);
  GroupShape all = shape({32});
  all.torus = {{8, 2}, {4, 2}};
  all.torus_hops = 6;
  CHECK(collective_time(pod, OpKind::kAllReduce, Bytes(320'000'000), all).time.value ==
        mw::test::close_to(2 * 310e6 / (4 * 50e9) + 12e-6));
  all.torus = {{8, 1}, {4, 1}};
  CHECK(collective_time(pod, OpKind::kAllGather, Bytes(320'000'000), all).time.value ==
        mw::test::close_to(310e6 / (2 * 50e9) + 6e-6));
}

TEST_CASE("a side of a torus with few links carries its part at the least") {
  Cluster pod;
  pod.links.resize(1);
  pod.links[0].kind = cluster::LinkKind::kTorus;
  pod.links[0].torus = {4, 4};
  pod.links[0].devices = 16;
  pod.links[0].bandwidth = pod.links[0].bus_bandwidth = cluster::BytesPerSecond(50e9);
  const auto seconds = [&](std::vector<cluster::TorusSide> sides, int64_t members) {
    GroupShape group = shape({members});
    group.torus = std::move(sides);
    return collective_time(pod, OpKind::kReduceScatter, Bytes(800'000'000), group).time.value;
  };
  // Both dimensions first, for half of the tensor each: 7/8 over all links.
  CHECK(seconds({{4, 2}, {2, 2}}, 8) == mw::test::close_to(700e6 / (4 * 50e9)));
  // Over the four rows that share their links go 3/8 when the pairs have summed.
  CHECK(seconds({{4, 0.5}, {2, 2}}, 8) == mw::test::close_to(300e6 / (0.5 * 50e9)));
  CHECK(seconds({{4, 2}, {2, 0.25}}, 8) == mw::test::close_to(100e6 / (0.25 * 50e9)));
  // Of three the two slow ones together.
  CHECK(seconds({{2, 4}, {2, 0.5}, {2, 0.5}}, 8) == mw::test::close_to(300e6 / (1.0 * 50e9)));
  // Members on a diagonal use both dimensions for every hop.
  CHECK(seconds({{4, 1}, {4, 0.5}}, 4) == mw::test::close_to(600e6 / (1.5 * 50e9)));
}

namespace {

// Of all links of a box the most that one carries in one direction, where every place sends a part
// of one to each place, itself included, along one side after the other on the shortest ways; of
// two such ways half on each.
double busiest_link(const std::vector<int64_t>& sides, bool closed) {
  int64_t places = 1;
  for (const int64_t side : sides) places *= side;
  std::map<std::array<int64_t, 3>, double> loads;  // place, side, direction
  const auto walk = [&](int64_t place, size_t d, int64_t stride, int64_t hops, int64_t way,
                        double part) {
    for (; hops > 0; --hops) {
      loads[{place, static_cast<int64_t>(d), way}] += part;
      const int64_t x = place / stride % sides[d];
      place += ((x + way + sides[d]) % sides[d] - x) * stride;
    }
    return place;
  };
  for (int64_t from = 0; from < places; ++from) {
    for (int64_t to = 0; to < places; ++to) {
      int64_t place = from, stride = 1;
      for (size_t d = 0; d < sides.size(); ++d) {
        const int64_t m = sides[d], x = from / stride % m, y = to / stride % m;
        const int64_t ahead = (y - x + m) % m, behind = (x - y + m) % m;
        const double part = 1.0 / static_cast<double>(places);
        int64_t next = place;
        if (closed && m > 2) {
          const bool both = ahead == behind;
          if (ahead <= behind) next = walk(place, d, stride, ahead, 1, both ? part / 2 : part);
          if (behind <= ahead) next = walk(place, d, stride, behind, -1, both ? part / 2 : part);
        } else {
          next = walk(place, d, stride, std::abs(y - x), y > x ? 1 : -1, part);
        }
        place = next;
        stride *= m;
      }
    }
  }
  double most = 0;
  for (const auto& [link, load] : loads) most = std::max(most, load);
  return most;
}

}  // namespace

TEST_CASE("an exchange on a torus takes what its busiest link carries") {
  Cluster pod;
  pod.links.resize(1);
  pod.links[0].kind = cluster::LinkKind::kTorus;
  pod.links[0].bandwidth = pod.links[0].bus_bandwidth = cluster::BytesPerSecond(50e9);
  for (const std::vector<int64_t>& sides :
       std::vector<std::vector<int64_t>>{{16}, {5}, {2}, {4, 4, 4}, {8, 4}, {2, 8}, {3, 6, 2}}) {
    for (const bool closed : {true, false}) {
      int64_t places = 1;
      for (const int64_t side : sides) places *= side;
      CAPTURE(sides.size());
      CAPTURE(places);
      CAPTURE(closed);
      pod.links[0].torus = sides;
      pod.links[0].devices = places;
      GroupShape group = shape({places});
      group.torus.clear();
      for (const int64_t side : sides)
        group.torus.push_back({side, closed && side > 2 ? 2.0 : 1.0});
      const CollectiveTime t = collective_time(pod, OpKind::kAllToAll, Bytes(1'000'000'000), group);
      CHECK(t.algorithm == Algorithm::kTorus);
      CHECK(t.time.value == mw::test::close_to(1e9 * busiest_link(sides, closed) / 50e9));
    }
  }
  // Every fourth place of a closed row of 16: four such groups share the row's links.
  GroupShape strided = shape({4});
  strided.torus = {{4, 0.5}};
  strided.torus_hops = 8;
  pod.links[0].latency = Seconds(1e-6);
  CHECK(collective_time(pod, OpKind::kAllToAll, Bytes(1'000'000'000), strided).time.value ==
        mw::test::close_to(1e9 / (0.5 * 50e9) + 8e-6));
}

TEST_CASE("a switch that adds takes (n + 1)/n of the bytes through every port") {
  Cluster box = plain(cluster::LinkKind::kNvlink);
  box.links[0].bus_bandwidth = cluster::BytesPerSecond(100e9);
  box.links[0].switch_bus_bandwidth = cluster::BytesPerSecond(400e9);
  const int64_t bytes = int64_t{1} << 34;
  const auto whole = static_cast<double>(bytes);
  const double port = 400e9 * 9 / 14;  // eight devices' 9/8 of the bytes for 14/8 of bus
  const double latency = 23e-6;
  CHECK(time_of(box, OpKind::kAllReduce, bytes, {8, 1}) ==
        mw::test::close_to(2 * 7.0 / 8 * whole / 400e9 + latency));
  CHECK(time_of(box, OpKind::kAllReduce, bytes, {4, 1}) ==
        mw::test::close_to(1.25 * whole / port + latency));
  // It only adds, and for NCCL.
  const auto algorithm = [&](const Cluster& c, OpKind kind) {
    return collective_time(c, kind, Bytes(bytes), shape({8, 1})).algorithm;
  };
  Cluster gloo = box;
  gloo.stack.gloo = true;
  CHECK(algorithm(box, OpKind::kAllReduce) == Algorithm::kSwitch);
  CHECK(algorithm(box, OpKind::kReduceScatter) == Algorithm::kRing);
  CHECK(algorithm(box, OpKind::kAllGather) == Algorithm::kRing);
  CHECK(algorithm(gloo, OpKind::kAllReduce) == Algorithm::kRing);
  // Where a port does more than that, four devices reach as much of the bus as eight, two do not.
  Cluster told = box;
  told.links[0].switch_port_bandwidth = cluster::BytesPerSecond(270e9);
  CHECK(time_of(told, OpKind::kAllReduce, bytes, {8, 1}) ==
        time_of(box, OpKind::kAllReduce, bytes, {8, 1}));
  told.links[0].switch_port_bandwidth = cluster::BytesPerSecond(340e9);
  CHECK(time_of(told, OpKind::kAllReduce, bytes, {4, 1}) ==
        mw::test::close_to(1.5 * whole / 400e9 + latency));
  CHECK(time_of(told, OpKind::kAllReduce, bytes, {2, 1}) ==
        mw::test::close_to(1.5 * whole / 340e9 + latency));
  // A group of several nodes is no switch's, whatever the network's.
  Cluster both = box;
  both.links[1].switch_bus_bandwidth = cluster::BytesPerSecond(1e15);
  CHECK(time_of(both, OpKind::kAllReduce, bytes, {8, 4}) ==
        time_of(box, OpKind::kAllReduce, bytes, {8, 4}));
  // Two devices send each other the half as fast without it, where the bus is as fast as the port.
  box.links[0].bus_bandwidth = cluster::BytesPerSecond(port);
  CHECK(collective_time(box, OpKind::kAllReduce, Bytes(bytes), shape({2, 1})).algorithm ==
        Algorithm::kRing);
}

TEST_CASE("the emptiest node's ports bound a ring, and the slowest group is waited for") {
  const Cluster box = plain(cluster::LinkKind::kNvlink);
  const int64_t bytes = int64_t{60} << 30;
  GroupShape straddling = shape({4, 2});
  straddling.size = 6;
  straddling.fewest = {1, 2};
  const double ring = 5.0 / 6 * static_cast<double>(bytes) / 20e9;
  CHECK(collective_time(box, OpKind::kAllGather, Bytes(bytes), straddling).time.value ==
        mw::test::close_to(ring).epsilon(1e-4));
  for (const std::vector<GroupShape>& both :
       {std::vector{shape({6, 1}), straddling}, std::vector{straddling, shape({6, 1})}}) {
    CHECK(collective_time(box, OpKind::kAllGather, Bytes(bytes), both).time.value ==
          mw::test::close_to(ring).epsilon(1e-4));
  }
  // All to all: from the two of one node 4 of 6 parts leave it.
  CHECK(collective_time(box, OpKind::kAllToAll, Bytes(bytes), straddling).time.value ==
        mw::test::close_to(4.0 / 6 * static_cast<double>(bytes) / 10e9).epsilon(1e-4));
}

TEST_CASE("a message takes its latency and its bytes over the level's bandwidth") {
  CHECK(message_time(plain(), Bytes(100'000'000), 0).value == mw::test::close_to(1e-3 + 1e-6));
  CHECK(message_time(plain(), Bytes(100'000'000), 1).value == mw::test::close_to(10e-3 + 5e-6));
  // And the stack's: a latency more, and no more bandwidth than one message reaches.
  cluster::Cluster stack = plain();
  stack.device.attained.message_latency = Seconds(1e-4);
  stack.device.attained.message_bandwidth = cluster::BytesPerSecond(50e9);
  CHECK(message_time(stack, Bytes(100'000'000), 0).value == mw::test::close_to(2e-3 + 1e-6 + 1e-4));
  CHECK(message_time(stack, Bytes(100'000'000), 1).value ==
        mw::test::close_to(10e-3 + 5e-6 + 1e-4));
}

TEST_CASE("one message has a part of a network card alone, and all of a link inside") {
  cluster::Cluster c = plain(cluster::LinkKind::kNvlink);
  c.device.attained.message_network_fraction = 0.5;
  CHECK(message_time(c, Bytes(100'000'000), 0).value == mw::test::close_to(1e-3 + 1e-6));
  CHECK(message_time(c, Bytes(100'000'000), 1).value == mw::test::close_to(20e-3 + 5e-6));
}

// Measured all-reduces inside a DGX A100 (VIA-Research/vTrain trace/a100): ranks, bytes, us.
TEST_CASE("NCCL's constants come within 25 % of measured A100 all-reduces on average") {
  Cluster box = plain(cluster::LinkKind::kNvlink);
  box.links[0].bus_bandwidth = cluster::BytesPerSecond(235e9);
  struct Row {
    int64_t ranks, bytes;
    double us;
  };
  const std::vector<Row> rows = {
      {2, 4194304, 61.18},     {2, 16777216, 131.9},  {2, 67108864, 404.7}, {2, 268435456, 1455.8},
      {2, 1073741824, 5442.8}, {4, 4194304, 77.32},   {4, 16777216, 179.6}, {4, 67108864, 543.8},
      {4, 268435456, 1929.0},  {4, 805306368, 5493.5}};
  double sum = 0;
  for (const Row& row : rows) {
    const double us = 1e6 * time_of(box, OpKind::kAllReduce, row.bytes, {row.ranks, 1});
    sum += std::abs(us / row.us - 1);
  }
  CHECK(sum / static_cast<double>(rows.size()) < 0.25);
}

TEST_CASE("where collectives use one network card of a node, a ring is as fast as that card") {
  Cluster c = plain(cluster::LinkKind::kNvlink);
  const int64_t bytes = int64_t{64} << 30;
  const double all = time_of(c, OpKind::kAllGather, bytes, {8, 4});
  const double one_a_node = time_of(c, OpKind::kAllGather, bytes, {1, 4});
  const double inside = time_of(c, OpKind::kAllGather, bytes, {8, 1});
  c.device.attained.collective_cards = 1;
  CHECK(time_of(c, OpKind::kAllGather, bytes, {8, 4}) == mw::test::close_to(8 * all).epsilon(0.01));
  CHECK(time_of(c, OpKind::kAllGather, bytes, {1, 4}) == one_a_node);
  CHECK(time_of(c, OpKind::kAllGather, bytes, {8, 1}) == inside);
}
