// For tests: counts calls of operator new. Link test_allocations.cc into the test.
#pragma once

#include <cstdint>

namespace mw::execute {

void start_counting_allocations();
// Of all threads, since the start.
int64_t stop_counting_allocations();

}  // namespace mw::execute
