// Division and multiples, rounded up.
#pragma once

#include <cstdint>

namespace mw {

// REQUIRES of both: a >= 0, n >= 0, and a divisor above 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t n, int64_t multiple) { return ceil_div(n, multiple) * multiple; }

}  // namespace mw
