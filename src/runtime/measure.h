// What this machine's kernels, memory and threads take, for a cluster file of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "cluster/mesh.h"
#include "pipeline/program.h"

namespace mw::runtime {

// An op of a graph, run alone.
struct OpTiming {
  ir::OpKind kind = ir::OpKind::kCopy;
  double flops = 0, bytes = 0;  // ops::cost_of
  int64_t k = 0;                // of a product
  bool matrix_product = false;
  double seconds = 0;  // median over the passes
};
// Runs the fragment's ops one after the other, in their order, on one thread and on small positive
// numbers, on positions and on indices of any row; values share the fragment's workspace as it is
// planned. Collectives and aliases are left out. All the while `beside` more threads run the same
// ops on values of their own, as other ranks do: cores may share a clock, caches and memory. The
// figures are those of the slowest thread, which is the one that ranks wait for.
std::vector<OpTiming> time_ops(const pipeline::Fragment& fragment, const cluster::Mesh& mesh,
                               int passes, int beside = 0);

// The memory that each of time_ops' threads takes for the fragment's values, beside which kernels
// take a little.
Bytes time_ops_bytes(const pipeline::Fragment& fragment);
// What this process may still take: of the machine, of its control group, of its address space.
Bytes available_memory(FileSystem& fs);

// 2 m n k FLOPs of square and flat f32 products over shapes.
std::vector<OpTiming> time_products(int beside = 0);

// Bytes a second that one thread reads and writes in a copy far larger than the caches.
double copy_bandwidth();

struct LinkTiming {
  double latency = 0;    // seconds of a message or of a step of a ring
  double bandwidth = 0;  // bytes a second
};
// A value that goes through a channel from thread to thread and back.
LinkTiming time_messages();
// All-reduces of several sizes between `ranks` threads: latency of a step of the ring, and the bus
// bandwidth as nccl-tests counts it.
LinkTiming time_collectives(int ranks);

struct MachineProfile {
  double peak_flops = 0;        // of the best product
  double half_k = 1;            // a product whose k is this long reaches half
  double launch = 0;            // seconds of the shortest op
  double memory_bandwidth = 0;  // of the copy
  std::vector<std::pair<std::string, double>>
      kernel_rates;  // by op: FLOP/s of products, else bytes/s
  LinkTiming messages, collectives;
  double collective_latency = 0;  // of a collective, beside the messages' in every hop of its ring
  int64_t cores = 1, memory_bytes = 0;
};
// From the timings: least squares for 1/rate of products in 1/k; totals of bytes or FLOPs over
// totals of time for every other op.
MachineProfile machine_profile(const std::vector<OpTiming>& products,
                               const std::vector<OpTiming>& ops);
// A cluster file, with where and how it was measured.
std::string to_toml(const MachineProfile& profile, const std::string& source);

}  // namespace mw::runtime
