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

// Where the tokens of a shard lie, ordered by word and then by place: the row of the table in the
// upper 32 bits, the token's index in the lower ones.
using TokenPlace = uint64_t;

// Writes at most T places and returns how many. REQUIRES: T and V below 2^31.
int64_t sort_tokens(const int32_t* token_T, int64_t T, int64_t vocab_begin, int64_t V,
                    TokenPlace* places);
int64_t sort_tokens(const int64_t* token_T, int64_t T, int64_t vocab_begin, int64_t V,
                    TokenPlace* places);

// Part of the table that one thread of embedding_backward owns.
struct TablePart {
  int64_t row_begin, row_end;        // within [0, V)
  int64_t column_begin, column_end;  // within [0, D)
};

// Within one part, dtable[row] (+)= the sum of the row's dy[token] from +0 in ascending order of
// the tokens. With `accumulate` the sum is added as a whole, and a row without a token stays as it
// is.
void embedding_backward(const TokenPlace* places, int64_t count, const float* dy_TD, int64_t D,
                        bool accumulate, float* dtable_VD, const TablePart& part);

}  // namespace mw::kernels
