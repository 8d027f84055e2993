// Of which communication computation goes on, and what that costs the computation.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/hardware.h"

namespace mw::simulate {

// Communication that computation may have beside it.
enum class Beside : uint8_t {
  kMessages,     // of the pipeline, that the rank sends
  kTensor,       // collectives of tensor parallelism
  kGradReduce,   // sums of gradients
  kParamGather,  // gathers of weights
  kRing,         // keys, values and their gradients of context parallelism
  kOther         // all-to-alls of experts
};
inline constexpr size_t kBesides = 6;
using Slowdowns = std::array<double, kBesides>;  // [Beside]

struct Overlap {
  // A message does not hold up its sender. Off: the sender waits until it has arrived.
  bool messages = true;
  // Collectives inside a fragment wait for what they read and hold up only what reads them. Off:
  // as the fragment's launches say.
  bool collectives = false;
  // With `collectives`: those of tensor parallelism too. Off: each holds up all that comes after
  // it.
  bool tensor = true;
  // Gathers and reductions of weights inside a microbatch (ZeRO 2 and 3) go on beside computation.
  // Off: each holds up all that comes after it.
  bool weights = true;
  // Products of tensor parallelism run in parts: with each part of a gathered operand as it comes,
  // for each part of a scattered result before it leaves [Wang 2022, Overlap Communication with
  // Dependent Computation; PyTorch torch/_inductor/fx_passes/micro_pipeline_tp.py]. Off: they wait
  // for the whole operand, and the whole result leaves.
  bool async_tp = false;
  // No collective inside a fragment goes on beside anything: each holds up all that comes after it.
  bool serial = false;
  // The update's reductions start as soon as their gradients are complete.
  bool grad_reduce = false;
  // With `grad_reduce`: only where the rank later waits for another one, those of other gradients
  // behind all its work [Li 2021, Chimera, section 3.2: eager-sync-opt]. Off: all of them.
  bool grad_reduce_idle = false;
  // The update's last all-gathers run beside the next step's first forward passes.
  bool param_gather = false;
  // Context parallelism passes keys and values around a ring: attention computes with one part
  // while the next is on its way [Liu 2023, Ring Attention]. Off: it waits for all of them.
  bool ring = true;
  // Of a forward and a backward that a schedule lays together (DualPipe), one computes while the
  // experts' exchanges of the other are on their way. Off: one after the other.
  bool pairs = true;
  // Computation beside each takes this much longer, beside several as much as beside the worst, and
  // so does a collective beside computation [Galvatron's bct_dp_overlap, Miao et al. 2022]; 0:
  // as the device's overlap_slowdown, which is that of collectives, and 1 beside messages.
  Slowdowns slowdown{};

  bool operator==(const Overlap&) const = default;
};

// Switches what a word says: "messages", "no-messages", "collectives", "no-tensor", "weights",
// "no-weights", "async-tp" (which is collectives, those of tensor parallelism among them, and
// products in parts), "serial", "grad_reduce", "grad_reduce_idle", "param_gather", "ring",
// "no-ring", "pairs", "no-pairs"; "none": no collectives, grad_reduce and param_gather, whatever
// was on before. False for any other word.
bool set_overlap(Overlap& overlap, std::string_view word);
// Whether two words that set_overlap knows cannot both hold: the later would undo what the earlier
// says. "none" and then what shall go on in spite of it is sense.
bool contradict(std::string_view earlier, std::string_view later);
const std::vector<std::string>& overlap_words();  // that it knows

// "1.2": of all; "tensor=1.2": of one. The empty text, or what is wrong with it.
std::string set_slowdown(Overlap& overlap, std::string_view text);
std::string_view beside_name(Beside beside);  // "messages", "tensor", "grad_reduce", …

// How much longer computation beside communication takes.
Slowdowns slowdowns_of(const Overlap& overlap, const cluster::Device& device);

}  // namespace mw::simulate
