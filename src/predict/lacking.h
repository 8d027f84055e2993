// What of a plan the engine of its software stack does not run.
#pragma once

#include <string>
#include <vector>

#include "cluster/hardware.h"
#include "compile/plan.h"

namespace mw::predict {

// As far as the profile says: "stages on several ranks"; empty: it runs the plan.
std::vector<std::string> lacking(const cluster::Stack& stack, const compile::Plan& plan);
// Whether it lacks no more of the plan than of `other`, which somebody has asked for.
bool lacks_no_more(const cluster::Stack& stack, const compile::Plan& plan,
                   const compile::Plan& other);
// What it lacks, whatever the plan, in the same words.
std::vector<std::string> all_lacking(const cluster::Stack& stack);

// What the stack calls selective recomputation, and all that its engine recomputes, the most kept
// first.
compile::Recompute selective_of(const cluster::Stack& stack);
std::vector<compile::Recompute> recomputes_of(const cluster::Stack& stack);

}  // namespace mw::predict
