// Numbers of things in sentences.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace mw {

// "1 message", "2 messages". REQUIRES: the noun's plural has an s behind it.
inline std::string counted(int64_t n, std::string_view noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

}  // namespace mw
