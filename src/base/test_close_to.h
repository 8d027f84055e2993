// Numbers in tests, compared in proportion to themselves.
#pragma once

#include <doctest/doctest.h>

namespace mw::test {

// Equal to within `epsilon` (doctest's 1.2e-5, or what .epsilon(…) says) times the larger of both
// numbers, however small. doctest::Approx by itself adds 1 to them, so that it takes 1e-4 s for
// 2e-4 s.
inline doctest::Approx close_to(double value) { return doctest::Approx(value).scale(1e-30); }

}  // namespace mw::test
