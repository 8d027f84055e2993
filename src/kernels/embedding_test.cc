#include "kernels/embedding.h"

#include "kernels/test_arrays.h"

namespace mw::kernels {
namespace {

using namespace testing;

constexpr int64_t kTokens = 100;
constexpr int64_t kVocab = 11;
constexpr int64_t kWidth = 101;

template <typename Token>
std::vector<Token> tokens() {
  std::vector<Token> t;
  for (int64_t i = 0; i < kTokens; ++i) t.push_back(static_cast<Token>(i * 5 % 23));
  return t;
}

}  // namespace

TEST_CASE("embedding gathers the words of its shard and zeros for the others") {
  const Floats table = normal(kVocab * kWidth, 1);
  const auto token = tokens<int64_t>();
  const auto token32 = tokens<int32_t>();
  const int64_t vocab_begin = 7;
  const Floats y = split_independent(kTokens, {Floats(kTokens * kWidth, 9.0f)},
                                     [&](int64_t begin, int64_t end, auto& out) {
                                       embedding(token.data(), table.data(), vocab_begin, kVocab,
                                                 kWidth, out[0].data(), begin, end);
                                     })[0];
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t row = token[t] - vocab_begin;
    for (int64_t d = 0; d < kWidth; ++d) {
      const float want = row >= 0 && row < kVocab ? table[row * kWidth + d] : 0.0f;
      CHECK(y[t * kWidth + d] == want);
    }
  }
  Floats y32(kTokens * kWidth);
  embedding(token32.data(), table.data(), vocab_begin, kVocab, kWidth, y32.data(), 0, kTokens);
  CHECK(same_bits(y, y32));
}

TEST_CASE("embedding gradients add tokens in order, whatever part of the table a thread owns") {
  const Floats dy = normal(kTokens * kWidth, 2);
  const auto token = tokens<int64_t>();
  const int64_t vocab_begin = 7;
  Floats want(kVocab * kWidth);
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t row = token[t] - vocab_begin;
    if (row < 0 || row >= kVocab) continue;
    for (int64_t d = 0; d < kWidth; ++d) want[row * kWidth + d] += dy[t * kWidth + d];
  }
  std::vector<TokenPlace> places(kTokens), places32(kTokens);
  const int64_t count = sort_tokens(token.data(), kTokens, vocab_begin, kVocab, places.data());
  const auto token32 = tokens<int32_t>();
  CHECK(sort_tokens(token32.data(), kTokens, vocab_begin, kVocab, places32.data()) == count);
  CHECK(places == places32);
  const Floats old = normal(kVocab * kWidth, 3);
  for (const bool accumulate : {false, true}) {
    if (accumulate) {
      for (size_t i = 0; i < want.size(); ++i) want[i] = old[i] + want[i];
    }
    const auto by_columns =
        split_independent(kWidth, {old}, [&](int64_t begin, int64_t end, auto& out) {
          embedding_backward(places.data(), count, dy.data(), kWidth, accumulate, out[0].data(),
                             {0, kVocab, begin, end});
        });
    const auto by_rows =
        split_independent(kVocab, {old}, [&](int64_t begin, int64_t end, auto& out) {
          embedding_backward(places.data(), count, dy.data(), kWidth, accumulate, out[0].data(),
                             {begin, end, 0, kWidth});
        });
    CHECK(same_bits(by_columns[0], want));
    CHECK(same_bits(by_rows[0], want));
  }
}

}  // namespace mw::kernels
