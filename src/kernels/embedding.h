// Rows of a table by token, forward and backward, for a table that may be a shard of the
// vocabulary: it holds the words [vocab_begin, vocab_begin + V).
//
// T tokens, V local words, D model
#pragma once

#include <cstdint>

namespace mw::kernels {

// y[t] = table[token[t] - vocab_begin], zeros where the word is not in this shard. Tokens [begin,
// end).
void embedding(const int32_t* token_T, const float* table_VD, int64_t vocab_begin, int64_t V,
               int64_t D, float* y_TD, int64_t begin, int64_t end);
void embedding(const int64_t* token_T, const float* table_VD, int64_t vocab_begin, int64_t V,
               int64_t D, float* y_TD, int64_t begin, int64_t end);

// Part of the table that one thread of embedding_backward owns.
struct TablePart {
  int64_t row_begin, row_end;        // within [0, V)
  int64_t column_begin, column_end;  // within [0, D)
};

// dtable[token[t] - vocab_begin] += dy[t] for t = 0 .. T-1 in ascending order, within one part.
// Without `accumulate` the part is zeroed first.
void embedding_backward(const int32_t* token_T, const float* dy_TD, int64_t T, int64_t vocab_begin,
                        int64_t D, bool accumulate, float* dtable_VD, const TablePart& part);
void embedding_backward(const int64_t* token_T, const float* dy_TD, int64_t T, int64_t vocab_begin,
                        int64_t D, bool accumulate, float* dtable_VD, const TablePart& part);

}  // namespace mw::kernels
