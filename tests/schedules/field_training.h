// Small models trained in exact arithmetic: under a plan by field_machine.h, and, as what that must
// come to, by going through the differentiated graph of the whole batch once.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "field_machine.h"

namespace mw::field {

struct Training {
  size_t model = 0;   // of kModels
  int64_t batch = 8;  // sequences a step
  double max_norm = 1;
  compile::Plan plan;
};
inline constexpr size_t kModels = 3;  // GPT with dropout; Llama with fewer key heads; experts
std::string to_string(const Training& training);

// Throws Error where the compiler refuses the plan.
compile::CompiledPlan compile_training(const Training& training);

// Runs the programs: initialisation, one step (with post-validation two and what validates the
// last), and compares weights, moments, loss and norm on every device with those of the whole batch
// on one. What is wrong; empty: nothing.
std::string wrong_with(const Training& training, const compile::CompiledPlan& compiled,
                       const MachineOptions& options);

}  // namespace mw::field
