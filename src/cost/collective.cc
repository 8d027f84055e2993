#include "cost/collective.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace mw::cost {
namespace {

using cluster::Cluster;
using cluster::GroupShape;
using cluster::Link;
using cluster::LinkKind;
using ir::OpKind;

constexpr std::array<Protocol, 3> kProtocols = {Protocol::kLL, Protocol::kLL128, Protocol::kSimple};

// Microseconds by protocol: LL, LL128, Simple [NVIDIA/nccl 2.9, src/graph/tuning.cc]. Range: the
// sizes that NCCL tunes for, 64 B to some GiB; collective_test.cc holds them against measured ones.
using Latencies = std::array<double, 3>;
constexpr Latencies kRingBase = {3.6, 10.0, 8.4}, kTreeBase = {4.4, 4.4, 0};
constexpr Latencies kRingNvlink = {.47, 1.9, 3.4}, kTreeNvlink = {.52, 1.25, 28};
constexpr Latencies kRingPcie = {1.0, 2.5, 5.7}, kTreePcie = {1.0, 1.9, 28};
constexpr Latencies kRingNetwork = {2.7, 4.0, 9.6}, kTreeNetwork = {5.0, 8.5, 28};
constexpr double kNvlsLatency = 23;  // [NCCL 2.18, src/graph/tuning.cc]
// Share of the bus bandwidth that a protocol leaves [NCCL 2.9]: LL sends a flag with every 4 bytes
// and is not pipelined as deeply, LL128 a flag with every 120 bytes.
constexpr Latencies kRingShare = {0.25, 0.92, 1.0};
constexpr Latencies kTreeShare = {1 / 3.8, 0.92, 0.92};
// Trees reach less of the inside bus than rings: 110 of 235 GB/s on two nodes, 80 on more, with
// LL128 130 and 105 [NCCL 2.8, Ampere].
constexpr Latencies kTreeBusTwoNodes = {110.0 / 235, 130.0 / 235, 110.0 / 235};
constexpr Latencies kTreeBusMoreNodes = {80.0 / 235, 105.0 / 235, 80.0 / 235};

double hop_latency(const Link& link, Protocol protocol, bool tree) {
  const auto p = static_cast<size_t>(protocol);
  const double micro = kMicro * link.hop_factor;
  switch (link.kind) {
    case LinkKind::kNvlink: return (tree ? kTreeNvlink : kRingNvlink)[p] * micro;
    case LinkKind::kPcie: return (tree ? kTreePcie : kRingPcie)[p] * micro;
    case LinkKind::kNetwork: return (tree ? kTreeNetwork : kRingNetwork)[p] * micro;
    case LinkKind::kMemory:
    case LinkKind::kTorus: return link.latency.value;
  }
  return link.latency.value;
}

// NCCL's constants do not hold for threads in one process, nor for Gloo.
bool is_nccl(const Cluster& cluster) {
  return cluster.links[0].kind != LinkKind::kMemory && !cluster.stack.gloo;
}

class Model {
 public:
  Model(const Cluster& cluster, OpKind kind, Bytes bytes, const GroupShape& group)
      : cluster_(cluster),
        group_(group),
        kind_(kind),
        bytes_(static_cast<double>(bytes.value)),
        n_(static_cast<double>(group.size)),
        passes_(kind == OpKind::kAllReduce ? 2 : 1) {}

  CollectiveTime fastest() {
    best_.level = group_.level();
    const Link& outer = cluster_.links[best_.level];
    if (kind_ == OpKind::kAllToAll && outer.kind == LinkKind::kTorus) {
      torus_exchange(outer);
    } else if (kind_ == OpKind::kAllToAll) {
      direct();
    } else if (outer.kind == LinkKind::kTorus) {
      torus(outer);
    } else {
      for (const Protocol protocol : kProtocols) {
        ring(protocol);
        if (kind_ == OpKind::kAllReduce && is_nccl(cluster_)) tree(protocol);
      }
      if (best_.level > 0 && group_.ways[0] > 1 && !is_nccl(cluster_) && !cluster_.stack.gloo)
        hierarchical();
      if (kind_ == OpKind::kAllReduce && is_nccl(cluster_) && best_.level == 0 &&
          outer.switch_bus_bandwidth.value > 0)
        in_switch(outer);
    }
    return best_;
  }

