#include "data/batch.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace mw::data {
namespace {

void check_vocabulary(const TokenSource& source, int64_t offset, int64_t count,
                      const int32_t* tokens, int64_t vocab_size) {
  if (source.max_token() < vocab_size) return;
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] >= vocab_size) {
      throw_error(
          "{}: token {} is {}, must be below the model's vocabulary of {}; was the corpus made "
          "with another tokenizer?",
          source.name(), offset + i, tokens[i], vocab_size);
    }
  }
}

}  // namespace

SampleSplit split_samples(const TokenSource& source, int64_t sequence_length,
                          double valid_fraction) {
  MW_CHECK(sequence_length > 0, "sequence_length {}", sequence_length);
  if (!(valid_fraction >= 0 && valid_fraction < 1)) {
    throw_error("data.valid_fraction={} must be at least 0 and below 1", valid_fraction);
  }
  const int64_t tokens = source.num_tokens();
  const int64_t parts = valid_fraction > 0 ? 2 : 1;
  // n samples in one part take n*S + 1 tokens.
  const int64_t total = (tokens - parts) / sequence_length;
  if (tokens < parts || total < parts) {
    const int64_t longest = tokens / parts - 1;
    throw_error(
        "{}: has {} tokens, must have at least {} for {} of data.seq_len={} (a sample is one token "
        "longer); {}",
        source.name(), tokens, parts * (sequence_length + 1),
        parts == 1 ? "one sample" : "one training and one held-out sample", sequence_length,
        longest > 0 ? fmt::format("use a longer text or data.seq_len={} or less", longest)
                    : "use a longer text");
  }
  SampleSplit split;
  const int64_t wanted = std::llround(valid_fraction * static_cast<double>(total));
  const int64_t valid = parts == 1 ? 0 : std::clamp<int64_t>(wanted, 1, total - 1);
  split.train = {&source, sequence_length, 0, total - valid};
  split.valid = {&source, sequence_length, (total - valid) * sequence_length + 1, valid};
  return split;
}

void fill_batch(const SampleSet& samples, const SampleOrder& order, int64_t first_index,
                int64_t count, int64_t vocab_size, const BatchBuffers& out) {
  MW_CHECK(order.num_samples() == samples.num_samples, "an order of {} for {} samples",
           order.num_samples(), samples.num_samples);
  const TokenSource& source = *samples.source;
  const int64_t S = samples.sequence_length;
  for (int64_t b = 0; b < count; ++b) {
    const int64_t sample = order.sample(first_index + b);
    const int64_t offset = samples.first_token + sample * S;
    int32_t* tokens = out.tokens_BS + b * S;
    int32_t* targets = out.targets_BS + b * S;
    source.read(offset, S, tokens);
    source.read(offset + S, 1, targets + S - 1);
    std::copy(tokens + 1, tokens + S, targets);
    check_vocabulary(source, offset, S, tokens, vocab_size);
    check_vocabulary(source, offset + S, 1, targets + S - 1, vocab_size);
    if (out.sample_ids_B) out.sample_ids_B[b] = sample;
  }
}

}  // namespace mw::data
