// Samples of a fixed length cut from a corpus, and batches of them.
//
// B samples of a batch, S sequence_length.
#pragma once

#include <cstdint>

#include "data/sample_order.h"
#include "data/token_source.h"

namespace mw::data {

// Sample i is the tokens [first_token + i*S, … + S + 1): S inputs, and S targets that are the
// inputs one further. Samples cross documents, as Megatron-LM's GPT data set lets them.
struct SampleSet {
  const TokenSource* source = nullptr;
  int64_t sequence_length = 0;
  int64_t first_token = 0;
  int64_t num_samples = 0;
};

struct SampleSplit {
  SampleSet train;
  SampleSet valid;  // no samples where the fraction is 0
};

// The last round(valid_fraction * samples) samples of the corpus, at least one, are held out; no
// token is in both parts. Throws Error where the corpus is too short for one sample in every part,
// or the fraction is not in [0, 1). REQUIRES: sequence_length > 0; the source outlives the split.
SampleSplit split_samples(const TokenSource& source, int64_t sequence_length,
                          double valid_fraction);

struct BatchBuffers {
  int32_t* tokens_BS;
  int32_t* targets_BS;
  int64_t* sample_ids_B;  // the sample's number in its set; may be null
};

// The samples of the global indices first_index .. first_index + count - 1, in that order. Throws
// Error for a token that is not below vocab_size.
void fill_batch(const SampleSet& samples, const SampleOrder& order, int64_t first_index,
                int64_t count, int64_t vocab_size, const BatchBuffers& out);

}  // namespace mw::data
