// Fast checksums (xxHash, not cryptographic). The values are part of file formats: they never
// change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mw {

uint64_t xxh64(std::string_view bytes, uint64_t seed = 0);

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  // 32 lower-case hex digits, high word first (as `xxhsum -H2` prints).
  std::string hex() const;
  friend constexpr bool operator==(const Hash128&, const Hash128&) = default;
};

// XXH3 with 128 bits.
Hash128 xxh3_128(std::span<const std::byte> bytes);
Hash128 xxh3_128(std::string_view bytes);

// The same over pieces: digest() is xxh3_128 of all updates so far, end to end.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view bytes);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 lower-case hex digits.
std::string hex(uint64_t number);

}  // namespace mw
