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

int64_t query_stride(const Attention& attention) {
  return attention.position_q_stride == 0 ? attention.Sq : attention.position_q_stride;
}

}  // namespace

AttentionMask::AttentionMask(const Attention& attention, Scratch* scratch) {
  Sq_ = attention.Sq;
  Sk_ = attention.Sk;
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
  padded_copy(causal ? entry(attention.position_q, query_stride(attention)) : nullptr, 0, Sq_,
              kLowest, queries, query_position_);
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
    : active_(attention.dropout.rate > 0.0) {
  const KeepRule rule = keep_rule(attention.dropout.rate);
  threshold_ = static_cast<int32_t>(rule.threshold ^ static_cast<uint32_t>(kSign));
  scale_ = rule.scale;
  words_ = scratch->take<int32_t>(kKeyBlock);
  consecutive_ = scratch->take<bool>(round_up(attention.Sk, kKeyBlock) / kKeyBlock);
}

void AttentionDropoutMask::prepare(const Attention& attention, int64_t b) {
  if (!active_) return;
  sample_ = attention.dropout.sample_id_B[b];
  query_position_ = attention.position_q + b * query_stride(attention);
  key_position_ = attention.position_k + b * attention.Sk;
  for (int64_t key = 0; key < attention.Sk; key += kKeyBlock) {
    const int64_t last = std::min(attention.Sk, key + kKeyBlock) - 1;
    bool consecutive = true;
    for (int64_t j = key; j < last; ++j) {
      consecutive = consecutive && key_position_[j + 1] == key_position_[j] + 1;
    }
    consecutive_[key / kKeyBlock] = consecutive;
  }
}

void AttentionDropoutMask::draw(const Attention& attention, int64_t h, int64_t query, int64_t key,
                                int64_t count) {
  const AttentionDropout& dropout = attention.dropout;
  // Modulo 2^64: a long run numbers more elements than 63 bits hold.
  const auto head = static_cast<uint64_t>(sample_ * dropout.H_total + dropout.head_offset + h);
  const auto S_total = static_cast<uint64_t>(dropout.S_total);
  const uint64_t row = (head * S_total + static_cast<uint64_t>(query_position_[query])) * S_total;
  auto* words = reinterpret_cast<uint32_t*>(words_);
  if (consecutive_[key / kKeyBlock]) {
    random_words(dropout.key, row + static_cast<uint64_t>(key_position_[key]), count, words);
    return;
  }
  std::fill_n(words, count, 0);
  for (int64_t j = 0; j < std::min(count, attention.Sk - key); ++j) {
    words[j] = random_u32(dropout.key, static_cast<uint64_t>(row + key_position_[key + j]));
  }
}

}  // namespace mw::kernels
