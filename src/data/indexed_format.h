// What reader and writer of the indexed dataset share.
#pragma once

#include <cstdint>
#include <string_view>

namespace mw::data {

constexpr std::string_view kIdxMagic{"MMIDIDX\0\0", 9};
constexpr int64_t kIdxHeaderSize = 34;

}  // namespace mw::data
