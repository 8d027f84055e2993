// Divisors of a number.
#pragma once

#include <cstdint>
#include <vector>

namespace mw {

// Ascending; of numbers that a command line may make large: it looks up to the root alone.
// REQUIRES: n >= 1.
std::vector<int64_t> divisors(int64_t n);

}  // namespace mw
