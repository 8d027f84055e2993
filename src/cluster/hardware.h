// Cluster: one kind of device, and the links that join devices, by level from the inside out. Read
// from a TOML file in clusters/, whose keys carry their units and whose sections name a source.
//
//   name = "DGX A100 80 GB"
//   profile = "a100-megatron"         # optional: what load_cluster applies
//   cores = 2                         # optional: that devices which are threads share
//   source = "…"                      # also of every section that names none
//   [device]
//   name, memory_GB, memory_GBps, multiprocessors, and where they are known reserved_GB, cache_MB
//   also = ["…"]                      # optional: other names of the device
//   [device.peak_TFLOPs]              # dense; f32, tf32, bf16, f16, fp8, fp4
//   [device.kernel_G_per_s]           # optional, by op: FLOPs of products, bytes of all else
//   [device.attained]                 # what software makes of it; see Attained
//   matrix_fraction, memory_fraction, launch_us, host_op_us, and where it applies fp8_fraction
//   (a profile replaces these and says more: profile.h)
//   [[link]]                          # innermost first
//   name, kind, devices, link_GBps, latency_us
//   and where they apply bus_GBps, switch_bus_GBps, switch_port_GBps, torus
//   [measured]                        # optional, of a machine that was measured: measured.h
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "base/ids.h"

namespace mw::cluster {

using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;

constexpr Seconds operator/(Bytes bytes, BytesPerSecond rate) {
  return Seconds(static_cast<double>(bytes.value) / rate.value);
}
constexpr Seconds operator/(Flops flops, FlopsPerSecond rate) {
  return Seconds(flops.value / rate.value);
}

enum class LinkKind : uint8_t {
  kMemory,   // devices that share one memory (threads of a process)
  kNvlink,   // or a like fabric inside a node
  kPcie,     // through the host's bridges
  kNetwork,  // a network card for each device, behind switches
  kTorus     // point-to-point links in a grid that closes on itself
};

// Ranks [k * devices, (k + 1) * devices) are joined by one unit of this level.
inline constexpr size_t kMostLevels = 16;     // links of a cluster
inline constexpr size_t kMostDimensions = 8;  // of a torus
struct Link {
  std::string name;
  LinkKind kind = LinkKind::kNetwork;
  int64_t devices = 0;       // 0: all of the cluster
  BytesPerSecond bandwidth;  // one direction: of a device's port; torus: of one of its links
  Seconds latency;           // of a message from device to device
  // Of what NCCL's own constants say that a collective's hop over such a link takes: more than once
  // where a message takes longer than over the links that the constants are of.
  double hop_factor = 1;
  // What a ring of collectives reaches of it, as nccl-tests counts busbw; `bandwidth` if not given.
  BytesPerSecond bus_bandwidth;
  // all_reduce where the switch of the innermost level adds (NVLS); 0: it cannot. And what a port
  // then reaches; 0: as the bus of all the switch's devices says.
  BytesPerSecond switch_bus_bandwidth, switch_port_bandwidth;
  std::vector<int64_t> torus;  // devices along each dimension
  std::string source;
};

// What kernels a software stack has, and in what it reduces gradients.
struct Kernels {
  bool fused_attention = true;  // else the scores go through memory, and none is left out
  bool blocked_softmax =
      false;  // unfused attention's softmax kernel is Megatron-LM's (cost/op_time.h)
  bool fused_elementwise = true;  // else norms, rope and SwiGLU are several kernels each
  // Linear layers of one input (queries, keys and values; gate and up) are one product.
  bool fused_linears = false;
  int64_t gradient_bytes = 4;       // an element in which gradients are reduced
  int64_t bf16_gradient_bytes = 0;  // those of bf16 weights; 0: as gradient_bytes
  double gradient_bytes_of(bool bf16) const {
    return static_cast<double>(bf16 && bf16_gradient_bytes > 0 ? bf16_gradient_bytes
                                                               : gradient_bytes);
  }
};

// What a software stack makes of a device.
struct Attained : Kernels {
  double matrix_fraction = 1;  // of the dense peak, by the largest matrix products
  double memory_fraction = 1;  // of the memory bandwidth, by streaming kernels
  Seconds launch;              // from the end of a kernel to the start of the next
  Seconds host_op;             // the host's work to issue one op
  // Files of clusters/ leave the rest as it is; profiles say it.
  Seconds host_collective;              // the host's work to issue a collective, beside host_op
  Seconds collective_latency;           // of a collective, beside what its algorithm says
  Seconds message_latency;              // of a message, beside the link's
  BytesPerSecond message_bandwidth;     // that one message reaches at most; 0: its link's
  double message_network_fraction = 1;  // of a network card, by one message
  Seconds step_overhead;                // the host's work once a step
  Seconds
      collective_member;  // all-gathers and reduce-scatters of data parallelism: for each member
  double collective_copies = 0;    // and so many times they read or write the whole tensor
  double collective_cards = 1024;  // network cards of a node that one collective uses at most
  double product_half_k = 64;      // a product whose k is this long reaches half
  double fp8_fraction = 1;  // of the share of the peak that half-precision products reach, by fp8's
  double attention_fraction = 0.75;  // fused attention's share of the largest products' rate
  double attention_grad_fraction = 0.65 / 0.75;  // and of that, its gradient's
  // Keys that a query sees, at which fused attention and its gradient reach half of that: what they
  // do once a query weighs less the more keys it sees. 0: it weighs nothing.
  double attention_half_keys = 0, attention_grad_half_keys = 0;
  double cache_rate = 1;             // of traffic within the cache, over that of memory
  double score_traffic = 1;          // of unfused attention's kernels: bytes over those counted
  double activation_traffic = 1;     // of GELU's kernels: bytes over those of one that is fused
  double logits_fraction = 1;        // of what their shape says, by products with the vocabulary
  double loss_traffic = 1;           // of the loss's kernels: bytes over the fewest possible
  double update_traffic = 1;         // of the optimizer's kernels
  double gradient_copy_traffic = 1;  // of those that put gradients together (Stack::copies_shards)
  // MiB of gradients that one all-reduce of the step sums at most; 0: all that the plan's buckets
  // hold.
  double reduce_bucket = 0;
  double overlap_slowdown = 1;  // how much longer computation beside communication takes
};

struct Device {
  std::string name;
  std::vector<std::string> also;                              // what tables of runs call it, too
  std::vector<std::pair<std::string, FlopsPerSecond>> peaks;  // dense, by format
  Bytes memory;
  Bytes reserved;  // of it, for no tensor: driver, context of the process, buffers of collectives
  Bytes usable_memory() const { return memory > reserved ? memory - reserved : Bytes(0); }
  BytesPerSecond memory_bandwidth;
  Bytes cache;                  // that all multiprocessors share; 0: not said
  int64_t multiprocessors = 1;  // parts that take a tile of a product each
  Attained attained;
  std::string source;
  // Measured rates by op, where they are: FLOP/s of matrix products, bytes/s of all else. They
  // replace what the peaks and fractions say of the op.
  std::vector<std::pair<std::string, double>> kernel_rates;

