#include "calibrate/validate.h"

namespace mw::calibrate {

std::vector<Ablation> ablations() {
  const auto attained = [](auto change) {
    return [change](predict::Request& request) { change(request.cluster.device.attained); };
  };
  const auto links = [](auto change) {
    return [change](predict::Request& request) {
      for (cluster::Link& link : request.cluster.links) change(link);
    };
  };
  return {
      {"waves of tiles over the multiprocessors",
       [](predict::Request& request) { request.cluster.device.multiprocessors = 1; }},
      {"products that sum over few elements", attained([](auto& a) { a.product_half_k = 1e-9; })},
      {"what goes on beside computation",
       [](predict::Request& request) {
         request.options.overlap = {};
         request.options.overlap.serial = true;
         request.options.overlap.messages = request.options.overlap.ring = false;
       }},
      {"senders that wait for their messages",
       [](predict::Request& request) { request.options.overlap.messages = true; }},
      {"PTD-P's scatter/gather",
       [](predict::Request& request) { request.options.scatter_gather = false; }},
      {"kernels that add gradients up",
       [](predict::Request& request) {
         request.cluster.stack.accumulation = cluster::Accumulation::kProducts;
       }},
      {"lists of one tensor a rank, and their copies", attained([](auto& a) {
         a.collective_member = Seconds(0);
         a.collective_copies = 0;
       })},
      {"the host's work to issue ops",
       [](predict::Request& request) { request.options.host = false; }},
      {"the gap between kernels", attained([](auto& a) { a.launch = Seconds(0); })},
      {"the best product's share of the peak", attained([](auto& a) { a.matrix_fraction = 1; })},
      {"streaming kernels' share of the bandwidth",
       attained([](auto& a) { a.memory_fraction = 1; })},
      {"collectives' share of the links", links([](cluster::Link& link) {
         link.bus_bandwidth = link.bandwidth;
         if (link.switch_bus_bandwidth.value == 0) return;
         // As much as a port takes: in_switch of cost/collective.cc is then bound by it.
         link.switch_port_bandwidth = link.bandwidth;
         link.switch_bus_bandwidth = link.bandwidth * 2.0;
       })},
      {"unfused attention's scores in memory", attained([](auto& a) { a.fused_attention = true; })},
      {"softmax in f32 where no kernel takes it",
       attained([](auto& a) { a.blocked_softmax = false; })},
      {"fitted traffic of the loss and the optimizer",
       attained([](auto& a) { a.loss_traffic = a.update_traffic = 1; })},
      {"slower computation beside communication",
       attained([](auto& a) { a.overlap_slowdown = 1; })},
      {"latency of collectives beside the links'",
       attained([](auto& a) { a.collective_latency = Seconds(0); })},
      {"what the stack adds to messages", attained([](auto& a) {
         a.message_latency = Seconds(0);
         a.message_bandwidth = cluster::BytesPerSecond(0);
         a.message_network_fraction = 1;
       })},
      {"latency of the links", links([](cluster::Link& link) {
         link.latency = Seconds(0);
         link.hop_factor = 0;
       })},
  };
}

}  // namespace mw::calibrate
