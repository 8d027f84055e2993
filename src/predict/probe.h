// Probe: what one stage of a model costs, read off a program that the compiler makes of a few
// layers: the same fragments, op costs and memory plans as the whole model's, which repeats them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "compile/plan.h"
#include "predict/predict.h"

namespace mw::predict {

// Seconds of a call of the stage's fragments; bytes on one device.
enum Fact : uint8_t {
  kForward,
  kInputGrad,  // of a backward that is split into I and W
  kWeightGrad,
  kBackward,  // whole
  kUpdate,
  kUpdateBefore,      // of kUpdate, until pipeline ranks meet
  kSaved,             // activations of a microbatch from F to B or I
  kSavedForWeights,   // and from I to W
  kSavedByInputGrad,  // of these, what I makes
  kWorkspace,
  kUpdateWorkspace,
  kWeights,
  kGradients,
  kOptimizer,
  // Of two F, a B, an I and a W, when collectives have the links of level 0; then of the others.
  kLinks,
  kFacts = kLinks + 4
};
using Facts = std::array<double, kFacts>;

// Facts of a stage with n blocks are base + n * block, and first or last more where it also has
// what stands before or behind the blocks.
struct StageFacts {
  Facts base{}, block{}, first{}, last{};
  Facts of(int64_t blocks, bool is_first, bool is_last) const;
};

// Values that go from a stage to the next one.
struct Boundary {
  double bytes = 0;  // one way, of a microbatch
  int64_t messages = 1;
  bool held = false;  // until the backward; the slot is taken as long
};

struct Probe {
  StageFacts facts;
  Boundary boundary;
};

// The programs of a few layers under the plan's tp, sp, ZeRO, recompute and microbatch size. Of its
// other choices only whether dp and pp are 1 matters: with pp=1 all layers are in one stage.
class ProbePrograms {
 public:
  // `folded`: the first and the last stage are on one pipeline rank; then the facts of work are not
  // there. `blocks`: as many as every stage of the plan has; 0: any number, by a straight line.
  // REQUIRES: the plan has no finding (compile::plan_findings).
  ProbePrograms(const Request& request, bool folded, int64_t blocks = 0);
  // On the mesh of such a plan.
  Probe on(int64_t dp, int64_t pp) const;

 private:
  struct Sample {
    pipeline::Program program;
    compile::Plan plan;
  };
  Sample compile_sample(const std::vector<int64_t>& blocks) const;
  Probe folded_on(int64_t dp, int64_t pp) const;
  std::vector<Facts> facts_of(const Sample& sample, int64_t dp, int64_t pp) const;

  Request request_;
  bool folded_ = false;
  std::vector<Sample> samples_;
};

}  // namespace mw::predict
