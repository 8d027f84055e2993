// gemm() after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008),
// in the form of BLIS [Van Zee, van de Geijn 2015]: a part of B is packed for the level 3 cache,
// blocks of A for level 2, and tiles of C run along them.
#include "kernels/gemm.h"

#include <algorithm>
#include <cmath>

#include "kernels/gemm_pack.h"
#include "kernels/gemm_tile.h"

namespace mw::kernels {
namespace {

// A panel of B (kGemmChunk x kGemmColumns) fills half of a level 1 cache of 32 KiB, a block of A
// (kRowBlock x kGemmChunk) less than half of a level 2 cache of 512 KiB.
constexpr int64_t kRowBlock = 192 / kGemmRows * kGemmRows;
constexpr int64_t kColumnBlock = 2048;
// Elements of C whose sums over several chunks wait in scratch to be added to C.
constexpr int64_t kWaitingSums = int64_t{1} << 20;
// With fewer panels of B than this, packing A costs more than reading it in place.
constexpr int64_t kPanelsWorthPacking = 8;

int64_t tiles(int64_t n, int64_t size) { return (n + size - 1) / size; }

// How a part of C is cut: for each block of columns and rows all chunks of K, one after another.
struct Cut {
  int64_t columns, rows;
  bool waits;       // the sums of all chunks but the last are kept beside C
  int64_t waiting;  // room for them: at least rows * columns, and no less than a smaller part has
};

Cut cut_of(int64_t M, int64_t N, int64_t K, bool accumulates) {
  Cut cut = {std::min(N, kColumnBlock), M, accumulates && K > kGemmChunk, 0};
  if (!cut.waits) return cut;
  cut.rows = std::min(M, round_up(kWaitingSums / cut.columns, kRowBlock));
  cut.waiting = cut.columns * std::min(M, kWaitingSums / cut.columns + kRowBlock);
  return cut;
}

struct Buffers {
  float* a;
  float* b;
  float* waiting;
};

Buffers take_buffers(Scratch& scratch, const Cut& cut, int64_t K) {
  const int64_t depth = std::min(K, kGemmChunk);
  Buffers buffers;
  buffers.b = scratch.take<float>(round_up(cut.columns, kGemmColumns) * depth);
  buffers.a = scratch.take<float>(round_up(std::min(cut.rows, kRowBlock), kGemmRows) * depth +
                                  kGemmPackSlack);
  buffers.waiting = scratch.take<float>(cut.waiting);
  return buffers;
}

const float* at(const GemmOperand& x, int64_t row, int64_t column) {
  return x.data + (x.transposed ? column * x.stride + row : row * x.stride + column);
}

// What the tiles of one block of rows run over.
struct Block {
  int64_t rows, columns, depth;
  const float* a;
  int64_t a_panel, a_stride;  // elements from panel to panel, and inside of one
  bool a_packed;              // elements of one k are neighbours
  const float* b;             // packed panels
  float* c;
  int64_t c_stride;
  const float* partial;  // see GemmTile
  int64_t partial_stride;
  bool adds;
};

void run_tiles(const Block& block) {
  GemmTile tile = {.depth = block.depth,
                   .a = nullptr,
                   .a_stride = block.a_stride,
                   .b = block.b,
                   .c = nullptr,
                   .c_stride = block.c_stride,
                   .partial = nullptr,
                   .partial_stride = block.partial_stride,
                   .columns = 0,
                   .adds = block.adds};
  const auto& kernels = block.a_packed ? kGemmTiles<true> : kGemmTiles<false>;
  for (int64_t j = 0; j < block.columns; j += kGemmColumns) {
    tile.columns = static_cast<int>(std::min(kGemmColumns, block.columns - j));
    tile.a = block.a;
    for (int64_t i = 0; i < block.rows; i += kGemmRows) {
      const int64_t rows = std::min(kGemmRows, block.rows - i);
      tile.c = block.c + i * block.c_stride + j;
      if (block.partial != nullptr) tile.partial = block.partial + i * block.partial_stride + j;
      kernels[static_cast<size_t>(rows - 1)](tile);
      tile.a += block.a_panel;
    }
    tile.b += block.depth * kGemmColumns;
  }
}

void clear(const Gemm& g, const GemmPart& part) {
  for (int64_t i = part.row_begin; i < part.row_end; ++i) {
    float* row = g.c + i * g.c_stride;
    std::fill(row + part.column_begin, row + part.column_end, 0.0f);
  }
}

// Adds the chunk of K that begins at k to the sums of a block of C.
void add_chunk(const Gemm& g, const Cut& cut, const GemmPart& part, int64_t k,
               const Buffers& buffers) {
  const int64_t columns = part.column_end - part.column_begin;
  const int64_t depth = std::min(kGemmChunk, g.K - k);
  const bool last = k + depth == g.K;
  const bool packs = g.a.transposed || tiles(columns, kGemmColumns) >= kPanelsWorthPacking;
  pack_block<kGemmColumns>(at(g.b, k, part.column_begin), g.b.stride, g.b.transposed, columns,
                           depth, buffers.b);
  for (int64_t i = part.row_begin; i < part.row_end; i += kRowBlock) {
    const int64_t rows = std::min(kRowBlock, part.row_end - i);
    const float* a = at(g.a, i, k);
    if (packs) pack_block<kGemmRows>(a, g.a.stride, !g.a.transposed, rows, depth, buffers.a);
    float* c = g.c + i * g.c_stride + part.column_begin;
    float* waiting = buffers.waiting + (i - part.row_begin) * cut.columns;
    float* sums = cut.waits ? waiting : c;
    const int64_t sums_stride = cut.waits ? cut.columns : g.c_stride;
    run_tiles({.rows = rows,
               .columns = columns,
               .depth = depth,
               .a = packs ? buffers.a : a,
               .a_panel = kGemmRows * (packs ? depth : g.a.stride),
               .a_stride = packs ? kGemmRows : g.a.stride,
               .a_packed = packs,
               .b = buffers.b,
               .c = last ? c : sums,
               .c_stride = last ? g.c_stride : sums_stride,
               .partial = k > 0 ? sums : nullptr,
               .partial_stride = sums_stride,
               .adds = last && g.accumulates});
  }
}

}  // namespace

GemmPart GemmGrid::part(int64_t i) const {
  const int64_t row = i / columns, column = i % columns;
  const auto border = [](int64_t n, int64_t tile, int64_t index, int64_t count) {
    return std::min(n, tiles(n, tile) * index / count * tile);
  };
  return {border(M, kGemmRows, row, rows), border(M, kGemmRows, row + 1, rows),
          border(N, kGemmColumns, column, columns), border(N, kGemmColumns, column + 1, columns)};
}

GemmGrid gemm_grid(int64_t M, int64_t N, int64_t parts) {
  const int64_t row_tiles = tiles(M, kGemmRows), column_tiles = tiles(N, kGemmColumns);
  GemmGrid best = {M, N, 1, 1};
  const auto cost = [&](const GemmGrid& grid) {
    // The largest part's tiles, and a little for what it packs.
    const int64_t rows = tiles(row_tiles, grid.rows), columns = tiles(column_tiles, grid.columns);
    const int64_t area = rows * columns * kGemmRows * kGemmColumns;
    return 16 * area + 64 * (rows * kGemmRows + columns * kGemmColumns) * 8;
  };
  for (int64_t rows = 1; rows <= std::min(parts, row_tiles); ++rows) {
    const int64_t columns = std::min(parts / rows, column_tiles);
    const GemmGrid grid = {M, N, rows, std::max<int64_t>(columns, 1)};
    if (cost(grid) < cost(best)) best = grid;
  }
  return best;
}

size_t gemm_scratch_bytes(int64_t M, int64_t N, int64_t K, bool accumulates) {
  Scratch scratch(nullptr);
  take_buffers(scratch, cut_of(M, N, K, accumulates), K);
  return scratch.bytes();
}

void gemm(const Gemm& g, const GemmPart& part, void* scratch_memory) {
  const int64_t M = part.row_end - part.row_begin, N = part.column_end - part.column_begin;
  if (M <= 0 || N <= 0) return;
  if (g.K <= 0) {
    if (!g.accumulates) clear(g, part);
    return;
  }
  Scratch scratch(scratch_memory);
  const Cut cut = cut_of(M, N, g.K, g.accumulates);
  const Buffers buffers = take_buffers(scratch, cut, g.K);
  for (int64_t j = part.column_begin; j < part.column_end; j += cut.columns) {
    for (int64_t i = part.row_begin; i < part.row_end; i += cut.rows) {
      const GemmPart block = {i, std::min(i + cut.rows, part.row_end), j,
                              std::min(j + cut.columns, part.column_end)};
      for (int64_t k = 0; k < g.K; k += kGemmChunk) add_chunk(g, cut, block, k, buffers);
    }
  }
}

void gemm(const Gemm& g, void* scratch) { gemm(g, {0, g.M, 0, g.N}, scratch); }

}  // namespace mw::kernels
