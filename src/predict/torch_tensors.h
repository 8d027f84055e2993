// Tensors on a caching allocator, with what they are. Private to room predict.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "pipeline/buffer_lives.h"
#include "predict/caching_allocator.h"
#include "simulate/simulate.h"

namespace mw::predict {

// What a tensor is, as the fullest instant names it.
enum class What : uint8_t {
  kWeights,
  kFirstMoments,
  kSecondMoments,
  kKept,
  kRoots,
  kToGather,
  kGatherBuffer,
  kGathered,
  kGradients,
  kSums,
  kScatterBuffer,
  kReduced,
  kReceived,
  kSent,
  kMerged,
  kSaved,
  kTemporary,
  kCopy,
  kLogits,
  kLogarithms,
  kLogarithmGradients,
  kProbabilities,
  kLogitGradients
};
// Streams with memory of their own: those that compute, gather and scatter.
inline constexpr int32_t kComputes = 0, kGathers = 1, kScatters = 2;

class TorchTensors {
 public:
  TorchTensors(cluster::Allocator kind, Bytes capacity) : allocator_(kind, capacity) {}

  using Handle = int32_t;  // -1: none
  Handle add(int64_t bytes, pipeline::Category category, What what, int32_t stream = kComputes);
  void drop(Handle& handle);
  void drop(std::vector<Handle>& handles);

  int64_t alive() const { return alive_; }
  const std::array<int64_t, pipeline::kCategories>& by_category() const { return by_category_; }
  Bytes most_reserved() const { return allocator_.most_reserved(); }
  // The most that was alive since `watch`.
  void watch() { most_ = alive_; }
  int64_t most() const { return most_; }

  // What comes of the same tensors from here on depends on this alone: where all that are alive
  // lie, in the order in which they were made, and what the allocator keeps.
  std::vector<int64_t> layout() const;

  // From here on changes are written down.
  void write_down();
  // What was alive when the most was since then; of one kind together, largest first.
  std::vector<simulate::LiveTensor> at_fullest() const;
  std::map<pipeline::Category, Bytes> by_category_at_fullest() const;

 private:
  struct Tensor {
    int64_t bytes = 0;  // 0: none
    pipeline::Category category = pipeline::Category::kWorkspace;
    What what = What::kTemporary;
  };
  void change(Handle handle, const Tensor& to);

  CachingAllocator allocator_;
  std::vector<Tensor> tensors_;
  std::vector<CachingAllocator::Block> blocks_;
  std::vector<int64_t> made_;  // [tensor] how many were made before it
  int64_t all_made_ = 0;
  std::vector<Handle> free_;
  std::array<int64_t, pipeline::kCategories> by_category_ = {};
  int64_t alive_ = 0, most_ = 0;
  bool writes_ = false;
  std::vector<Tensor> at_begin_;
  std::vector<std::pair<Handle, Tensor>> changes_;
  int64_t fullest_ = 0;
  std::array<int64_t, pipeline::kCategories> by_category_at_fullest_ = {};
  size_t until_ = 0;  // changes to the fullest instant
};

}  // namespace mw::predict
