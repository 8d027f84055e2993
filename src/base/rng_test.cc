#include "base/rng.h"

#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "base/test_close_to.h"

using namespace mw;

namespace {

struct Words {
  uint32_t w[4];
};

Words philox(Words counter, uint32_t k0, uint32_t k1) {
  const uint32_t key[2] = {k0, k1};
  Words out;
  philox4x32_10(counter.w, key, out.w);
  return out;
}

void check_words(const Words& a, const Words& b) {
  for (int i = 0; i < 4; ++i) CHECK(a.w[i] == b.w[i]);
}

}  // namespace

TEST_CASE("philox4x32-10 gives the published test vectors") {
  // kat_vectors of Random123, the reference implementation of the paper's authors.
  check_words(philox({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  check_words(philox({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u),
              {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  check_words(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
              {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST_CASE("a word depends on seed, step, site and index, and on nothing else") {
  const RngKey key{1, 2, rng_site("h.0.attn.dropout")};
  uint32_t group[4];
  random_u32x4(key, 5, group);
  for (uint64_t i = 0; i < 4; ++i) CHECK(random_u32(key, 20 + i) == group[i]);
  RngKey other = key;
  other.seed = 2;
  CHECK(random_u32(other, 20) != group[0]);
  other = key;
  other.step = 3;
  CHECK(random_u32(other, 20) != group[0]);
  other = key;
  other.site = rng_site("h.1.attn.dropout");
  CHECK(random_u32(other, 20) != group[0]);
  CHECK(rng_site("a") == 0xaf63dc4c8601ec8cu);  // FNV-1a's published value
  // Frozen: a change of this word would change every published loss.
  CHECK(group[0] == 2522343849u);
}

TEST_CASE("uniforms and normals have the right moments") {
  const RngKey key{7, 0, rng_site("moments")};
  const int n = 200'000;
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0, normal_fourth = 0;
  std::vector<float> normals(n);
  fill_normal(key, 0, n, normals.data());
  for (int i = 0; i < n; ++i) {
    const double u = random_uniform(key, i);
    REQUIRE(u >= 0);
    REQUIRE(u < 1);
    sum += u;
    squares += u * u;
    const double z = normals[i];
    normal_sum += z;
    normal_squares += z * z;
    normal_fourth += z * z * z * z;
  }
  CHECK(sum / n == mw::test::close_to(0.5).epsilon(0.005));
  CHECK(squares / n == mw::test::close_to(1.0 / 3).epsilon(0.005));
  CHECK(std::abs(normal_sum / n) < 0.01);
  CHECK(normal_squares / n == mw::test::close_to(1).epsilon(0.01));
  CHECK(normal_fourth / n == mw::test::close_to(3).epsilon(0.03));
}

TEST_CASE("fill_normal does not depend on where it starts") {
  const RngKey key{3, 1, rng_site("tbl")};
  for (uint64_t first = 0; first < 6; ++first) {
    for (int64_t count = 0; count < 11; ++count) {
      std::vector<float> values(count);
      fill_normal(key, first, count, values.data());
      for (int64_t i = 0; i < count; ++i) CHECK(values[i] == random_normal(key, first + i));
    }
  }
}

TEST_CASE("the extreme words give finite numbers") {
  CHECK(uniform_of(0) == 0);
  CHECK(uniform_of(~0u) < 1);
}
