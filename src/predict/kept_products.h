// What StackMemory::kept_products keeps. Private to room predict.
#pragma once

#include <vector>

#include "pipeline/program.h"

namespace mw::predict {

// Every second product of a layer, from the first on, whose result does not leave the fragment of a
// forward pass: those that leave it are kept anyway.
std::vector<OpId> kept_products(const pipeline::Fragment& forward);

}  // namespace mw::predict
