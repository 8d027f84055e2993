#include "base/hash.h"

#include <fmt/core.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mw {

struct Hasher128::State {
  XXH3_state_t xxh3;  // asks for an alignment of 64
};

uint64_t xxh64(std::string_view bytes, uint64_t seed) {
  return XXH64(bytes.data(), bytes.size(), seed);
}

std::string Hash128::hex() const { return mw::hex(high) + mw::hex(low); }

Hash128 xxh3_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Hash128 xxh3_128(std::string_view bytes) { return xxh3_128(std::as_bytes(std::span(bytes))); }

Hasher128::Hasher128() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
Hasher128::~Hasher128() = default;
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;

void Hasher128::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

void Hasher128::update(std::string_view bytes) { update(std::as_bytes(std::span(bytes))); }

Hash128 Hasher128::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return {hash.high64, hash.low64};
}

std::string hex(uint64_t number) { return fmt::format("{:016x}", number); }

}  // namespace mw
