#include "kernels/embedding.h"

#include <algorithm>

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
void scatter_add(const Token* token_T, const float* dy_TD, int64_t T, int64_t vocab_begin,
                 int64_t D, bool accumulate, float* dtable_VD, const TablePart& part) {
  if (!accumulate) {
    for (int64_t row = part.row_begin; row < part.row_end; ++row) {
      float* w = dtable_VD + row * D;
      std::fill(w + part.column_begin, w + std::max(part.column_begin, part.column_end), 0.0f);
    }
  }
  for (int64_t t = 0; t < T; ++t) {
    const int64_t row = static_cast<int64_t>(token_T[t]) - vocab_begin;
    if (row < part.row_begin || row >= part.row_end) continue;
    const float* dy = dy_TD + t * D;
    float* w = dtable_VD + row * D;
    for_each_vec(part.column_begin, part.column_end, [&](auto span, int64_t i) {
      span.store(w + i, span.load(w + i) + span.load(dy + i));
    });
  }
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

void embedding_backward(const int32_t* token_T, const float* dy_TD, int64_t T, int64_t vocab_begin,
                        int64_t D, bool accumulate, float* dtable_VD, const TablePart& part) {
  scatter_add(token_T, dy_TD, T, vocab_begin, D, accumulate, dtable_VD, part);
}
void embedding_backward(const int64_t* token_T, const float* dy_TD, int64_t T, int64_t vocab_begin,
                        int64_t D, bool accumulate, float* dtable_VD, const TablePart& part) {
  scatter_add(token_T, dy_TD, T, vocab_begin, D, accumulate, dtable_VD, part);
}

}  // namespace mw::kernels
