#include "kernels/random_words.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/vec.h"

namespace mw::kernels {
namespace {

constexpr int kBlocks = 8;  // Philox blocks of one batch
constexpr int kWords = 4 * kBlocks;

#if defined(__AVX2__)

// Four Philox counters, one in each 64-bit lane; only the low 32 bits of a lane count.
struct Counters {
  __m256i c0, c1, c2, c3;
};

MW_INLINE Counters philox_round(const Counters& c, __m256i k0, __m256i k1) {
  const __m256i p0 = _mm256_mul_epu32(c.c0, _mm256_set1_epi64x(0xD2511F53));
  const __m256i p1 = _mm256_mul_epu32(c.c2, _mm256_set1_epi64x(0xCD9E8D57));
  return {_mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c.c1), k0), p1,
          _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c.c3), k1), p0};
}

// Lanes of four words to four consecutive blocks of memory.
MW_INLINE void store_blocks(const Counters& c, uint32_t* words) {
  const __m256i low = _mm256_set1_epi64x(0xffffffff);
  const __m256i w01 = _mm256_or_si256(_mm256_and_si256(c.c0, low), _mm256_slli_epi64(c.c1, 32));
  const __m256i w23 = _mm256_or_si256(_mm256_and_si256(c.c2, low), _mm256_slli_epi64(c.c3, 32));
  const __m256i b02 = _mm256_unpacklo_epi64(w01, w23);
  const __m256i b13 = _mm256_unpackhi_epi64(w01, w23);
  auto* out = reinterpret_cast<__m256i*>(words);
  _mm256_storeu_si256(out, _mm256_permute2x128_si256(b02, b13, 0x20));
  _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(b02, b13, 0x31));
}

void philox_batch(const uint32_t key[2], uint64_t step, uint64_t group, uint32_t* words) {
  const __m256i lanes = _mm256_set_epi64x(3, 2, 1, 0);
  const __m256i c2 = _mm256_set1_epi64x(static_cast<int64_t>(step & 0xffffffff));
  const __m256i c3 = _mm256_set1_epi64x(static_cast<int64_t>(step >> 32));
  Counters state[2];
  for (int half = 0; half < 2; ++half) {
    const __m256i base = _mm256_set1_epi64x(static_cast<int64_t>(group + 4 * half));
    const __m256i counter = _mm256_add_epi64(base, lanes);
    state[half] = {counter, _mm256_srli_epi64(counter, 32), c2, c3};
  }
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(k0);
    const __m256i key1 = _mm256_set1_epi64x(k1);
    state[0] = philox_round(state[0], key0, key1);
    state[1] = philox_round(state[1], key0, key1);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  store_blocks(state[0], words);
  store_blocks(state[1], words + kWords / 2);
}

#else

void philox_batch(const uint32_t key[2], uint64_t step, uint64_t group, uint32_t* words) {
  for (int block = 0; block < kBlocks; ++block) {
    const uint64_t counter = group + static_cast<uint64_t>(block);
    const uint32_t c[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                           static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)};
    philox4x32_10(c, key, words + 4 * block);
  }
}

#endif

}  // namespace

void random_words(const RngKey& key, uint64_t first, int64_t count, uint32_t* words) {
  const uint64_t mixed = mix_bits(key.seed ^ mix_bits(key.site));
  const uint32_t philox_key[2] = {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
  uint64_t group = first / 4;
  int64_t skip = static_cast<int64_t>(first % 4);  // words of the first block before `first`
  for (int64_t done = 0; done < count; group += kBlocks) {
    const int64_t n = std::min<int64_t>(kWords - skip, count - done);
    if (n == kWords) {
      philox_batch(philox_key, key.step, group, words + done);
    } else {
      uint32_t batch[kWords];
      philox_batch(philox_key, key.step, group, batch);
      std::memcpy(words + done, batch + skip, sizeof(uint32_t) * static_cast<size_t>(n));
    }
    done += n;
    skip = 0;
  }
}

KeepRule keep_rule(double rate) {
  const double threshold = std::ceil(rate * 0x1p32);
  return {static_cast<uint32_t>(std::min(threshold, 0x1p32 - 1.0)),
          static_cast<float>(1.0 / (1.0 - rate))};
}

}  // namespace mw::kernels
