// What the ops of a fragment do to the memory of a PyTorch process: read once for all calls of it.
// Private to room predict.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "pipeline/program.h"
#include "predict/precision.h"

namespace mw::predict {

// What one op does to memory, beside what it reads for the last time.
struct OpMemory {
  enum class Kind : uint8_t {
    kNothing,         // a view, a gather or a sum of FSDP's, what has its memory from others
    kCompute,         // makes its results
    kWeightGradient,  // makes a weight's gradient
    kLoss,            // computes with logits
    kLossGradient
  } kind = Kind::kNothing;
  int32_t layer = -1;          // whose weights it reads, or makes gradients of
  int64_t copy = 0;            // bytes of the copy that it works on
  std::vector<int32_t> makes;  // values that have memory of their own
  int64_t elements = 0;        // of a weight's gradient, of logits
  bool divided = false;        // logits, over tensor parallelism
  bool kept = false;           // its result stays until the layer's backward pass
};

// A weight's elements, as ports and parts of gathered buffers tell.
struct LayerWeights {
  std::vector<int64_t> elements;
  int64_t sum = 0;
};

// A fragment, read once for all of its calls.
struct FragmentMemory {
  bool forward = false, scatters = false, gathers = false;
  std::vector<OpMemory> ops;
  std::vector<std::vector<int32_t>> last_reads;  // [op] roots that nothing reads behind it
  std::vector<int32_t> input, output;            // [value] index among the ports, -1: none
  std::vector<int32_t> root;                     // [value] whose memory it shares
  std::vector<int64_t> repeats;                  // [root] times its bytes, as kernels read it
  bool saves_repeats = false;                    // so it is saved, too
  std::map<int32_t, LayerWeights> weights;       // [layer] that it reads
};

// [fragment] Of those that are called, updates left out. `program` is in_precision.
std::vector<FragmentMemory> read_fragments(const pipeline::Program& program,
                                           const StackMemory& memory);

}  // namespace mw::predict
