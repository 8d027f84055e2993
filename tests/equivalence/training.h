// Trains small nets on made-up data through compile -> verify -> execute, to compare plans bit for
// bit.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compile/compile.h"

namespace mw::equivalence {

constexpr int64_t kBatch = 16;  // samples a step
constexpr int kSteps = 5;

struct Net {
  std::string name;
  std::function<ir::Module(int64_t batch)> build;  // samples of one microbatch
  int64_t classes = 1;                             // targets and tokens are below
  std::map<std::string, int64_t> must_divide = {};
};

// A GPT-2 of four small blocks with tied embeddings.
Net small_gpt(double dropout = 0, int64_t sequence = 16);

// Linear layers in a chain, so many with one weight, and one with its own.
Net shared_weight_net(int uses);

// What a plan trained to.
struct Trained {
  std::vector<float> losses, norms;
  float held_out = 0;
  std::map<std::string, std::vector<float>> states;  // weights and moments by name
};

// What of a compilation is not the plan's.
struct Variant {
  const pipeline::Schedule* schedule = nullptr;
  std::set<std::string> without = {};  // passes
};
// With an evaluation program on the same net.
compile::CompiledPlan compiled(const Net& net, const ir::Module& model, const compile::Plan& plan,
                               const Variant& variant = {});

// Compiles, proves all programs, runs kSteps steps and one evaluation. What is measured must be the
// verifier's figures, exactly.
Trained train(const Net& net, const compile::Plan& plan, const Variant& variant = {});

// The states of all ranks, byte by byte, after init and two runs of `train` in place of the plan's
// training program. Throws what the executor throws.
std::vector<std::vector<char>> states_after(const Net& net, const compile::CompiledPlan& plan,
                                            const pipeline::Program& train);

// Empty, or the first thing that is not the same to the last bit.
std::string bit_difference(const Trained& got, const Trained& want);

// Every plan equals its base plan, and base plans equal one rank within rounding.
void check_plans(const Net& net, const std::vector<std::string>& plans);

}  // namespace mw::equivalence
