// What the tests of this room share: random arrays, comparison with double references, splits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "base/rng.h"

namespace mw::kernels::testing {

using Floats = std::vector<float>;

// n normal numbers times `scale`; another `site`, other numbers.
inline Floats normal(int64_t n, uint64_t site, float scale = 1.0f) {
  Floats x(static_cast<size_t>(n));
  fill_normal({7, 0, site}, 0, n, x.data());
  for (float& v : x) v *= scale;
  return x;
}

inline bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Largest |got - want| / (|want| + floor).
template <typename Want>
double worst_error(const Floats& got, const Want& want, double floor) {
  double worst = 0;
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = got[i];
    const double w = want[i];
    if (std::isnan(g) != std::isnan(w)) return 1e30;
    if (std::isnan(g) || g == w) continue;
    worst = std::max(worst, std::fabs(g - w) / (std::fabs(w) + floor));
  }
  return worst;
}

// Calls work(begin, end) over [0, n) in pieces whose borders are random numbers of `site`.
template <typename Work>
void in_pieces(int64_t n, uint64_t site, Work&& work) {
  int64_t begin = 0;
  for (uint64_t draw = 0; begin < n; ++draw) {
    const int64_t most = std::max<int64_t>(1, n / 3);
    const int64_t end = std::min<int64_t>(
        n, begin + random_u32({11, 0, site}, draw) % static_cast<uint64_t>(most + 1));
    work(begin, end);
    begin = end;
  }
}

// Adds 1 to `changes` where `now` has other bits than `before`.
inline void count_changes(const Floats& before, const Floats& now, std::vector<int>& changes) {
  for (size_t i = 0; i < now.size(); ++i)
    changes[i] += std::memcmp(&before[i], &now[i], sizeof(float)) != 0;
}

// Runs work(begin, end, outputs) over [0, n) at once and in three random ways of cutting it into
// pieces; every output must have the same bits each time, and no two pieces may write one element,
// as they run on threads of their own. Returns the outputs.
template <typename Work>
std::vector<Floats> split_independent(int64_t n, std::vector<Floats> outputs, Work&& work) {
  std::vector<Floats> whole = outputs;
  work(0, n, whole);
  for (uint64_t site = 0; site < 3; ++site) {
    std::vector<Floats> cut = outputs;
    in_pieces(n, site, [&](int64_t begin, int64_t end) { work(begin, end, cut); });
    for (size_t i = 0; i < whole.size(); ++i) CHECK(same_bits(whole[i], cut[i]));
  }
  std::vector<std::vector<int>> changes;
  for (const Floats& output : outputs) changes.emplace_back(output.size(), 0);
  in_pieces(n, 3, [&](int64_t begin, int64_t end) {
    std::vector<Floats> alone = outputs;
    work(begin, end, alone);
    for (size_t i = 0; i < outputs.size(); ++i) count_changes(outputs[i], alone[i], changes[i]);
  });
  for (const std::vector<int>& of_output : changes)
    CHECK(std::all_of(of_output.begin(), of_output.end(), [](int c) { return c <= 1; }));
  return whole;
}

}  // namespace mw::kernels::testing
