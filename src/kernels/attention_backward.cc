#include <algorithm>

#include "kernels/attention.h"
#include "kernels/attention_mask.h"
#include "kernels/attention_tile.h"
#include "kernels/row_sum.h"
#include "kernels/vec_math.h"

namespace mw::kernels {
namespace {

constexpr int64_t kTiles = kQueryBlock / kTileRows;

// The five products of a block, S = q k^T, dP = dout v^T, dV += P^T dout, dK += dS^T q, dQ += dS k,
// with P = exp(S - lse) and dS = P * (dP - delta), delta = sum(dout * out) [FlashAttention-2, Dao
// 2023, algorithm 2]. q carries the scale, dQ gets it at the end.
struct Backward {
  Backward(const Attention& attention, Scratch* scratch)
      : a(attention),
        keys(round_up(a.Sk, kKeyBlock)),
        Dn(round_up(a.D, kTileColumns)),
        mask(attention, scratch),
        dropout(attention, scratch),
        k_transposed(scratch->take<float>(keys * a.D)),
        v_transposed(scratch->take<float>(keys * a.D)),
        k(scratch->take<float>(keys * Dn)),
        dk(scratch->take<float>(keys * Dn)),
        dv(scratch->take<float>(keys * Dn)),
        q(scratch->take<float>(kQueryBlock * a.D)),
        dout(scratch->take<float>(kQueryBlock * a.D)),
        q_panels(scratch->take<float>(kQueryBlock * Dn)),
        dout_panels(scratch->take<float>(kQueryBlock * Dn)),
        dq(scratch->take<float>(kQueryBlock * Dn)),
        p(scratch->take<float>(kQueryBlock * kKeyBlock)),
        ds(scratch->take<float>(kQueryBlock * kKeyBlock)),
        lse(scratch->take<float>(kQueryBlock)),
        delta(scratch->take<float>(kQueryBlock)) {}

