#include "cli/standard_error.h"

#include <cstdio>

#include <fmt/core.h>

namespace mw::cli {

void tell(std::string_view line) {
  std::fflush(stdout);
  fmt::print(stderr, "{}\n", line);
}

}  // namespace mw::cli
