#include <algorithm>

#include "kernels/attention.h"
#include "kernels/attention_mask.h"
#include "kernels/attention_tile.h"
#include "kernels/vec_math.h"

namespace mw::kernels {
namespace {

constexpr int64_t kTileRowsPadded = (kTileRows + kLanes - 1) / kLanes * kLanes;

// Panels of one key-value head, and what one block of queries works on.
struct Forward {
  Forward(const Attention& attention, Scratch* scratch)
      : a(attention),
        keys(round_up(a.Sk, kKeyBlock)),
        Dn(round_up(a.D, kTileColumns)),
        mask(attention, scratch),
        dropout(attention, scratch),
        k_transposed(scratch->take<float>(keys * a.D)),
        v(scratch->take<float>(keys * Dn)),
        q(scratch->take<float>(kQueryBlock * a.D)),
        out(scratch->take<float>(kQueryBlock * Dn)),
        p(scratch->take<float>(kTileRows * kKeyBlock)),
        top(scratch->take<float>(kQueryBlock + kTileRowsPadded)),
        sums(scratch->take<float>(kQueryBlock * kLanes)) {}

  const Attention& a;
  const int64_t keys;  // padded
  const int64_t Dn;    // D, padded
  AttentionMask mask;
  AttentionDropoutMask dropout;
  float* k_transposed;  // [keys / kTileColumns][D][kTileColumns]
  float* v;             // [Dn / kTileColumns][keys][kTileColumns]
  float* q;             // [kQueryBlock][D], scaled
  float* out;           // [kQueryBlock][Dn], running
  float* p;             // [kTileRows][kKeyBlock], scores, then probabilities
  float* top;           // [kQueryBlock], running maximum of a row's scores
  float* sums;          // [kQueryBlock][kLanes], running sums of a row's probabilities
};

// Masks the scores of a tile where `partial` and returns each row's new maximum.
void mask_and_max(Forward& f, int64_t query, int64_t tile, int64_t key, int64_t width, bool partial,
                  float* new_top) {
  for (int64_t i = 0; i < kTileRows; ++i) {
    float* p = f.p + i * kKeyBlock;
    vf largest = splat(-kInfinity);
    if (partial) {
      for (int64_t j = 0; j < width; j += kLanes) {
        const vf s =
            select(f.mask.visible(query + tile + i, key + j), load(p + j), splat(-kInfinity));
        store(p + j, s);
        largest = max_of(s, largest);
      }
    } else {
      for (int64_t j = 0; j < width; j += kLanes) largest = max_of(load(p + j), largest);
    }
    new_top[i] = std::max(f.top[tile + i], max_lane(largest));
  }
}

// Scores to probabilities under the row's running maximum; factor[i] is what the row's earlier sums
// must be multiplied by [online softmax, Milakov and Gimelshein 2018].
void probabilities(Forward& f, int64_t query, int64_t tile, int64_t key, int64_t width,
                   bool partial, float* factor) {
  float new_top[kTileRowsPadded] = {};
  float shift[kTileRowsPadded] = {};
  mask_and_max(f, query, tile, key, width, partial, new_top);
  for (int64_t i = 0; i < kTileRows; ++i) shift[i] = new_top[i] == -kInfinity ? 0.0f : new_top[i];
  for (int64_t i = 0; i < kTileRowsPadded; i += kLanes) {
    store(factor + i, exp_probability(load(f.top + tile + i) - load(shift + i)));
  }
  for (int64_t i = 0; i < kTileRows; ++i) {
    float* p = f.p + i * kKeyBlock;
    float* sums = f.sums + (tile + i) * kLanes;
    vf sum = load(sums) * factor[i];
    for (int64_t j = 0; j < width; j += kLanes) {
      const vf e = exp_probability(load(p + j) - shift[i]);
      store(p + j, e);
      sum += e;
    }
    store(sums, sum);
    f.top[tile + i] = new_top[i];
  }
}

void drop(Forward& f, int64_t h, int64_t query, int64_t key, int64_t width) {
  const int64_t rows = std::min(kTileRows, f.a.Sq - query);
  for (int64_t i = 0; i < rows; ++i) {
    f.dropout.draw(f.a, h, query + i, key, width);
    float* p = f.p + i * kKeyBlock;
    for (int64_t j = 0; j < width; j += kLanes) store(p + j, f.dropout.apply(load(p + j), j));
  }
}

// One tile of queries against one block of keys. `query` is the block's first query.
void tile_step(Forward& f, int64_t h, int64_t query, int64_t tile, int64_t key) {
  const Cover cover = f.mask.cover(query + tile, key);
  if (cover == Cover::kNone) return;
  int64_t depth = std::min(kKeyBlock, f.a.Sk - key);
  if (cover == Cover::kPartial) {
    depth = 0;
    for (int64_t i = 0; i < kTileRows; ++i) {
      depth = std::max(depth, f.mask.extent(query + tile + i, key));
    }
    if (depth == 0) return;
  }
  for (int64_t j = 0; j < depth; j += kTileColumns) {
    tile_product<Start::kZero, false>(f.a.D, f.q + tile * f.a.D, f.a.D,
                                      f.k_transposed + (key + j) * f.a.D, f.p + j, kKeyBlock);
  }
  float factor[kTileRowsPadded];
  const int64_t width = round_up(depth, kLanes);
  probabilities(f, query, tile, key, width, cover == Cover::kPartial, factor);
  if (f.dropout.active()) drop(f, h, query + tile, key, width);
  for (int64_t d = 0; d < f.Dn; d += kTileColumns) {
    tile_product<Start::kOldScaled, false>(depth, f.p, kKeyBlock,
                                           f.v + d * f.keys + key * kTileColumns,
                                           f.out + tile * f.Dn + d, f.Dn, factor);
  }
}

// Divides by the sums and writes a block of `rows` queries out.
void finish(Forward& f, int64_t b, int64_t h, int64_t query, int64_t rows, const Heads<float>& out,
            float* lse) {
  float total[kQueryBlock];
  for (int64_t i = 0; i < rows; ++i) {
    float lanes[kLanes];
    std::copy_n(f.sums + i * kLanes, kLanes, lanes);
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
    }
    total[i] = lanes[0];
    const vf factor = splat(total[i] == 0.0f ? 0.0f : 1.0f / total[i]);
    float* row = out.row(b, query + i, h);
    for_each_vec(0, f.a.D, [&](auto span, int64_t d) {
      span.store(row + d, span.load(f.out + i * f.Dn + d) * factor);
    });
  }
  for_each_vec(0, rows, [&](auto span, int64_t i) {
    span.store(lse + i, span.load(f.top + i) + log_of(span.load(total + i)));
  });
}

}  // namespace

