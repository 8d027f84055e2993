// The compiler: from a model and a plan to rank programs.
//
// differentiate -> recompute -> cut by layer at global shapes -> partition each stage on its mesh
// -> ZeRO -> fragments -> schedule -> lower. Init, training and evaluation share the states.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compile/flat_groups.h"
#include "compile/optimizer.h"
#include "compile/plan.h"
#include "compile/state_table.h"
#include "pipeline/program.h"

namespace mw::compile {

class PartitionedModel;

struct CompileRequest {
  // Graph "microbatch" with the shapes of one microbatch of all data-parallel ranks together,
  // outputs "loss_sum" and possibly others.
  const ir::Module& model;
  // The same without dropout, for evaluation; null: no evaluation program. Its weights are the
  // model's, in the same order.
  const ir::Module* eval_model = nullptr;
  Plan plan;
  ModelShape shape;
  OptimizerSpec optimizer;
  // In place of the one that the plan names: over the plan's stages, pipeline ranks and
  // microbatches. A stage's backward may be B, or I and W, in each microbatch anew.
  const pipeline::Schedule* schedule = nullptr;
  std::set<std::string> without = {};  // passes that are switched off (passes.h)
  bool init = true;  // false: no initialisation program, for who only looks at a step
  // Of buffers and values in memory. False: ranks have no arenas and fragments of forward and
  // backward no workspace, only what shares memory is known; for who plans their memory anew.
  bool offsets = true;
  // Full recomputation runs blocks again to their ends (transform/recompute.h), for who simulates a
  // stack that does so.
  bool whole_recompute = false;
  // Of the same model, `without` and `whole_recompute`, and a plan with the same partitioning_plan:
  // what to begin with. Null: it is made here.
  const PartitionedModel* partitioned = nullptr;
};

struct CompiledPlan {
  ResolvedPlan plan;
  ir::Module module;                           // differentiated, extended with flat states
  std::vector<std::vector<FlatGroup>> groups;  // [pipeline rank]
  std::vector<StateTable> states;              // [pipeline rank]
  pipeline::Program init, train;
  std::optional<pipeline::Program> eval;
  // With post-validation. A call of `train` validates the step of the call before it; `validate`
  // does that alone, behind the last step. Where the step is to be amended, `amend` makes it again.
  std::optional<pipeline::Program> validate, amend;
};

// The plan with nothing but what its model's partition depends on. Left out: ZeRO, when gradients
// are reduced and weights gathered again, and the schedule of as many stages and slices.
Plan partitioning_plan(Plan plan);

// A model differentiated, cut and partitioned: about half of what it takes to compile a plan. For
// who compiles several plans that differ in no more than partitioning_plan leaves out.
class PartitionedModel {
 public:
  // Throws as `compile`. The schedule is not read.
  explicit PartitionedModel(const CompileRequest& request);
  ~PartitionedModel();

 private:
  friend CompiledPlan compile(const CompileRequest& request);
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

// Throws Error with all that is wrong with the plan for this model, or with the schedule.
CompiledPlan compile(const CompileRequest& request);

// Of the same plan under each of these ZeRO stages: `train` is the update alone, and states are all
// that it has. For who asks what a rank holds. REQUIRES: the plan has no finding with any of them.
std::vector<CompiledPlan> compile_updates(const CompileRequest& request,
                                          const std::vector<int64_t>& zero_stages);

// A one-rank program that runs the model forward and leaves the output `result` in a state buffer
// of that name.
CompiledPlan compile_forward(const ir::Module& model, const std::string& result);

}  // namespace mw::compile