  // 0 if the device has no such format.
  FlopsPerSecond peak(std::string_view format) const;
};

// Who lays out a device's memory: the memory plan, or PyTorch's caching allocator, without
// expandable segments or with them (predict/caching_allocator.h).
enum class Allocator : uint8_t { kPlan, kSegments, kExpandable };

// Who adds a microbatch's gradients to those before it: the products that make them, or kernels of
// their own; into buffers that a step begins with, or, as autograd does, into the first ones, which
// are kept as they come or cast to the sum's format.
enum class Accumulation : uint8_t { kProducts, kBuffers, kAutograd };

// What a stack's engine does not run, of what plans may have: tp; pp; ZeRO 2 and 3 with pp; several
// stages a rank; selective recomputation; a backward pass in two, inputs' gradients and weights',
// or in two where something is recomputed; a stage on several ranks; slices of sequences.
enum class Lacking : uint8_t {
  kTensor,
  kPipelines,
  kDividedPipelines,
  kInterleaved,
  kSelective,
  kSplitBackward,
  kSplitRecompute,
  kReplicas,
  kSlices
};

// How a software stack runs on the device, and how well it was predicted; from a profile.
struct Stack {
  std::string name;  // "megatron"; empty: no profile
  std::vector<Lacking> lacking = {};
  bool lacks(Lacking what) const;
  std::vector<std::string> overlap;  // as `simulate --overlap` takes them
  bool scatter_gather = false;
  bool gloo = false;  // collectives are Gloo's rings over TCP, not NCCL's
  // A step ends with the sums of all gradients' norm and of the loss; without, each rank clips by
  // what it has and keeps its loss to itself.
  bool global_sums = true;
  // What it holds while it takes the gradient of the loss (predict/stack_memory.h).
  bool f32_loss = false, f32_softmax = false, gathered_ends = false;
  bool keeps_gathered = false;   // with full recomputation, until the gradients: no Plan::regather
  bool whole_recompute = false;  // full recomputation runs blocks again to their ends
  bool selective_op = false;     // what it calls selective recomputation is plan.h's kSelectiveOp
  // Its backward pass finds what autograd saves, and of every dropout a mask
  // (predict/stack_memory.h).
  bool autograd = false, dropout_masks = false;
  // Of products in fp8 it saves the cast operands, the weights' for all microbatches of a step.
  bool narrow_saved = false;
  // Unfused attention copies keys and values; gradients of f16 weights are summed in f16
  // (predict/stack_memory.h).
  bool attention_copies = false, f16_gradients = false;
  Accumulation accumulation = Accumulation::kProducts;
  // Other than kPlan: memory is that of FSDP2 and PyTorch's pipelines (predict/torch_memory.h).
  Allocator allocator = Allocator::kPlan;
  bool torch_2_6 = false;  // its pipelines are those of PyTorch 2.6, not of 2.11 and later
  // With ZeRO 3 a layer's weights are gathered behind the reductions of the layer before, not while
  // that one computes [PyTorch FSDP, BackwardPrefetch.BACKWARD_POST].
  bool gathers_late = false;
  // Of a layer's weights ZeRO 3 gathers no more than so many MiB (in f32) while the layer before
  // computes, whatever the plan's prefetch_mb; 0: what the plan says.
  int64_t prefetch_mb = 0;
  // Kernels between computation copy weights that data parallelism has gathered out of one buffer,
  // and gradients into the one that is scattered [PyTorch FSDP2, foreach_all_gather_copy_out,
  // foreach_reduce_scatter_copy_in].
  bool copies_shards = false;
  // Of the weights that ZeRO 3 gathers for a block that is recomputed, so much is released behind
  // the recomputation and gathered once more for the gradients: 0 to 1.
  double gathered_again = 0;
  double error = 0;  // of predictions: the standard deviation of log(predicted / measured)
  struct Range {
    std::string name;  // "hidden"
    double least = 0, most = 0;
  };
  std::vector<Range> measured;          // what the runs behind it cover
  std::vector<std::string> precisions;  // and in which they ran: "f16", "fp8"
};

struct Cluster {
  std::string file;  // for messages
  std::string name, source;
  int64_t devices = 0;  // how many there are; 0: as many as one likes
  int64_t cores = 0;    // that devices which are threads share; 0: each has its own
  Device device;
  std::vector<Link> links;            // innermost first; the last one joins all
  std::string profile;                // a file of profiles/ beside it, without .toml; empty: none
  std::vector<std::string> profiles;  // of its device, where it has none and none was asked for
  Stack stack;