size_t attention_forward_scratch_bytes(const Attention& attention) {
  Scratch scratch(nullptr);
  Forward counted(attention, &scratch);
  return scratch.bytes();
}

void attention_forward(const Attention& attention, const Heads<const float>& q,
                       const Heads<const float>& k, const Heads<const float>& v,
                       const Heads<float>& out, float* lse_BHS, void* scratch, int64_t begin,
                       int64_t end) {
  Scratch memory(scratch);
  Forward f(attention, &memory);
  const Attention& a = attention;
  const int64_t group = a.H / a.Hkv;
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t b = pair / a.H;
    const int64_t h = pair % a.H;
    if (pair == begin || h % group == 0) {
      if (pair == begin || h == 0) {
        f.mask.prepare(a, b);
        f.dropout.prepare(a, b);
      }
      pack_transposed_panels(k.row(b, 0, h / group), k.row_stride, a.Sk, a.D, f.k_transposed);
      pack_panels(v.row(b, 0, h / group), v.row_stride, a.Sk, a.Sk, f.keys, a.D, 1.0f, f.v);
    }
    for (int64_t query = 0; query < a.Sq; query += kQueryBlock) {
      const int64_t rows = std::min(kQueryBlock, a.Sq - query);
      const int64_t padded = round_up(rows, kTileRows);
      pack_rows(q.row(b, query, h), q.row_stride, rows, padded, a.D, a.scale, f.q);
      std::fill_n(f.out, padded * f.Dn, 0.0f);
      std::fill_n(f.top, kQueryBlock + kTileRowsPadded, -kInfinity);
      std::fill_n(f.sums, padded * kLanes, 0.0f);
      for (int64_t key = 0; key < a.Sk; key += kKeyBlock) {
        for (int64_t tile = 0; tile < padded; tile += kTileRows) {
          tile_step(f, h, query, tile, key);
        }
      }
      finish(f, b, h, query, rows, out, lse_BHS + pair * a.Sq + query);
    }
  }
}

}  // namespace mw::kernels
