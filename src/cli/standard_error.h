// What is told beside the result.
#pragma once

#include <string_view>

namespace mw::cli {

// Writes the line behind what was printed so far: both may go to one file.
void tell(std::string_view line);

}  // namespace mw::cli
