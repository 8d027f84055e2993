// Counter-based random numbers: a number is a function of (seed, step, site name, global index) and
// of nothing else, so that it does not depend on the layout, on the order of work or on a restart.
//
// Philox4x32-10 [Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011]. The 64-bit Philox key is a hash of (seed, site); the 128-bit counter is (group, step).
#pragma once

#include <cstdint>
#include <string_view>

namespace mw {

struct RngKey {
  uint64_t seed = 0;
  uint64_t step = 0;  // the training step, or the epoch
  uint64_t site = 0;  // rng_site() of the place in the model that draws, e.g. "h.3.attn.dropout"
};

// The site's number: 64-bit FNV-1a of its name.
constexpr uint64_t rng_site(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// A bijection of 64-bit words with full avalanche (the finalizer of SplitMix64).
constexpr uint64_t mix_bits(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The bare block function, for its published test vectors.
constexpr void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

// The words of the indices 4*group .. 4*group+3.
constexpr void random_u32x4(const RngKey& key, uint64_t group, uint32_t out[4]) {
  const uint64_t mixed = mix_bits(key.seed ^ mix_bits(key.site));
  const uint32_t philox_key[2] = {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
  const uint32_t counter[4] = {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                               static_cast<uint32_t>(key.step),
                               static_cast<uint32_t>(key.step >> 32)};
  philox4x32_10(counter, philox_key, out);
}

// Word index%4 of group index/4.
constexpr uint32_t random_u32(const RngKey& key, uint64_t index) {
  uint32_t words[4] = {};
  random_u32x4(key, index / 4, words);
  return words[index % 4];
}

// The float of a word: uniform over the multiples of 2^-24 in [0, 1).
constexpr float uniform_of(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

constexpr float random_uniform(const RngKey& key, uint64_t index) {
  return uniform_of(random_u32(key, index));
}

// Standard normal number `index` (Box-Muller in double, rounded once). Two neighbours share their
// two words: the numbers 2k and 2k+1 come from the words 2k and 2k+1.
float random_normal(const RngKey& key, uint64_t index);
// random_normal of first .. first+count-1, at half the cost.
void fill_normal(const RngKey& key, uint64_t first, int64_t count, float* out);

}  // namespace mw
