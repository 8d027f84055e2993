// In which order samples are drawn: a function of (seed, epoch, index) alone.
//
// Any layout, any batch split and any restart finds the sample of a global index in O(1), without a
// shuffled list in memory or on disk.
#pragma once

#include <cstdint>

namespace mw::data {

// A pseudo-random bijection of [0, size), keyed by (seed, epoch): a Feistel network over the least
// even number of bits that holds `size`, walked until it lands inside [Black, Rogaway: "Ciphers
// with arbitrary finite domains", CT-RSA 2002]; fewer than four steps on average.
class Permutation {
 public:
  // REQUIRES: size > 0.
  Permutation(uint64_t seed, uint64_t epoch, int64_t size);
  // REQUIRES: 0 <= index < size.
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 8;
  uint64_t encrypt(uint64_t block) const;

  uint64_t size_;
  int half_bits_;
  uint64_t round_keys_[kRounds];
};

class SampleOrder {
 public:
  // Every epoch holds every sample once, in an order of its own. REQUIRES: num_samples > 0.
  SampleOrder(uint64_t seed, int64_t num_samples);
  // 0, 1, 2, …, 0, 1, …: for evaluation.
  static SampleOrder sequential(int64_t num_samples);

  // The sample of the global index, which counts on over epochs. REQUIRES: global_index >= 0.
  int64_t sample(int64_t global_index) const;
  int64_t epoch(int64_t global_index) const { return global_index / num_samples_; }
  int64_t num_samples() const { return num_samples_; }

 private:
  uint64_t seed_;
  int64_t num_samples_;
  bool shuffled_ = true;
};

}  // namespace mw::data