  // REQUIRES: fastest(). What a level's transfer would take alone, over the longest one's.
  std::vector<double> link_uses() const {
    std::vector<double> alone(group_.ways.size(), 0);
    for (size_t l = 0; l < alone.size(); ++l) {
      if (group_.ways[l] <= 1) continue;
      switch (best_.algorithm) {
        case Algorithm::kRing:
        case Algorithm::kTree: alone[l] = 1 / ring_bus(l); break;
        case Algorithm::kHierarchical: alone[l] = passed_on(l); break;
        case Algorithm::kDirect: alone[l] = sent_out(l); break;
        case Algorithm::kSwitch:
        case Algorithm::kTorus:
        case Algorithm::kNone: alone[l] = 1; break;
      }
    }
    const double longest = *std::max_element(alone.begin(), alone.end());
    for (double& use : alone) use = longest > 0 ? use / longest : 1;
    return alone;
  }

 private:
  void consider(Algorithm algorithm, Protocol protocol, double latency, double transfer) {
    const double time = latency + transfer;
    if (best_.algorithm != Algorithm::kNone && time >= best_.time.value) return;
    best_.algorithm = algorithm;
    best_.protocol = protocol;
    best_.time = Seconds(time);
    best_.latency = Seconds(latency);
  }

  // Of a ring through all members: as many rings cross the borders of units as members have ports
  // there in the emptiest, and as the software uses of a node's network cards.
  double ring_bus(size_t level) const {
    const Link& link = cluster_.links[level];
    const double rings =
        link.kind == LinkKind::kNetwork
            ? std::min(group_.emptiest_unit(level), cluster_.device.attained.collective_cards)
            : group_.emptiest_unit(level);
    return rings * link.bus_bandwidth.value;
  }
  double ring_bus() const {
    double bus = 0;
    for (size_t l = 0; l < group_.ways.size(); ++l) {
      if (group_.ways[l] <= 1) continue;
      bus = bus == 0 ? ring_bus(l) : std::min(bus, ring_bus(l));
    }
    return bus;
  }

  // Ring: passes (n-1) steps, of them passes k hops across the borders of k units that a level
  // joins, but for those that are borders of the level outside, too; passes (n-1)/n * bytes / bus
  // bandwidth + latency of the hops [Thakur 2005; NCCL 2.9].
  void ring(Protocol protocol) {
    if (!is_nccl(cluster_) && protocol != Protocol::kSimple) return;
    double left = passes_ * (n_ - 1), latency = 0, units = 1;
    for (size_t l = group_.ways.size(); l-- > 0;) {
      if (group_.ways[l] <= 1) continue;
      const double outer = units > 1 ? units : 0;
      units *= static_cast<double>(group_.ways[l]);
      const double hops = std::min(left, passes_ * (units - outer));
      left -= hops;
      const Link& link = cluster_.links[l];
      latency +=
          hops * (is_nccl(cluster_) ? hop_latency(link, protocol, false) : link.latency.value);
    }
    if (is_nccl(cluster_)) latency += kRingBase[static_cast<size_t>(protocol)] * kMicro;
    const double bus = ring_bus() * kRingShare[static_cast<size_t>(protocol)];
    consider(Algorithm::kRing, protocol, latency, passes_ * (n_ - 1) / n_ * bytes_ / bus);
  }

  // Tree: 2 ((g - 1) hops inside + log2(nodes) hops outside); 2 bytes / bandwidth [NCCL 2.9].
  void tree(Protocol protocol) {
    const auto p = static_cast<size_t>(protocol);
    double hops = 0, nodes = 1;
    for (size_t l = 0; l < group_.ways.size(); ++l) {
      if (group_.ways[l] <= 1) continue;
      const double ways = static_cast<double>(group_.ways[l]);
      const bool chain = cluster_.links[l].kind != LinkKind::kNetwork;
      if (!chain) nodes *= ways;
      hops += (chain ? ways - 1 : std::log2(ways)) * hop_latency(cluster_.links[l], protocol, true);
    }
    double bus = ring_bus();
    if (nodes > 1 && cluster_.links[0].kind != LinkKind::kNetwork) {
      const double part = (nodes <= 2 ? kTreeBusTwoNodes : kTreeBusMoreNodes)[p];
      bus = std::min(bus, part * cluster_.links[0].bus_bandwidth.value);
    }
    bus *= kTreeShare[p];
    consider(Algorithm::kTree, protocol, kTreeBase[p] * kMicro + 2 * hops, 2 * bytes_ / bus);
  }

