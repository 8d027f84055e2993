// What a rank holds and how long it updates it, read off programs that the compiler makes of a few
// layers.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "compile/plan.h"
#include "pipeline/program.h"
#include "predict/predict.h"
#include "predict/stage_facts.h"

namespace mw::predict {

// The updates of a few layers under the plan's tp, sp and grad_reduce, and every ZeRO stage. Of the
// plan's other choices only whether dp and pp are 1 matters: with pp=1 all layers are in one stage.
// States depend neither on the microbatch nor on what is recomputed.
class StatePrograms {
 public:
  // Compiles them. `folded`: the first and the last stage are on one pipeline rank.
  // REQUIRES: the plan has no finding (compile::plan_findings). The batch is not read.
  StatePrograms(const Request& request, bool folded);
  // States, update and its workspace on the mesh of such a plan; other facts are zero.
  StageFacts on(int64_t dp, int64_t pp, int64_t zero) const;

 private:
  struct Sample {
    pipeline::Program program;
    compile::Plan plan;
  };
  void compile(const std::vector<int64_t>& blocks);
  std::vector<Facts> facts_of(const Sample& sample, int64_t dp, int64_t pp) const;

  Request request_;
  bool folded_;
  std::map<int64_t, std::vector<Sample>> samples_;  // by ZeRO stage
};

}  // namespace mw::predict
