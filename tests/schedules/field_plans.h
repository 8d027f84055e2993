// Random plans for the independent executor.
#pragma once

#include <string>

#include "field_training.h"
#include "pipeline/test_edits.h"

namespace mw::field {

using pipeline::test::Random;

struct Compiled {
  Training training;
  compile::CompiledPlan plan;
};

// The next random plan of a schedule kind that the compiler takes: layouts, ZeRO, recomputation,
// uneven layers and what options the kind has, over at most eight devices.
Compiled draw_compiled(const std::string& kind, Random& random);

}  // namespace mw::field