  // Every level passes on what its inside has reduced: passes (w-1)/w * bytes/inside / bus of the
  // level; the phases of different levels overlap, so the slowest one counts; latencies add
  // [stas00/ml-engineering network/README.md, within 10 % of measured B200].
  void hierarchical() {
    double latency = 0, slowest = 0;
    for (size_t l = 0; l < group_.ways.size(); ++l) {
      if (group_.ways[l] <= 1) continue;
      const double ways = static_cast<double>(group_.ways[l]);
      latency += passes_ * (ways - 1) * cluster_.links[l].latency.value;
      slowest = std::max(slowest, passed_on(l));
    }
    consider(Algorithm::kHierarchical, Protocol::kSimple, latency, slowest);
  }

  double passed_on(size_t level) const {  // seconds
    const double ways = static_cast<double>(group_.ways[level]);
    return passes_ * (ways - 1) / ways * bytes_ / group_.emptiest_unit(level) /
           cluster_.links[level].bus_bandwidth.value;
  }

  // Each member's port carries what it gives to the others' sums and 1/n of the sum in one
  // direction, its 1/n of the others' parts and the sum in the other: (1 + 1/n) bytes. The measured
  // bus bandwidth, 2 (n-1)/n bytes over the time, is that of all the switch's devices; where a
  // port's rate is told, too, the bus is the most of any number of them.
  void in_switch(const Link& link) {
    const double all = link.devices > 1 ? static_cast<double>(link.devices) : n_;
    const double bus = link.switch_bus_bandwidth.value;
    const bool told = link.switch_port_bandwidth.value > 0;
    const double port = told ? link.switch_port_bandwidth.value : bus * (all + 1) / (2 * (all - 1));
    const double over_port = (1 + 1 / n_) * bytes_ / port,
                 over_bus = told ? 2 * (n_ - 1) / n_ * bytes_ / bus : 0;
    consider(Algorithm::kSwitch, Protocol::kSimple, kNvlsLatency * kMicro * link.hop_factor,
             std::max(over_port, over_bus));
  }

  // Every dimension's links carry a part of the tensor in both directions, the dimensions taking
  // turns: passes (n-1)/n * bytes / (links * bandwidth) where each can have its share; latency: the
  // farthest hops, each pass [Jouppi 2023, section 2].
  void torus(const Link& link) {
    consider(Algorithm::kTorus, Protocol::kSimple,
             passes_ * static_cast<double>(group_.torus_hops) * link.latency.value,
             passes_ * bytes_ * busiest_sides() / link.bandwidth.value);
  }

  // Part of the tensor that a pass sends over a link of the busiest dimensions. Of some of them
  // that join m members each time, whatever the order, (m-1)/n at the least: what is left when the
  // others have gone first. The largest of these bounds is reached, by parts of the tensor that
  // take the dimensions in different orders.
  double busiest_sides() const {
    const std::vector<cluster::TorusSide>& sides = group_.torus;
    double places = 1, busiest = (n_ - 1) / n_ / group_.torus_links();
    for (const cluster::TorusSide& side : sides) places *= static_cast<double>(side.members);
    if (places != n_) return busiest;  // members do not fill the box that they lie in
    for (size_t some = 1; some + 1 < size_t{1} << sides.size(); ++some) {
      double joined = 1, links = 0;
      for (size_t d = 0; d < sides.size(); ++d) {
        if ((some >> d & 1) == 0) continue;
        joined *= static_cast<double>(sides[d].members);
        links += sides[d].links;
      }
      busiest = std::max(busiest, (joined - 1) / n_ / links);
    }
    return busiest;
  }

