#include "kernels/attention_mask.h"

namespace mw::kernels {
namespace {

constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
constexpr int32_t kHighest = std::numeric_limits<int32_t>::max();

// source[0, n) or, without a source, `value`; then padding.
void padded_copy(const int32_t* source, int32_t value, int64_t n, int32_t padding, int64_t padded,
                 int32_t* target) {
  if (source != nullptr) {
    std::copy_n(source, n, target);
  } else {
    std::fill_n(target, n, value);
  }
  std::fill(target + n, target + padded, padding);
}

}  // namespace

AttentionMask::AttentionMask(const Attention& attention, Scratch* scratch)
    : Sq_(attention.Sq), Sk_(attention.Sk) {
  const int64_t queries = round_up(Sq_, kQueryBlock);
  const int64_t keys = round_up(Sk_, kKeyBlock);
  query_position_ = scratch->take<int32_t>(queries);
  query_segment_ = scratch->take<int32_t>(queries);
  key_position_ = scratch->take<int32_t>(keys);
  key_segment_ = scratch->take<int32_t>(keys);
  block_position_ = scratch->take<Range>(keys / kKeyBlock);
  block_segment_ = scratch->take<Range>(keys / kKeyBlock);
}

AttentionMask::Range AttentionMask::range_of(const int32_t* x, int64_t n) {
  Range range = {kHighest, kLowest};
  for (int64_t i = 0; i < n; ++i) {
    range.low = std::min(range.low, x[i]);
    range.high = std::max(range.high, x[i]);
  }
  return range;
}

void AttentionMask::prepare(const Attention& attention, int64_t b) {
  const auto entry = [&](const int32_t* x, int64_t S) { return x == nullptr ? x : x + b * S; };
  const bool causal = attention.causal;
  const int64_t queries = round_up(Sq_, kQueryBlock);
  const int64_t keys = round_up(Sk_, kKeyBlock);
  padded_copy(causal ? entry(attention.position_q, Sq_) : nullptr, 0, Sq_, kLowest, queries,
              query_position_);
  padded_copy(causal ? entry(attention.position_k, Sk_) : nullptr, 0, Sk_, kHighest, keys,
              key_position_);
  padded_copy(entry(attention.segment_q, Sq_), 0, Sq_, 0, queries, query_segment_);
  padded_copy(entry(attention.segment_k, Sk_), 0, Sk_, 0, keys, key_segment_);
  for (int64_t key = 0; key < Sk_; key += kKeyBlock) {
    const int64_t n = std::min(kKeyBlock, Sk_ - key);
    block_position_[key / kKeyBlock] = range_of(key_position_ + key, n);
    block_segment_[key / kKeyBlock] = range_of(key_segment_ + key, n);
  }
}

Cover AttentionMask::cover(int64_t query, int64_t key) const {
  const int64_t rows = std::min(kTileRows, Sq_ - query);
  if (rows <= 0) return Cover::kNone;
  const Range q = range_of(query_position_ + query, rows);
  const Range q_segment = range_of(query_segment_ + query, rows);
  const Range k = block_position_[key / kKeyBlock];
  const Range k_segment = block_segment_[key / kKeyBlock];
  if (k.low > q.high || k_segment.low > q_segment.high || k_segment.high < q_segment.low) {
    return Cover::kNone;
  }
  const bool one_segment = q_segment.low == q_segment.high && k_segment.low == k_segment.high;
  const bool whole_vectors = key + kKeyBlock <= Sk_ || (Sk_ - key) % kLanes == 0;
  return k.high <= q.low && one_segment && whole_vectors ? Cover::kFull : Cover::kPartial;
}

int64_t AttentionMask::extent(int64_t query, int64_t key) const {
  const int64_t n = std::min(kKeyBlock, round_up(Sk_ - key, kLanes));
  for (int64_t j = n - kLanes; j >= 0; j -= kLanes) {
    const vi lanes = visible(query, key + j);
    if (!any(lanes)) continue;
    for (int lane = kLanes - 1; lane >= 0; --lane) {
      if (lanes[lane]) return j + lane + 1;
    }
  }
  return 0;
}

AttentionDropoutMask::AttentionDropoutMask(const Attention& attention, Scratch* scratch)
    : active_(attention.dropout.rate > 0.0), rule_(keep_rule(attention.dropout.rate)) {
  words_ = scratch->take<uint32_t>(kKeyBlock);
  factors_ = scratch->take<float>(kKeyBlock);
}

const float* AttentionDropoutMask::factors(const Attention& attention, int64_t b, int64_t h,
                                           int64_t query, int64_t key, int64_t count) {
  const AttentionDropout& dropout = attention.dropout;
  const int64_t n = std::min(count, attention.Sk - key);
  const int64_t head = dropout.sample_id_B[b] * dropout.H_total + dropout.head_offset + h;
  const int64_t query_position = attention.position_q[b * attention.Sq + query];
  const int32_t* key_position = attention.position_k + b * attention.Sk + key;
  const auto row = static_cast<uint64_t>((head * dropout.S_total + query_position) * dropout.S_total);
  bool consecutive = true;
  for (int64_t j = 1; j < n; ++j) consecutive &= key_position[j] == key_position[0] + j;
  if (consecutive) {
    random_words(dropout.key, row + static_cast<uint64_t>(key_position[0]), n, words_);
  } else {
    for (int64_t j = 0; j < n; ++j) {
      words_[j] = random_u32(dropout.key, row + static_cast<uint64_t>(key_position[j]));
    }
  }
  for (int64_t j = 0; j < n; ++j) factors_[j] = words_[j] >= rule_.threshold ? rule_.scale : 0.0f;
  std::fill(factors_ + n, factors_ + count, 0.0f);
  return factors_;
}

}  // namespace mw::kernels
