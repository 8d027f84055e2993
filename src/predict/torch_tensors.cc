#include "predict/torch_tensors.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace mw::predict {
namespace {

using pipeline::Category;

std::string_view name_of(What what) {
  switch (what) {
    case What::kWeights: return "weights in f32";
    case What::kFirstMoments: return "first moments";
    case What::kSecondMoments: return "second moments";
    case What::kKept: return "kept of the step before";
    case What::kRoots: return "roots of second moments";
    case What::kToGather: return "weights to be gathered";
    case What::kGatherBuffer: return "buffers of weight gathers";
    case What::kGathered: return "gathered weights";
    case What::kGradients: return "gradients";
    case What::kSums: return "sums of gradients";
    case What::kScatterBuffer: return "buffers of gradient reductions";
    case What::kReduced: return "reduced gradients";
    case What::kReceived: return "buffers to receive into";
    case What::kSent: return "values that were sent";
    case What::kMerged: return "outputs put together";
    case What::kSaved: return "saved for backward";
    case What::kTemporary: return "temporaries";
    case What::kCopy: return "copies for collectives";
    case What::kLogits: return "logits in f32";
    case What::kLogarithms: return "log-probabilities in f32";
    case What::kLogarithmGradients: return "d.log-probabilities in f32";
    case What::kProbabilities: return "probabilities in f32";
    case What::kLogitGradients: return "d.logits in f32";
  }
  return "?";
}

}  // namespace

TorchTensors::Handle TorchTensors::add(int64_t bytes, Category category, What what,
                                       int32_t stream) {
  if (bytes <= 0) return -1;
  Handle handle = static_cast<Handle>(tensors_.size());
  if (free_.empty()) {
    tensors_.emplace_back();
    blocks_.emplace_back();
    made_.emplace_back();
  } else {
    handle = free_.back();
    free_.pop_back();
  }
  change(handle, {bytes, category, what});
  blocks_[static_cast<size_t>(handle)] = allocator_.allocate(bytes, stream);
  made_[static_cast<size_t>(handle)] = all_made_++;
  return handle;
}

std::vector<int64_t> TorchTensors::layout() const {
  std::vector<size_t> alive;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].bytes > 0) alive.push_back(t);
  }
  std::sort(alive.begin(), alive.end(), [&](size_t a, size_t b) { return made_[a] < made_[b]; });
  std::vector<int64_t> layout;
  for (const size_t t : alive) {
    const CachingAllocator::Place place = allocator_.place(blocks_[t]);
    layout.insert(layout.end(), {static_cast<int64_t>(tensors_[t].what), tensors_[t].bytes,
                                 place.pool, place.address});
  }
  allocator_.write_layout(layout);
  return layout;
}

void TorchTensors::drop(Handle& handle) {
  if (handle < 0) return;
  allocator_.release(blocks_[static_cast<size_t>(handle)]);
  change(handle, {});
  free_.push_back(handle);
  handle = -1;
}

void TorchTensors::drop(std::vector<Handle>& handles) {
  for (Handle& handle : handles) drop(handle);
  handles.clear();
}

void TorchTensors::write_down() {
  at_begin_ = tensors_;
  changes_.clear();
  fullest_ = 0, until_ = 0;
  writes_ = true;
}

std::vector<simulate::LiveTensor> TorchTensors::at_fullest() const {
  std::vector<Tensor> then = at_begin_;
  for (size_t i = 0; i < until_; ++i) {
    const auto handle = static_cast<size_t>(changes_[i].first);
    if (handle >= then.size()) then.resize(handle + 1);
    then[handle] = changes_[i].second;
  }
  std::map<What, simulate::LiveTensor> sums;
  for (const Tensor& tensor : then) {
    if (tensor.bytes == 0) continue;
    simulate::LiveTensor& sum = sums[tensor.what];
    sum.name = name_of(tensor.what);
    sum.category = tensor.category;
    sum.bytes += Bytes(tensor.bytes);
  }
  std::vector<simulate::LiveTensor> largest;
  for (auto& [what, sum] : sums) largest.push_back(std::move(sum));
  std::stable_sort(largest.begin(), largest.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (largest.size() > simulate::kLargest) largest.resize(simulate::kLargest);
  return largest;
}

void TorchTensors::change(Handle handle, const Tensor& to) {
  Tensor& tensor = tensors_[static_cast<size_t>(handle)];
  alive_ += to.bytes - tensor.bytes;
  by_category_[static_cast<size_t>(tensor.category)] -= tensor.bytes;
  by_category_[static_cast<size_t>(to.category)] += to.bytes;
  most_ = std::max(most_, alive_);
  tensor = to;
  if (!writes_) return;
  changes_.emplace_back(handle, to);
  if (alive_ <= fullest_) return;
  fullest_ = alive_;
  until_ = changes_.size();
  by_category_at_fullest_ = by_category_;
}

std::map<Category, Bytes> TorchTensors::by_category_at_fullest() const {
  std::map<Category, Bytes> bytes;
  for (size_t c = 0; c < pipeline::kCategories; ++c) {
    if (by_category_at_fullest_[c] > 0)
      bytes[static_cast<Category>(c)] = Bytes(by_category_at_fullest_[c]);
  }
  return bytes;
}

}  // namespace mw::predict
