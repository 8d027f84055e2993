#include "base/divisors.h"

namespace mw {

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> found, large;
  for (int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    found.push_back(d);
    if (d != n / d) large.push_back(n / d);
  }
  found.insert(found.end(), large.rbegin(), large.rend());
  return found;
}

}  // namespace mw
