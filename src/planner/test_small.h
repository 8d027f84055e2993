// Small models on boxes of up to 16 devices, for tests of the planner.
#pragma once

#include <string>

#include "base/test_thrown_by.h"
#include "planner/planner.h"
#include "predict/test_request.h"

namespace mw::planner::test {

inline Request small(int64_t gpus, double gigabytes = 1) {
  Request request;
  request.base = predict::test::small();
  request.base.cluster.device.memory = Bytes(static_cast<int64_t>(gigabytes * 1e9));
  request.base.cluster.links[0].name = "nvlink";
  request.base.global_batch = 8;
  request.gpus = gpus;
  request.threads = 2;
  return request;
}

inline std::string message_of(const Request& request) {
  return mw::test::thrown_by([&] { search(request); });
}

inline Request small_mixture(int64_t gpus) {
  Request request = small(gpus);
  request.base.model = predict::test::small_mixture();
  return request;
}

inline Request small_uneven(int64_t gpus) {
  Request request = small(gpus);
  request.base.model.layers = 11;  // on 2 or 4 ranks as if they were 12
  return request;
}

// Nodes of four devices on a network a tenth as fast.
inline Request small_nodes(int64_t gpus) {
  Request request = small(gpus);
  cluster::Cluster& cluster = request.base.cluster;
  cluster.links.push_back(cluster.links[0]);
  cluster.links[0].devices = 4;
  cluster.links[1].name = "network";
  cluster.links[1].kind = cluster::LinkKind::kNetwork;
  cluster.links[1].bandwidth = cluster.links[1].bandwidth * 0.1;
  cluster.links[1].bus_bandwidth = cluster.links[1].bus_bandwidth * 0.1;
  request.base.global_batch = 12;
  return request;
}

// Under PyTorch's allocator, with half the memory that its largest plans take.
inline Request small_torch(int64_t gpus) {
  Request request = small(gpus, 0.5);
  request.base.model = models::parse_config(
      R"({"model_type": "gpt2", "vocab_size": 16384, "n_positions": 512, "n_embd": 512,
          "n_layer": 2, "n_head": 4, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0})",
      "wider.json");
  request.base.seq_len = 512;
  request.base.global_batch = 4;
  request.base.cluster.stack.allocator = cluster::Allocator::kExpandable;
  request.base.cluster.stack.f32_loss = true;
  return request;
}

}  // namespace mw::planner::test
