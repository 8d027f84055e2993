#include "base/hash.h"

#include <string>

#include <doctest/doctest.h>

#include "base/clock.h"

using namespace mw;

TEST_CASE("xxHash gives its published values") {
  CHECK(hex(xxh64("")) == "ef46db3751d8e999");
  CHECK(xxh3_128("").hex() == "99aa06d3014798d86001c324468d497f");
  CHECK(xxh64("a") != xxh64("a", 1));
}

TEST_CASE("a streamed hash is the hash of the whole") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31);
  Hasher128 hasher;
  for (size_t i = 0, step = 1; i < text.size(); i += step, step = step * 2 + 1) {
    hasher.update(std::string_view(text).substr(i, step));
  }
  CHECK(hasher.digest() == xxh3_128(text));
  CHECK(hasher.digest() == xxh3_128(text));
}

TEST_CASE("a fake clock moves only when told, the steady one never goes back") {
  FakeClock fake;
  CHECK(fake.now() == Seconds(0));
  fake.advance(Seconds(1.5));
  CHECK(fake.now() == Seconds(1.5));
  const Seconds before = steady_clock().now();
  CHECK(steady_clock().now() >= before);
}
