#include "cli/standard_error.h"

#include <cstdio>
#include <string>

#include <fmt/core.h>

namespace mw::cli {

void tell(std::string_view line) {
  std::fflush(stdout);
  // Where it cannot be told, the work goes on.
  const std::string text = fmt::format("{}\n", line);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace mw::cli