  // Each member sends bytes/n to every other, along one side after the other on the shortest ways.
  // Of a side of m members a value goes floor(m^2 / 4) / m places on the mean, over a ring's links
  // evenly; of an open side as much passes over the link in the middle. All sides work at the same
  // time, so that the slowest counts; of a cube with closed sides that is its bisection's time.
  void torus_exchange(const Link& link) {
    double places = 1, slowest = 0;
    for (const cluster::TorusSide& side : group_.torus) {
      const auto m = static_cast<double>(side.members);
      places *= m;
      if (side.members > 1) slowest = std::max(slowest, std::floor(m * m / 4) / m / side.links);
    }
    consider(Algorithm::kTorus, Protocol::kSimple,
             static_cast<double>(group_.torus_hops) * link.latency.value,
             bytes_ * slowest * n_ / places / link.bandwidth.value);
  }

  // Each member sends bytes/n to every other. What leaves a unit goes through the device's own port
  // of the level outside, through its network card whatever goes beyond, too; the levels work at
  // the same time. Range: pairwise exchange of large parts.
  void direct() {
    double latency = 0, slowest = 0;
    for (size_t l = 0; l < group_.ways.size(); ++l) {
      if (group_.ways[l] <= 1) continue;
      const Link& link = cluster_.links[l];
      latency = std::max(latency, link.latency.value);
      slowest = std::max(slowest, sent_out(l));
    }
    consider(Algorithm::kDirect, Protocol::kSimple, latency, slowest);
  }
  double sent_out(size_t level) const {  // seconds
    const auto is_network = [&](size_t l) {
      return l < cluster_.links.size() && cluster_.links[l].kind == LinkKind::kNetwork;
    };
    const bool goes_on = is_network(level) && is_network(level + 1);
    const double joined = goes_on ? n_ : std::min(group_.fullest_unit(level + 1), n_);
    const double share = std::max(joined - group_.emptiest_unit(level), 0.0) / n_;
    return share * bytes_ / cluster_.links[level].bus_bandwidth.value;
  }

  const Cluster& cluster_;
  const GroupShape& group_;
  OpKind kind_;
  double bytes_, n_, passes_;
  CollectiveTime best_;
};

}  // namespace

CollectiveTime collective_time(const Cluster& cluster, OpKind kind, Bytes bytes,
                               const GroupShape& group) {
  MW_CHECK(ir::is_collective(kind) && bytes.value >= 0, "{} of {} bytes", ir::op_name(kind),
           bytes.value);
  if (group.size <= 1) return {};
  if (kind == OpKind::kPermute) {
    CollectiveTime one;
    one.level = group.level();
    one.algorithm = Algorithm::kDirect;
    one.time = message_time(cluster, bytes, one.level);
    one.latency = message_time(cluster, Bytes(0), one.level);
    return one;
  }
  return Model(cluster, kind, bytes, group).fastest();
}

CollectiveTime collective_time(const Cluster& cluster, OpKind kind, Bytes bytes,
                               const std::vector<GroupShape>& groups) {
  CollectiveTime slowest = collective_time(cluster, kind, bytes, groups.at(0));
  for (size_t g = 1; g < groups.size(); ++g) {
    const CollectiveTime time = collective_time(cluster, kind, bytes, groups[g]);
    if (time.time > slowest.time) slowest = time;
  }
  return slowest;
}

std::vector<double> link_uses(const Cluster& cluster, OpKind kind, Bytes bytes,
                              const GroupShape& group) {
  Model model(cluster, kind, bytes, group);
  model.fastest();
  return model.link_uses();
}

Seconds message_latency(const Cluster& cluster, size_t level) {
  return cluster.links[level].latency + cluster.device.attained.message_latency;
}
cluster::BytesPerSecond message_bandwidth(const Cluster& cluster, size_t level) {
  const cluster::Attained& attained = cluster.device.attained;
  const cluster::Link& of = cluster.links[level];
  const double share = of.kind == LinkKind::kNetwork ? attained.message_network_fraction : 1;
  const cluster::BytesPerSecond link(of.bus_bandwidth.value * share),
      most = attained.message_bandwidth;
  return most.value > 0 && most < link ? most : link;
}
Seconds message_time(const Cluster& cluster, Bytes bytes, size_t level) {
  return message_latency(cluster, level) + bytes / message_bandwidth(cluster, level);
}

}  // namespace mw::cost
