// Compiler: partitions a model's graphs stage by stage and makes their code, for the programs of
// one plan, which share states and twins. Private to room compile.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/cut.h"
#include "compile/fragments.h"
#include "compile/lower.h"
#include "compile/passes.h"
#include "compile/twin.h"
#include "compile/update_graph.h"
#include "partition/memo.h"

namespace mw::compile {

// A stage partitioned, before ZeRO.
struct LocalStage {
  StageGraph cut;
  LocalGraph local;  // none if it is a twin
  StagePorts ports;
  size_t first = 0;          // the stage that it is a twin of
  std::optional<Twin> twin;  // empty: of none
};

class Compiler {
 public:
  // `offsets`: as in CompileRequest.
  Compiler(const ResolvedPlan& plan, ir::Module module, PassSet passes, bool offsets = true);

  // Partitions a whole graph stage by stage. Folds accumulations into the products that make them.
  std::vector<LocalStage> stages_of(const ir::Graph& whole);
  // Every stage `replicas` times: replica j of stage s is stage j * stages + s, a twin that differs
  // in nothing (replicas.h).
  void replicate(std::vector<LocalStage>& stages, int32_t replicas) const;

  // Weights, accumulators and metrics of every rank, from the training stages.
  void make_states(const std::vector<LocalStage>& stages, const std::vector<int32_t>& rank_of_stage,
                   int64_t ranks);
  void add_metric(size_t rank, const StateUse& use) { metrics_[rank].push_back(use); }
  void make_tables();

  // The stages ready for lowering; fragments of twins that work alike are one.
  std::vector<StageCode> codes_of(std::vector<LocalStage>& stages,
                                  const std::vector<int32_t>& rank_of,
                                  const std::vector<std::set<pipeline::ActionKind>>& kinds) const;
  StageCode code_of(const LocalStage& stage, size_t rank,
                    const std::set<pipeline::ActionKind>& kinds,
                    std::vector<std::string> results = {}) const;
  UpdateContext update_context(size_t rank, const OptimizerSpec& optimizer) const;

  CompiledPlan& result() { return result_; }
  bool offsets() const { return offsets_; }
  const cluster::Mesh& stage_mesh() const { return result_.plan.stages.front().mesh; }
  // Without replicas and slices.
  int32_t stage_count() const { return static_cast<int32_t>(result_.plan.plan.stages()); }
  int32_t slices() const { return static_cast<int32_t>(result_.plan.plan.sequence_slices()); }

 private:
  using GivenShardings = std::vector<std::optional<sharding::Sharding>>;

  bool shares() const { return passes_.runs(kShareStages); }
  void mark_carried(std::vector<StageGraph>& cuts) const;
  bool same_plan(const StageGraph& a, const StageGraph& b) const;
  void settle_boundaries(const ir::Graph& whole, const std::vector<StageGraph>& cuts,
                         GivenShardings& given);
  LocalStage partitioned(StageGraph stage, GivenShardings given);
  partition::Memo* memo_of(const cluster::Mesh& mesh);
  StageCode twin_code(const StageCode& first, const LocalStage& stage) const;
  HeldGroup holders_of(const FlatGroup& of) const;

  PassSet passes_;
  bool offsets_;
  CompiledPlan result_;
  std::optional<partition::Memo> memo_;
  std::vector<std::map<StateId, StateUse>> uses_;  // [pipeline rank]
  std::vector<std::vector<StateUse>> metrics_;
  // By FlatGroup::weight: the pipeline ranks that hold it, ascending, and which of their groups.
  std::map<StateId, std::vector<std::pair<int32_t, size_t>>> holders_;
};

}  // namespace mw::compile
