// When a fragment's ops run on a cluster: the figures of FragmentCost, on the cluster's speeds.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "cost/collective.h"
#include "simulate/fragment_cost.h"

namespace mw::simulate {
namespace {

using ir::OpKind;

double streaming_rate(const cluster::Device& device) {
  return device.memory_bandwidth.value * device.attained.memory_fraction;
}

// Bytes of a collective's operands as the stack sends them.
Bytes sent_bytes(const FragmentCost& cost, const FragmentCost::Collective& collective,
                 const Options& options) {
  if (!cost.works[static_cast<size_t>(collective.op)].gathers_narrow) return collective.bytes;
  return Bytes(
      std::llround(static_cast<double>(collective.bytes.value) * cost::narrow_share(options.fp8)));
}

// How many all-reduces the stack sums the step's gradients in.
double pieces_of(const FragmentCost& cost, const FragmentCost::Collective& collective, Bytes bytes,
                 const cluster::Attained& attained) {
  constexpr double kMebibyte = 1 << 20;
  if (!cost.update || collective.kind != ir::OpKind::kAllReduce || attained.reduce_bucket <= 0)
    return 1;
  const double full = static_cast<double>(bytes.value) / (attained.reduce_bucket * kMebibyte);
  return std::max(1.0, std::round(full));
}

void set_collective(FragmentCost& cost, const FragmentCost::Collective& collective,
                    const cluster::Cluster& cluster, const Options& options, double op_host) {
  const cluster::Attained& attained = cluster.device.attained;
  const Bytes bytes = sent_bytes(cost, collective, options);
  OpCost& op = cost.ops[static_cast<size_t>(collective.op)];
  const double pieces = pieces_of(cost, collective, bytes, attained);
  const auto piece = Bytes(std::llround(static_cast<double>(bytes.value) / pieces));
  const bool parts = collective.of_weights && (collective.kind == OpKind::kAllGather ||
                                               collective.kind == OpKind::kReduceScatter);
  const cost::CollectiveTime time =
      cost::collective_time(cluster, collective.kind, piece, collective.shapes);
  const double sending = (time.time - time.latency).value;
  op.device = (time.time + attained.collective_latency).value;
  if (parts) op.device += attained.collective_member.value * static_cast<double>(collective.size);
  if (parts && attained.collective_copies > 0) {
    op.device += attained.collective_copies * static_cast<double>(bytes.value) /
                 streaming_rate(cluster.device);
  }
  op.host = op_host > 0 ? op_host + attained.host_collective.value : 0;
  const double times = collective.times * pieces;
  op.latency = (op.device - sending) * times;
  op.device *= times;
  op.host *= times;
}

// What its groups take of the levels that it shares with others, the most of them.
void set_uses(FragmentCost& cost, const FragmentCost::Collective& collective,
              const cluster::Cluster& cluster, const Options& options) {
  const auto o = static_cast<size_t>(collective.op);
  if ((cost.ops[o].links & cost.shared_levels) == 0 || collective.kind == OpKind::kPermute) return;
  const Bytes bytes = sent_bytes(cost, collective, options);
  const std::vector<size_t> ports = cluster.port_levels();
  std::vector<double> most(cost.uses.size(), 0);
  for (const cluster::GroupShape& shape : collective.shapes) {
    if (shape.size <= 1) continue;
    const std::vector<double> uses = cost::link_uses(cluster, collective.kind, bytes, shape);
    const auto add = [&](size_t level, double use) {
      if (level < most.size()) most[level] = std::max(most[level], use);
    };
    for (size_t l = 0; l < uses.size(); ++l) {
      add(ports[l], uses[l]);
      if (cluster.links[l].kind != cluster::LinkKind::kTorus) continue;
      for (const cluster::TorusSide& side : shape.torus) add(side_level(cluster, side), uses[l]);
    }
  }
  for (size_t l = 0; l < most.size(); ++l) {
    if (most[l] > 0) cost.uses[l][o] = most[l];
  }
}

// Of the levels that it crosses, those of which its groups take more than half: two such
// collectives hold each other up.
void set_fills(FragmentCost& cost, const FragmentCost::Collective& collective,
               const cluster::Cluster& cluster, const Options& options) {
  OpCost& op = cost.ops[static_cast<size_t>(collective.op)];
  op.fills = 0;
  if (collective.kind == OpKind::kPermute) return;
  const std::vector<size_t> ports = cluster.port_levels();
  const Bytes bytes = sent_bytes(cost, collective, options);
  for (const cluster::GroupShape& shape : collective.shapes) {
    if (shape.size <= 1) continue;
    const std::vector<double> uses = cost::link_uses(cluster, collective.kind, bytes, shape);
    for (size_t l = 0; l < uses.size(); ++l) {
      if (uses[l] <= 0.5) continue;
      op.fills |= uint32_t{1} << ports[l];
      if (cluster.links[l].kind != cluster::LinkKind::kTorus) continue;
      for (const cluster::TorusSide& side : shape.torus)
        op.fills |= uint32_t{1} << side_level(cluster, side);
    }
  }
  op.fills &= op.links;
}

// Both ways through the device's memory, gradients in the weights' type before.
void add_copy(FragmentCost& cost, const FragmentCost::Collective& collective,
              const cluster::Cluster& cluster, const Options& options) {
  constexpr double kHalf = 2;  // bytes
  const auto written = static_cast<double>(sent_bytes(cost, collective, options).value);
  const bool gradients = collective.gradients > 0;
  const double read = gradients ? kHalf * static_cast<double>(collective.gradients) : written;
  const double traffic = gradients ? cluster.device.attained.gradient_copy_traffic : 1;
  OpCost& op = cost.ops[static_cast<size_t>(collective.copied_at)];
  op.device += traffic * (read + written) / streaming_rate(cluster.device) * collective.times;
}

// Keys and values, and their gradients, go from each device to the next one, a part at a time: of
// a unit's devices one sends to another unit, over its own port alone, and the others wait for it.
// Keys and values are one message [PyTorch's context parallelism, Transformer Engine, from memory].
// A torus has a link to both neighbours along the ring, as its collectives use it.
void pass_around(FragmentCost& cost, const FragmentCost::Ring& ring,
                 const cluster::Cluster& cluster, const Options& options) {
  std::set<OpKind> begun;
  for (const FragmentCost::Collective& collective : cost.collectives_of) {
    if (std::find(ring.collectives.begin(), ring.collectives.end(), collective.op) ==
        ring.collectives.end())
      continue;
    OpCost& op = cost.ops[static_cast<size_t>(collective.op)];
    const auto outermost = static_cast<size_t>(std::bit_width(op.levels)) - 1;
    if (op.levels == 0 || cluster.links[outermost].kind == cluster::LinkKind::kTorus) continue;
    const auto steps = static_cast<double>(collective.size - 1) * collective.times;
    const double part = static_cast<double>(sent_bytes(cost, collective, options).value) /
                        static_cast<double>(collective.size);
    const double latency =
        (cluster.links[outermost].latency + cluster.device.attained.collective_latency).value;
    op.latency = begun.insert(collective.kind).second ? steps * latency : 0;
    op.device = op.latency + steps * part / cost::message_bandwidth(cluster, outermost).value;
  }
}

// A ring's first part is there; while it computes with each part the next one comes. Which part of
// its collectives is seen.
double shown_part(const FragmentCost& cost, const FragmentCost::Ring& ring,
                  const Slowdowns& slowdowns) {
  double moving = 0, computing = 0;
  for (const int32_t o : ring.collectives) moving += cost.ops[static_cast<size_t>(o)].device;
  for (const int32_t o : ring.computes) computing += cost.ops[static_cast<size_t>(o)].device;
  const auto parts = static_cast<double>(ring.size);
  const double beside = computing * (parts - 1) / parts;
  const double hidden = std::min(1.0, beside / moving);
  const Beside kind = ring.attention ? Beside::kRing : Beside::kTensor;
  const double slowdown = slowdowns[static_cast<size_t>(kind)];
  return 1 - hidden + hidden * (slowdown - 1);
}

void hide_behind_parts(FragmentCost& cost, const FragmentCost::Ring& ring,
                       const Slowdowns& slowdowns, double streaming) {
  const double shown = shown_part(cost, ring, slowdowns);
  for (const int32_t o : ring.collectives) {
    OpCost& op = cost.ops[static_cast<size_t>(o)];
    op.device *= shown;
    op.latency *= shown;
  }
  if (ring.summed.value == 0) return;
  const auto parts = static_cast<double>(ring.size);
  OpCost& scatter = cost.ops[static_cast<size_t>(ring.collectives[0])];
  const double sum = static_cast<double>(ring.summed.value) * (1 + 1 / parts) / streaming;
  scatter.device += sum;
  scatter.latency += sum;
}

// Keys and values that are gathered for an attention that is made again and for its gradient go
// around twice, for each.
void pass_around_and_hide(FragmentCost& cost, const cluster::Cluster& cluster,
                          const Options& options, const Slowdowns& slowdowns) {
  std::map<int32_t, double> passes;  // [op] how much of one is seen
  for (const FragmentCost::Ring& ring : cost.rings) {
    if (ring.attention) pass_around(cost, ring, cluster, options);
  }
  for (const FragmentCost::Ring& ring : cost.rings) {
    if (!ring.attention) continue;
    const double shown = shown_part(cost, ring, slowdowns);
    for (const int32_t o : ring.collectives) passes[o] += shown;
  }
  for (const auto& [o, shown] : passes) {
    cost.ops[static_cast<size_t>(o)].device *= shown;
    cost.ops[static_cast<size_t>(o)].latency *= shown;
  }
}

}  // namespace

void set_times(FragmentCost& cost, const cluster::Cluster& cluster, const Options& options) {
  const cluster::Attained& attained = cluster.device.attained;
  const double op_host = options.host && !cost.update ? attained.host_op.value : 0;
  for (size_t o = 0; o < cost.ops.size(); ++o) {
    OpCost& op = cost.ops[o];
    if (op.alias || op.label >= 0) continue;
    const cost::OpTime time =
        cost::op_time(cluster.device, cost.works[o], options.tf32, options.fp8);
    op.device = time.device.value;
    op.host = op_host > 0 ? time.host.value : 0;
  }
  for (const FragmentCost::Collective& collective : cost.collectives_of)
    set_collective(cost, collective, cluster, options, op_host);
  cost.uses.assign(static_cast<size_t>(std::bit_width(cost.shared_levels)),
                   std::vector<double>(cost.ops.size(), 1));
  for (const FragmentCost::Collective& collective : cost.collectives_of)
    set_uses(cost, collective, cluster, options);
  for (const FragmentCost::Collective& collective : cost.collectives_of) {
    if (options.overlap.grad_reduce || options.overlap.param_gather)
      set_fills(cost, collective, cluster, options);
  }
  for (const FragmentCost::Collective& collective : cost.collectives_of) {
    if (collective.copied_at >= 0) add_copy(cost, collective, cluster, options);
  }
  const Slowdowns slowdowns = slowdowns_of(options.overlap, cluster.device);
  if (options.overlap.ring) pass_around_and_hide(cost, cluster, options, slowdowns);
  for (const FragmentCost::Ring& ring : cost.rings) {
    if (!ring.attention && options.overlap.async_tp)
      hide_behind_parts(cost, ring, slowdowns, streaming_rate(cluster.device));
  }
  if (!cost.update || !options.host) return;
  for (OpCost& op : cost.ops) {
    if (op.alias) continue;
    op.host += attained.step_overhead.value;
    break;
  }
}

}  // namespace mw::simulate
