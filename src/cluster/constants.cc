#include "cluster/constants.h"

#include <algorithm>
#include <array>
#include <variant>

#include "base/error.h"

namespace mw::cluster {
namespace {

enum class OfLinks { kNodeBus, kNetworkBus, kNetworkLatency };
// Ratios as they are, times in microseconds, rates in GB/s.
using Place =
    std::variant<double Attained::*, Seconds Attained::*, BytesPerSecond Attained::*, OfLinks>;
struct Entry {
  ConstantInfo info;
  Place place;
};

constexpr std::array<Entry, 31> kEntries = {{
    {{.name = "matrix_fraction",
      .least = 0.05,
      .most = 1,
      .what = "of the dense peak, by the largest matrix products",
      .of_kernels = true,
      .of_runs = true},
     &Attained::matrix_fraction},
    {{.name = "product_half_k",
      .least = 1,
      .most = 4096,
      .what = "elements: a product whose k is this long reaches half",
      .of_kernels = true},
     &Attained::product_half_k},
    {{.name = "fp8_fraction",
      .least = 0.2,
      .most = 2,
      .what = "of the share of the peak that half-precision products reach, by fp8",
      .of_kernels = true},
     &Attained::fp8_fraction},
    {{.name = "attention_fraction",
      .least = 0.05,
      .most = 1,
      .what = "fused attention's share of the largest products' rate",
      .of_kernels = true},
     &Attained::attention_fraction},
    {{.name = "attention_grad_fraction",
      .least = 0.05,
      .most = 2,
      .what = "of what fused attention reaches, by its gradient",
      .of_kernels = true},
     &Attained::attention_grad_fraction},
    {{.name = "attention_half_keys",
      .least = 1,
      .most = 8192,
      .what = "that a query sees where fused attention reaches half of it",
      .of_kernels = true},
     &Attained::attention_half_keys},
    {{.name = "attention_grad_half_keys",
      .least = 1,
      .most = 8192,
      .what = "the same of its gradient",
      .of_kernels = true},
     &Attained::attention_grad_half_keys},
    {{.name = "memory_fraction",
      .least = 0.05,
      .most = 1,
      .what = "of the memory bandwidth, by kernels that read and write",
      .of_kernels = true,
      .of_runs = true},
     &Attained::memory_fraction},
    {{.name = "cache_rate",
      .least = 1,
      .most = 10,
      .what = "of kernels whose operands and results fit the cache, over memory's"},
     &Attained::cache_rate},
    {{.name = "score_traffic",
      .least = 0.05,
      .most = 5,
      .what = "bytes of unfused attention's kernels over those counted"},
     &Attained::score_traffic},
    {{.name = "activation_traffic",
      .least = 0.5,
      .most = 30,
      .what = "bytes of GELU's kernels over those of one that is fused"},
     &Attained::activation_traffic},
    {{.name = "logits_fraction",
      .least = 0.1,
      .most = 1,
      .what = "of what their shape says, by products with the vocabulary"},
     &Attained::logits_fraction},
    {{.name = "loss_traffic",
      .least = 0.2,
      .most = 50,
      .what = "bytes of the loss's kernels over the fewest possible",
      .of_kernels = true},
     &Attained::loss_traffic},
    {{.name = "update_traffic",
      .least = 0.05,
      .most = 20,
      .what = "bytes of the optimizer's kernels over the fewest possible",
      .of_kernels = true},
     &Attained::update_traffic},
    {{.name = "gradient_copy_traffic",
      .least = 0.2,
      .most = 20,
      .what = "bytes of the kernels that put gradients together for a collective over the fewest "
              "possible",
      .of_kernels = true},
     &Attained::gradient_copy_traffic},
    {{.name = "reduce_bucket_MiB",
      .least = 0.1,
      .most = 1e4,
      .what = "of gradients that one all-reduce of the step sums at most"},
     &Attained::reduce_bucket},
    {{.name = "overlap_slowdown",
      .least = 1,
      .most = 4,
      .what = "time of computation beside communication, over that alone"},
     &Attained::overlap_slowdown},
    {{.name = "launch_us",
      .least = 0.1,
      .most = 1000,
      .what = "from the end of a kernel to the start of the next",
      .of_runs = true},
     &Attained::launch},
    {{.name = "host_op_us",
      .least = 0.1,
      .most = 1000,
      .what = "the host's work to issue one op",
      .of_kernels = true,
      .of_runs = true},
     &Attained::host_op},
    {{.name = "host_collective_us",
      .least = 0.1,
      .most = 5000,
      .what = "the host's work to issue a collective, beside host_op_us"},
     &Attained::host_collective},
    {{.name = "collective_latency_us",
      .least = 0.1,
      .most = 5000,
      .what = "of a collective, beside what its algorithm says",
      .of_collectives = true},
     &Attained::collective_latency},
    {{.name = "collective_member_us",
      .least = 0.1,
      .most = 1000,
      .what = "of data parallelism's all-gathers and reduce-scatters, for each member's part"},
     &Attained::collective_member},
    {{.name = "collective_copies",
      .least = 0,
      .most = 20,
      .what = "times that data parallelism's all-gathers and reduce-scatters read or write the "
              "whole tensor to put it together or to part it"},
     &Attained::collective_copies},
    {{.name = "collective_cards",
      .least = 1,
      .most = 1024,
      .what = "network cards of a node that one collective uses at most"},
     &Attained::collective_cards},
    {{.name = "message_latency_us",
      .least = 0.1,
      .most = 5000,
      .what = "of a message, beside the link's"},
     &Attained::message_latency},
    {{.name = "message_GBps",
      .least = 0.1,
      .most = 1e4,
      .what = "that one message reaches at most, whatever its link"},
     &Attained::message_bandwidth},
    {{.name = "message_network_fraction",
      .least = 0.05,
      .most = 1,
      .what = "of a network card, by one message"},
     &Attained::message_network_fraction},
    {{.name = "step_overhead_us", .least = 1, .most = 1e6, .what = "the host's work once a step"},
     &Attained::step_overhead},
    {{.name = "node_bus_fraction",
      .least = 0.05,
      .most = 1,
      .what = "of a link inside a node, by collectives",
      .of_collectives = true},
     OfLinks::kNodeBus},
    {{.name = "network_bus_fraction",
      .least = 0.05,
      .most = 1,
      .what = "of a network card, by collectives",
      .of_collectives = true},
     OfLinks::kNetworkBus},
    {{.name = "network_latency_us",
      .least = 0.1,
      .most = 1e4,
      .what = "of a message over the network, in place of its link's"},
     OfLinks::kNetworkLatency},
}};

constexpr auto kInfos = [] {
  std::array<ConstantInfo, kEntries.size()> infos = {};
  for (size_t i = 0; i < infos.size(); ++i) infos[i] = kEntries[i].info;
  return infos;
}();

const Place& place_of(std::string_view name) {
  const auto found = std::find_if(kEntries.begin(), kEntries.end(),
                                  [&](const Entry& entry) { return entry.info.name == name; });
  MW_CHECK(found != kEntries.end(), "constant {}", name);
  return found->place;
}

bool is_network(const Link& link) { return link.kind == LinkKind::kNetwork; }

double get(const Cluster& cluster, double Attained::* ratio) {
  return cluster.device.attained.*ratio;
}
double get(const Cluster& cluster, Seconds Attained::* time) {
  return (cluster.device.attained.*time).value / kMicro;
}
double get(const Cluster& cluster, BytesPerSecond Attained::* rate) {
  return (cluster.device.attained.*rate).value / kGiga;
}
double get(const Cluster& cluster, OfLinks what) {
  const auto link = std::find_if(cluster.links.begin(), cluster.links.end(), [&](const Link& one) {
    return is_network(one) == (what != OfLinks::kNodeBus);
  });
  if (link == cluster.links.end()) return 1;
  if (what == OfLinks::kNetworkLatency) return link->latency.value / kMicro;
  return link->bus_bandwidth.value / link->bandwidth.value;
}

void set(Cluster& cluster, double Attained::* ratio, double value) {
  cluster.device.attained.*ratio = value;
}
void set(Cluster& cluster, Seconds Attained::* time, double value) {
  cluster.device.attained.*time = Seconds(value * kMicro);
}
void set(Cluster& cluster, BytesPerSecond Attained::* rate, double value) {
  cluster.device.attained.*rate = BytesPerSecond(value * kGiga);
}
void set(Cluster& cluster, OfLinks what, double value) {
  for (Link& link : cluster.links) {
    if (is_network(link) != (what != OfLinks::kNodeBus)) continue;
    if (what == OfLinks::kNetworkLatency) {
      link.latency = Seconds(value * kMicro);
    } else {
      link.bus_bandwidth = BytesPerSecond(link.bandwidth.value * value);
    }
  }
}

}  // namespace

std::span<const ConstantInfo> constant_infos() { return kInfos; }

double constant(const Cluster& cluster, std::string_view name) {
  return std::visit([&](auto place) { return get(cluster, place); }, place_of(name));
}

void set_constant(Cluster& cluster, std::string_view name, double value) {
  std::visit([&](auto place) { set(cluster, place, value); }, place_of(name));
}

}  // namespace mw::cluster
