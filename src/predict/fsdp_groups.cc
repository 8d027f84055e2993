#include "predict/fsdp_groups.h"

#include <iterator>
#include <utility>

namespace mw::predict {
namespace {

using pipeline::Category;

constexpr int64_t kF32 = 4;  // bytes

}  // namespace

void FsdpGroups::add(Key key, const LayerWeights& weights) {
  const auto [it, is_new] = index_.try_emplace(key, size());
  if (is_new) groups_.emplace_back().key = key;
  Group& to = group(it->second);
  to.weights.insert(to.weights.end(), weights.elements.begin(), weights.elements.end());
  to.elements += weights.sum;
}

int FsdpGroups::find(Key key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? -1 : it->second;
}

bool FsdpGroups::is_last_block(int g) const {
  const Key key = group(g).key;
  const auto behind = std::next(index_.find(key));
  return key.layer != kEnds && (behind == index_.end() || behind->first.stage != key.stage);
}

int FsdpGroups::before(int g) const {
  const Key key = group(g).key;
  const auto it = index_.find(key);
  if (it == index_.begin()) return -1;
  const auto& [last, index] = *std::prev(it);
  return last.stage == key.stage && last.layer != kEnds ? index : -1;
}

void FsdpGroups::hold_weights(int64_t divided) {
  int64_t all = 0;
  for (const Group& one : groups_) all += one.elements;
  for (Group& one : groups_) {
    one.share = all == 0 ? 1 : static_cast<double>(divided) / static_cast<double>(all * kF32);
    for (const int64_t elements : one.weights)
      tensors_.add(one.part(elements, kF32), Category::kWeights, What::kWeights);
  }
}

void FsdpGroups::hold_moments() {
  for (const Group& one : groups_) {
    for (const int64_t elements : one.weights) {
      for (const What moment : {What::kFirstMoments, What::kSecondMoments})
        tensors_.add(one.part(elements, kF32), Category::kOptimizer, moment);
    }
  }
}

void FsdpGroups::hold_kept() {
  for (const Group& one : groups_) {
    for (const int64_t elements : one.weights) {
      for (int copy = 0; copy < 4; ++copy)
        tensors_.add(one.part(elements, kF32), Category::kOptimizer, What::kKept);
    }
  }
}

void FsdpGroups::update() {
  std::vector<Handle> roots;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& one = groups_[g];
    for (const int64_t elements : one.weights)
      roots.push_back(tensors_.add(one.part(elements, kF32), Category::kWorkspace, What::kRoots));
    const bool last = g + 1 == groups_.size() || groups_[g + 1].key.stage != one.key.stage;
    if (last) tensors_.drop(roots);
  }
}

void FsdpGroups::begin_gather(int g) {
  Group& to = group(g);
  if (to.flat >= 0 || !to.whole.empty() || to.share >= 1) return;
  Handle cast =
      tensors_.add(to.part(to.elements, bytes_), Category::kWorkspace, What::kToGather, kGathers);
  to.flat = tensors_.add(to.elements * bytes_, Category::kWorkspace, What::kGatherBuffer, kGathers);
  tensors_.drop(cast);
}

void FsdpGroups::gather(int g, bool forward) {
  Group& to = group(g);
  if (!to.whole.empty()) return;
  if (to.share >= 1 && bytes_ == kF32) return;  // they are there
  begin_gather(g);
  if (forward) tensors_.drop(last_flat_);
  for (const int64_t elements : to.weights)
    to.whole.push_back(tensors_.add(elements * bytes_, Category::kWeights, What::kGathered));
  if (forward) {
    last_flat_ = std::exchange(to.flat, -1);
  } else {
    tensors_.drop(to.flat);
  }
}

void FsdpGroups::release(int g) { tensors_.drop(group(g).whole); }

void FsdpGroups::end_forward() { tensors_.drop(last_flat_); }

void FsdpGroups::add_gradient(int g, int64_t elements) {
  group(g).gradients.push_back(
      tensors_.add(elements * bytes_, Category::kGradients, What::kGradients));
}

void FsdpGroups::sum_gradients(int g) {
  Group& of = group(g);
  if (of.sums.empty() && !of.gradients.empty()) {
    for (const int64_t elements : of.weights)
      of.sums.push_back(tensors_.add(elements * kF32, Category::kGradients, What::kSums));
  }
  tensors_.drop(of.gradients);
}

void FsdpGroups::scatter(int g) {
  Group& of = group(g);
  if (of.gradients.empty() && of.sums.empty()) return;
  if (of.share >= 1) return sum_gradients(g);
  Handle& buffer = last_scattered_.try_emplace(of.key.stage, -1).first->second;
  tensors_.drop(buffer);
  buffer = tensors_.add(of.elements * kF32, Category::kWorkspace, What::kScatterBuffer);
  tensors_.drop(of.gradients);
  tensors_.drop(of.sums);
  Handle made =
      tensors_.add(of.part(of.elements, kF32), Category::kGradients, What::kReduced, kScatters);
  if (of.reduced < 0) {
    of.reduced = made;
  } else {
    tensors_.drop(made);  // added to those of the microbatches before
  }
}

void FsdpGroups::scatter_stage(int32_t stage) {
  for (auto it = index_.lower_bound({stage, kEnds}); it != index_.end() && it->first.stage == stage;
       ++it) {
    release(it->second);
    scatter(it->second);
  }
}

void FsdpGroups::end_backward() {
  for (auto& [stage, buffer] : last_scattered_) tensors_.drop(buffer);
}

void FsdpGroups::end_step() {
  for (Group& one : groups_) {
    tensors_.drop(one.whole);
    tensors_.drop(one.flat);
  }
}

void FsdpGroups::forget_gradients() {
  for (Group& one : groups_) {
    tensors_.drop(one.reduced);
    tensors_.drop(one.sums);
    tensors_.drop(one.gradients);
  }
}

}  // namespace mw::predict