  // Threads of one process have one memory, the device's.
  bool shares_memory() const { return cores > 0; }
  // The node: the largest unit of devices that more than a network joins; null: there is none.
  const Link* node() const;
  int64_t node_devices() const;  // 1: there is no node
  // Index of the innermost level that joins both ranks. REQUIRES: there is a link.
  size_t level_between(int64_t a, int64_t b) const;
  // [level] the level whose port of a device it is reached by: a device has one network card,
  // however many levels of switches lie behind it, and of other kinds a port a level.
  std::vector<size_t> port_levels() const;
};

// Throws Error with everything that is wrong with the text.
Cluster parse_cluster(std::string_view toml, const std::string& file);

// `name` is a file ("x/y.toml"), or a cluster's name: NAME.toml in the first of the folders that
// has it. `profile` is applied: "" the one that the file names, "none" no profile, NAME the file
// profiles/NAME.toml beside it or in the folders, the one there of the cluster's device whose
// software is NAME, or x.toml, and behind a colon a version of it (ProfileName). Throws Error, with
// the near miss and the names that there are.
Cluster load_cluster(FileSystem& fs, const std::string& name,
                     const std::vector<std::string>& folders, const std::string& profile = "");

// x.toml as it is; else profiles/NAME.toml in the first of the folders that has it. Throws Error,
// with the near miss and the names that there are.
std::string find_profile(FileSystem& fs, const std::string& name,
                         const std::vector<std::string>& folders);

}  // namespace mw::cluster