  const Attention& a;
  const int64_t keys;  // padded
  const int64_t Dn;    // D, padded
  AttentionMask mask;
  AttentionDropoutMask dropout;
  float* k_transposed;  // [keys / kTileColumns][D][kTileColumns]
  float* v_transposed;  // the same
  float* k;             // [Dn / kTileColumns][keys][kTileColumns]
  float* dk;            // [keys][Dn], running
  float* dv;            // [keys][Dn], running
  // A block of queries:
  float* q;            // [kQueryBlock][D], scaled
  float* dout;         // [kQueryBlock][D]
  float* q_panels;     // [Dn / kTileColumns][kQueryBlock][kTileColumns], scaled
  float* dout_panels;  // the same, of dout
  float* dq;           // [kQueryBlock][Dn], running, to be scaled
  float* p;            // [kQueryBlock][kKeyBlock], probabilities after dropout
  float* ds;           // [kQueryBlock][kKeyBlock]
  float* lse;          // [kQueryBlock], +inf for rows that see no key and for padding
  float* delta;        // [kQueryBlock]
};

void load_head(Backward& f, const Heads<const float>& k, const Heads<const float>& v, int64_t b,
               int64_t h) {
  const Attention& a = f.a;
  pack_transposed_panels(k.row(b, 0, h), k.row_stride, a.Sk, a.D, f.k_transposed);
  pack_transposed_panels(v.row(b, 0, h), v.row_stride, a.Sk, a.D, f.v_transposed);
  pack_panels(k.row(b, 0, h), k.row_stride, a.Sk, a.Sk, f.keys, a.D, 1.0f, f.k);
  std::fill_n(f.dk, f.keys * f.Dn, 0.0f);
  std::fill_n(f.dv, f.keys * f.Dn, 0.0f);
}

void load_queries(Backward& f, const Heads<const float>& q, const Heads<const float>& out,
                  const Heads<const float>& dout, const float* lse, int64_t b, int64_t h,
                  int64_t query, int64_t rows) {
  const Attention& a = f.a;
  const int64_t padded = round_up(rows, kTileRows);
  const float* q_rows = q.row(b, query, h);
  const float* dout_rows = dout.row(b, query, h);
  pack_rows(q_rows, q.row_stride, rows, padded, a.D, a.scale, f.q);
  pack_rows(dout_rows, dout.row_stride, rows, padded, a.D, 1.0f, f.dout);
  pack_panels(q_rows, q.row_stride, rows, padded, kQueryBlock, a.D, a.scale, f.q_panels);
  pack_panels(dout_rows, dout.row_stride, rows, padded, kQueryBlock, a.D, 1.0f, f.dout_panels);
  std::fill_n(f.dq, padded * f.Dn, 0.0f);
  for (int64_t i = 0; i < padded; ++i) {
    f.lse[i] = i < rows && lse[i] != -kInfinity ? lse[i] : kInfinity;
    f.delta[i] = 0.0f;
    if (i >= rows) continue;
    const float* out_row = out.row(b, query + i, h);
    const float* dout_row = f.dout + i * a.D;
    RowSum sum;
    for_each_sum_vec(a.D, [&](auto span, int64_t d, int slot) {
      sum.add_product(span.load(out_row + d), span.load(dout_row + d), slot);
    });
    f.delta[i] = static_cast<float>(sum.total());
  }
}

// Scores and dP of one query row to P and dS in place; f.dropout holds the row's words if kDrops.
template <bool kPartial, bool kDrops>
void score_gradients(Backward& f, int64_t query, int64_t row, int64_t key, int64_t width) {
  float* p = f.p + row * kKeyBlock;
  float* ds = f.ds + row * kKeyBlock;
  const vf lse = splat(f.lse[row]);
  const vf delta = splat(f.delta[row]);
  for (int64_t j = 0; j < width; j += kLanes) {
    vf e = exp_probability(load(p + j) - lse);
    vf dp = load(ds + j);
    if constexpr (kPartial) e = select(f.mask.visible(query + row, key + j), e, vf{});
    if constexpr (kDrops) {
      store(p + j, f.dropout.apply(e, j));
      dp = f.dropout.apply(dp, j);
    } else {
      store(p + j, e);
    }
    store(ds + j, e * (dp - delta));
  }
}

// S, dP, P, dS and dQ of one tile of queries against one block of keys; `query` is the query
// block's first query. Returns how many leading keys of the block the tile sees; p and ds are 0 for
// the others.
int64_t tile_step(Backward& f, int64_t h, int64_t query, int64_t tile, int64_t key) {
  const Attention& a = f.a;
  const Cover cover = f.mask.cover(query + tile, key);
  int64_t depth = cover == Cover::kFull ? std::min(kKeyBlock, a.Sk - key) : 0;
  if (cover == Cover::kPartial) {
    for (int64_t i = 0; i < kTileRows; ++i) {
      depth = std::max(depth, f.mask.extent(query + tile + i, key));
    }
  }
  for (int64_t j = 0; j < depth; j += kTileColumns) {
    tile_product<Start::kZero, false>(a.D, f.q + tile * a.D, a.D, f.k_transposed + (key + j) * a.D,
                                      f.p + tile * kKeyBlock + j, kKeyBlock);
    tile_product<Start::kZero, false>(a.D, f.dout + tile * a.D, a.D,
                                      f.v_transposed + (key + j) * a.D, f.ds + tile * kKeyBlock + j,
                                      kKeyBlock);
  }
  const int64_t width = round_up(depth, kLanes);
  for (int64_t row = tile; row < tile + kTileRows; ++row) {
    const bool partial = cover != Cover::kFull;
    if (f.dropout.active() && query + row < a.Sq) {
      f.dropout.draw(a, h, query + row, key, width);
      (partial ? score_gradients<true, true> : score_gradients<false, true>)(f, query, row, key,
                                                                             width);
    } else {
      (partial ? score_gradients<true, false> : score_gradients<false, false>)(f, query, row, key,
                                                                               width);
    }
    std::fill(f.p + row * kKeyBlock + width, f.p + (row + 1) * kKeyBlock, 0.0f);
    std::fill(f.ds + row * kKeyBlock + width, f.ds + (row + 1) * kKeyBlock, 0.0f);
  }
  for (int64_t d = 0; d < f.Dn && depth > 0; d += kTileColumns) {
    tile_product<Start::kOld, false>(depth, f.ds + tile * kKeyBlock, kKeyBlock,
                                     f.k + d * f.keys + key * kTileColumns, f.dq + tile * f.Dn + d,
                                     f.Dn);
  }
  return depth;
}

// One block of queries, `padded` rows with their padding, against one block of keys.
void block_step(Backward& f, int64_t h, int64_t query, int64_t padded, int64_t key) {
  int64_t depth[kTiles];
  int64_t deepest = 0;
  const int64_t tiles = padded / kTileRows;
  for (int64_t t = 0; t < tiles; ++t) {
    depth[t] = tile_step(f, h, query, t * kTileRows, key);
    deepest = std::max(deepest, depth[t]);
  }
  for (int64_t j = 0; j < deepest; j += kTileRows) {
    // The queries from the first to the last tile that sees these keys; what lies between and sees
    // none adds zeros.
    int64_t first = 0, last = tiles;
    while (depth[first] <= j) ++first;
    while (depth[last - 1] <= j) --last;
    const int64_t row = first * kTileRows;
    const int64_t rows = (last - first) * kTileRows;
    const float* p = f.p + row * kKeyBlock + j;
    const float* ds = f.ds + row * kKeyBlock + j;
    for (int64_t d = 0; d < f.Dn; d += kTileColumns) {
      const int64_t panel = d * kQueryBlock + row * kTileColumns;
      const int64_t at = (key + j) * f.Dn + d;
      tile_product<Start::kOld, true>(rows, p, kKeyBlock, f.dout_panels + panel, f.dv + at, f.Dn);
      tile_product<Start::kOld, true>(rows, ds, kKeyBlock, f.q_panels + panel, f.dk + at, f.Dn);
    }
  }
}

// x[rows][Dn] * factor to `rows` rows of a head.
void write_rows(const float* x, int64_t Dn, int64_t rows, int64_t D, float factor, float* target,
                int64_t target_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for_each_vec(0, D, [&](auto span, int64_t d) {
      span.store(target + r * target_stride + d, span.load(x + r * Dn + d) * factor);
    });
  }
}

}  // namespace

