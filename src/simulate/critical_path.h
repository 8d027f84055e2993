// The longest chain of work and messages that ends with the step. Private to room simulate.
#pragma once

#include <vector>

#include "simulate/simulate.h"

namespace mw::simulate {

// From the rank that ends last, back through what ended each of its waits. `ends`: [rank] when its
// last command ended; `commands`: [rank] how many it has.
std::vector<PathPart> critical_path(const std::vector<std::vector<Wait>>& waits,
                                    const std::vector<double>& ends,
                                    const std::vector<int32_t>& commands);

}  // namespace mw::simulate
