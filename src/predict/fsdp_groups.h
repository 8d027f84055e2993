// FSDP2's parameter groups of one rank: weights that are divided, gathered and released, and their
// gradients. Private to room predict.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "base/dtype.h"
#include "predict/torch_fragments.h"
#include "predict/torch_tensors.h"

namespace mw::predict {

class FsdpGroups {
 public:
  // `dtype`: in which weights are gathered and gradients made.
  FsdpGroups(TorchTensors& tensors, DType dtype) : tensors_(tensors), bytes_(dtype_size(dtype)) {}

  // A stage's layer; layers outside blocks are one group of their stage.
  struct Key {
    int32_t stage = 0;
    int32_t layer = 0;  // kEnds: outside blocks
    auto operator<=>(const Key&) const = default;
  };
  static constexpr int32_t kEnds = -1;

  void add(Key key, const LayerWeights& weights);
  int find(Key key) const;  // -1: none
  int size() const { return static_cast<int>(groups_.size()); }
  bool is_ends(int g) const { return group(g).key.layer == kEnds; }
  // The block behind which its stage has no other.
  bool is_last_block(int g) const;
  // The block that the backward pass of its stage comes to behind this one; -1: none.
  int before(int g) const;

  // `divided`: f32 bytes of all weights that one device updates.
  void hold_weights(int64_t divided);
  void hold_moments();
  // What post-validation keeps of a step: copies of weights and moments before it, and its
  // gradients.
  void hold_kept();
  // What AdamW makes of all weights of a stage at a time: the roots of their second moments.
  void update();

  // Into the flat buffer. Nothing where the weights are there, on their way, or not divided.
  void begin_gather(int g);
  // Out of it. In the forward pass the buffer stays until the next group's is read. Weights in f32
  // that are not divided are read where they lie.
  void gather(int g, bool forward);
  void release(int g);
  // The last group's buffer goes.
  void end_forward();

  void add_gradient(int g, int64_t elements);
  bool has_gradients(int g) const { return !group(g).gradients.empty(); }
  // Undivided, in f32.
  void sum_gradients(int g);
  // Over the ranks that have parts of the weights; where they are not divided, only summed.
  void scatter(int g);
  // Of the stage's groups, all behind its last backward pass, and its weights are released: as a
  // pipeline's engine does it [PyTorch torch/distributed/pipelining/stage.py of 2.6,
  // backward_maybe_with_nosync; schedules.py of 2.13, REDUCE_GRAD].
  void scatter_stage(int32_t stage);
  // What was scattered last goes.
  void end_backward();
  void end_step();
  void forget_gradients();

 private:
  using Handle = TorchTensors::Handle;
  struct Group {
    Key key;
    std::vector<int64_t> weights;  // elements
    int64_t elements = 0;
    double share = 1;  // that a device has of them
    std::vector<Handle> whole, gradients, sums;
    Handle flat = -1, reduced = -1;
    int64_t part(int64_t of, int64_t bytes) const {
      return static_cast<int64_t>(share * static_cast<double>(of)) * bytes;
    }
  };
  Group& group(int g) { return groups_[static_cast<size_t>(g)]; }
  const Group& group(int g) const { return groups_[static_cast<size_t>(g)]; }

  TorchTensors& tensors_;
  int64_t bytes_;
  std::vector<Group> groups_;
  std::map<Key, int> index_;
  Handle last_flat_ = -1;
  std::map<int32_t, Handle> last_scattered_;  // [stage]
};

}  // namespace mw::predict