size_t attention_backward_scratch_bytes(const Attention& attention) {
  Scratch scratch(nullptr);
  Backward counted(attention, &scratch);
  return scratch.bytes();
}

void attention_backward(const Attention& attention, const Heads<const float>& q,
                        const Heads<const float>& k, const Heads<const float>& v,
                        const Heads<const float>& out, const float* lse_BHS,
                        const Heads<const float>& dout, const Heads<float>& dq,
                        const Heads<float>& dk, const Heads<float>& dv, void* scratch,
                        int64_t begin, int64_t end) {
  Scratch memory(scratch);
  Backward f(attention, &memory);
  const Attention& a = attention;
  const int64_t group = a.H / a.Hkv;
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t b = pair / a.Hkv;
    const int64_t h_kv = pair % a.Hkv;
    if (pair == begin || h_kv == 0) {
      f.mask.prepare(a, b);
      f.dropout.prepare(a, b);
    }
    load_head(f, k, v, b, h_kv);
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; ++h) {
      for (int64_t query = 0; query < a.Sq; query += kQueryBlock) {
        const int64_t rows = std::min(kQueryBlock, a.Sq - query);
        const int64_t padded = round_up(rows, kTileRows);
        load_queries(f, q, out, dout, lse_BHS + (b * a.H + h) * a.Sq + query, b, h, query, rows);
        for (int64_t key = 0; key < a.Sk; key += kKeyBlock) {
          block_step(f, h, query, padded, key);
        }
        write_rows(f.dq, f.Dn, rows, a.D, a.scale, dq.row(b, query, h), dq.row_stride);
      }
    }
    write_rows(f.dk, f.Dn, a.Sk, a.D, 1.0f, dk.row(b, 0, h_kv), dk.row_stride);
    write_rows(f.dv, f.Dn, a.Sk, a.D, 1.0f, dv.row(b, 0, h_kv), dv.row_stride);
  }
}

}  // namespace mw::kernels
