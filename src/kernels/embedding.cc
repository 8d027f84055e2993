#include "kernels/embedding.h"

#include <algorithm>

#include "kernels/column_sum.h"
#include "kernels/vec.h"

namespace mw::kernels {
namespace {

template <typename Token>
void gather(const Token* token_T, const float* table_VD, int64_t vocab_begin, int64_t V, int64_t D,
            float* y_TD, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = static_cast<int64_t>(token_T[t]) - vocab_begin;
    float* y = y_TD + t * D;
    if (row >= 0 && row < V) {
      std::copy_n(table_VD + row * D, D, y);
    } else {
      std::fill_n(y, D, 0.0f);
    }
  }
}

template <typename Token>
int64_t sort(const Token* token_T, int64_t T, int64_t vocab_begin, int64_t V, TokenPlace* places) {
  int64_t count = 0;
  for (int64_t t = 0; t < T; ++t) {
    const int64_t row = static_cast<int64_t>(token_T[t]) - vocab_begin;
    if (row < 0 || row >= V) continue;
    places[count++] = static_cast<TokenPlace>(row) << 32 | static_cast<TokenPlace>(t);
  }
  std::sort(places, places + count);
  return count;
}

int64_t row_of(TokenPlace place) { return static_cast<int64_t>(place >> 32); }
int64_t token_of(TokenPlace place) { return static_cast<int64_t>(place & 0xffffffff); }

// Long sums are sums of runs, as those of columns are (column_sum.h).
const TokenPlace* end_of_run(const TokenPlace* run, const TokenPlace* end) {
  return end - run > kSumRun ? run + kSumRun : end;
}

// Sums dy's rows at the places into w, whole cache lines at a time.
void sum_rows(const TokenPlace* begin, const TokenPlace* end, const float* dy_TD, int64_t D,
              bool accumulate, float* w, int64_t column_begin, int64_t column_end) {
  constexpr int kVectors = 4;
  int64_t c = column_begin;
  for (; c + kVectors * kLanes <= column_end; c += kVectors * kLanes) {
    vf sum[kVectors] = {};
    for (const TokenPlace* run = begin; run != end;) {
      vf of_run[kVectors] = {};
      for (const TokenPlace* run_end = end_of_run(run, end); run != run_end; ++run) {
        const float* dy = dy_TD + token_of(*run) * D + c;
        for (int v = 0; v < kVectors; ++v) of_run[v] += load(dy + v * kLanes);
      }
      for (int v = 0; v < kVectors; ++v) sum[v] += of_run[v];
    }
    for (int v = 0; v < kVectors; ++v) {
      float* at = w + c + v * kLanes;
      store(at, accumulate ? load(at) + sum[v] : sum[v]);
    }
  }
  for_each_vec(c, column_end, [&](auto span, int64_t i) {
    vf sum{};
    for (const TokenPlace* run = begin; run != end;) {
      vf of_run{};
      for (const TokenPlace* run_end = end_of_run(run, end); run != run_end; ++run)
        of_run += span.load(dy_TD + token_of(*run) * D + i);
      sum += of_run;
    }
    span.store(w + i, accumulate ? span.load(w + i) + sum : sum);
  });
}

}  // namespace

void embedding(const int32_t* token_T, const float* table_VD, int64_t vocab_begin, int64_t V,
               int64_t D, float* y_TD, int64_t begin, int64_t end) {
  gather(token_T, table_VD, vocab_begin, V, D, y_TD, begin, end);
}
void embedding(const int64_t* token_T, const float* table_VD, int64_t vocab_begin, int64_t V,
               int64_t D, float* y_TD, int64_t begin, int64_t end) {
  gather(token_T, table_VD, vocab_begin, V, D, y_TD, begin, end);
}

int64_t sort_tokens(const int32_t* token_T, int64_t T, int64_t vocab_begin, int64_t V,
                    TokenPlace* places) {
  return sort(token_T, T, vocab_begin, V, places);
}
int64_t sort_tokens(const int64_t* token_T, int64_t T, int64_t vocab_begin, int64_t V,
                    TokenPlace* places) {
  return sort(token_T, T, vocab_begin, V, places);
}

void embedding_backward(const TokenPlace* places, int64_t count, const float* dy_TD, int64_t D,
                        bool accumulate, float* dtable_VD, const TablePart& part) {
  if (part.column_begin >= part.column_end) return;
  if (!accumulate) {
    for (int64_t row = part.row_begin; row < part.row_end; ++row)
      std::fill(dtable_VD + row * D + part.column_begin, dtable_VD + row * D + part.column_end,
                0.0f);
  }
  const TokenPlace* const end = places + count;
  for (const TokenPlace *first = places, *last; first != end; first = last) {
    const int64_t row = row_of(*first);
    last = first + 1;
    while (last != end && row_of(*last) == row) ++last;
    if (row < part.row_begin || row >= part.row_end) continue;
    sum_rows(first, last, dy_TD, D, accumulate, dtable_VD + row * D, part.column_begin,
             part.column_end);
  }
}

}  // namespace mw::kernels
