// Which keys a query sees: the mask of one batch entry, asked by tile of queries and block of keys.
#pragma once

#include <limits>

#include "kernels/attention.h"
#include "kernels/attention_tile.h"
#include "kernels/random_words.h"

namespace mw::kernels {

enum class Cover { kNone, kPartial, kFull };

// Positions and segments padded to whole blocks, so that padding is invisible and the rest needs no
// special case: a query sees a key iff key position <= query position and the segments are equal.
class AttentionMask {
 public:
  // Takes its arrays from `scratch`.
  AttentionMask(const Attention& attention, Scratch* scratch);
  // Reads batch entry b.
  void prepare(const Attention& attention, int64_t b);

  // Of the queries [query, query + kTileRows) and the keys [key, key + kKeyBlock); both are
  // multiples of their tile or block.
  Cover cover(int64_t query, int64_t key) const;
  // 1 + the last of the block's keys that the query sees, relative to the block; 0 if it sees none.
  int64_t extent(int64_t query, int64_t key) const;

  // Lanes of the keys key .. key + kLanes - 1 that the query sees.
  MW_ALWAYS_INLINE vi visible(int64_t query, int64_t key) const {
    return (load_i(key_position_ + key) <= query_position_[query]) &
           (load_i(key_segment_ + key) == query_segment_[query]);
  }

 private:
  struct Range {
    int32_t low, high;
  };
  static Range range_of(const int32_t* x, int64_t n);

  int64_t Sq_, Sk_;
  int32_t* query_position_;
  int32_t* query_segment_;
  int32_t* key_position_;
  int32_t* key_segment_;
  Range* block_position_;  // of each block's real keys
  Range* block_segment_;
};

// Dropout on the probabilities of one query at a time.
class AttentionDropoutMask {
 public:
  AttentionDropoutMask(const Attention& attention, Scratch* scratch);
  bool active() const { return active_; }
  // Reads batch entry b.
  void prepare(const Attention& attention, int64_t b);
  // Draws for query `query` of head h and the keys [key, key + count) of a block.
  void draw(const Attention& attention, int64_t h, int64_t query, int64_t key, int64_t count);
  // x of the keys key + j .. key + j + kLanes - 1 of the last draw, scaled if kept, else 0.
  MW_ALWAYS_INLINE vf apply(vf x, int64_t j) const {
    // Unsigned comparison as a signed one: both sides less 2^31.
    const vi dropped = (load_i(words_ + j) ^ kSign) < threshold_;
    return select(dropped, vf{}, x * scale_);
  }

 private:
  static constexpr int32_t kSign = std::numeric_limits<int32_t>::min();

  bool active_;
  int32_t threshold_;  // the keep rule's, less 2^31
  float scale_;
  int64_t sample_ = 0;
  const int32_t* query_position_ = nullptr;  // of this batch entry
  const int32_t* key_position_ = nullptr;
  int32_t* words_;     // [kKeyBlock], random words
  bool* consecutive_;  // whether each block's positions are first, first + 1, …
};

}  // namespace mw::kernels
