#include "data/sample_order.h"

#include <bit>

#include "base/error.h"
#include "base/rng.h"

namespace mw::data {

Permutation::Permutation(uint64_t seed, uint64_t epoch, int64_t size)
    : size_(static_cast<uint64_t>(size)) {
  MW_CHECK(size > 0, "a permutation of {}", size);
  const int bits = std::bit_width(size_ - 1);
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  const RngKey key{seed, epoch, rng_site("data.sample_order")};
  for (int round = 0; round < kRounds; round += 2) {
    uint32_t words[4];
    random_u32x4(key, static_cast<uint64_t>(round / 2), words);
    round_keys_[round] = uint64_t{words[1]} << 32 | words[0];
    round_keys_[round + 1] = uint64_t{words[3]} << 32 | words[2];
  }
}

uint64_t Permutation::encrypt(uint64_t block) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = block >> half_bits_, right = block & mask;
  for (const uint64_t key : round_keys_) {
    const uint64_t next = left ^ (mix_bits(right ^ key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t index) const {
  MW_CHECK(index >= 0 && static_cast<uint64_t>(index) < size_, "{} of {}", index, size_);
  // A bijection of the larger domain returns to [0, size) on the cycle of every index that starts
  // there.
  uint64_t block = static_cast<uint64_t>(index);
  do block = encrypt(block);
  while (block >= size_);
  return static_cast<int64_t>(block);
}

SampleOrder::SampleOrder(uint64_t seed, int64_t num_samples)
    : seed_(seed), num_samples_(num_samples) {
  MW_CHECK(num_samples > 0, "an order of {} samples", num_samples);
}

SampleOrder SampleOrder::sequential(int64_t num_samples) {
  SampleOrder order(0, num_samples);
  order.shuffled_ = false;
  return order;
}

int64_t SampleOrder::sample(int64_t global_index) const {
  MW_CHECK(global_index >= 0, "sample index {}", global_index);
  const int64_t index = global_index % num_samples_;
  if (!shuffled_) return index;
  return Permutation(seed_, static_cast<uint64_t>(epoch(global_index)), num_samples_)(index);
}

}  // namespace mw::data
