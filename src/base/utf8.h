// Characters in UTF-8.
#pragma once

#include <cstddef>
#include <string_view>

namespace mw {

// The length of the UTF-8 sequence at the start of `text`, or 0 where it is malformed, overlong, a
// surrogate or above U+10FFFF [RFC 3629]. REQUIRES: `text` is not empty.
size_t utf8_length(std::string_view text);

}  // namespace mw
