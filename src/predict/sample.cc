#include "predict/sample.h"

#include <algorithm>

#include "cluster/group_shape.h"
#include "pipeline/memory_plan.h"
#include "predict/stack_memory.h"

namespace mw::predict {
namespace {

using pipeline::ActionKind;
using pipeline::Command;
using pipeline::Fragment;

// A flat group of parameters, or one device's part of it.
bool is_flat_part(const Fragment& fragment, size_t v) {
  const ir::TensorType& type = fragment.graph.values[v].type;
  const auto& dims = fragment.shardings[v].dims;
  return type.rank() == 1 && is_floating(type.dtype) && dims.size() == 1 && !dims[0].empty() &&
         std::all_of(dims[0].begin(), dims[0].end(),
                     [](Name axis) { return axis == "dp" || axis == "ep"; });
}

models::BatchShape batch_of(const Request& request, const compile::Plan& plan, int64_t microbatch) {
  return {microbatch * plan.dp, request.seq_len, plan.sequence_slices()};
}

// Of the pipeline ranks between the first and the last those that lie differently on nodes; on a
// torus, where each does, the first of them.
std::vector<int32_t> places_between(const cluster::Mesh& mesh, const cluster::Cluster& cluster) {
  const int64_t pp = mesh.axis_size("pp");
  if (pp <= 2) return {};
  const bool torus = std::any_of(cluster.links.begin(), cluster.links.end(), [](const auto& link) {
    return link.kind == cluster::LinkKind::kTorus;
  });
  if (torus) return {1};
  const std::vector<RankId> all = mesh.members(RankId(0), {"pp"});
  const std::vector<RankId> inner(all.begin() + 1, all.end() - 1);
  std::vector<int32_t> places;
  for (const RankId rank : cluster::distinct_shifts(cluster, inner)) {
    const auto at = std::find(all.begin(), all.end(), rank);
    places.push_back(static_cast<int32_t>(at - all.begin()));
  }
  return places;
}

}  // namespace

ir::Module sample_model(const Request& request, const compile::Plan& plan, int64_t microbatch) {
  models::ModelConfig config = request.model;
  config.layers = 0;
  for (const int64_t blocks : plan.layers) config.layers += blocks;
  config.mixture.dense_layers = 0;  // they have a sample of their own (coarse_facts.h)
  return stack_model(request.cluster, config, batch_of(request, plan, microbatch));
}

compile::ModelShape sample_shape(const Request& request, const compile::Plan& plan,
                                 int64_t microbatch) {
  compile::ModelShape shape = model_shape(request);
  shape.global_batch = batch_of(request, plan, microbatch).batch * plan.microbatches;
  shape.is_sample = true;
  return shape;
}

pipeline::Schedule sample_schedule(int64_t ranks, bool folded) {
  pipeline::Schedule schedule;
  schedule.name = "sample";
  schedule.microbatches = 2;
  schedule.ranks.resize(static_cast<size_t>(ranks));
  pipeline::Placement& placement = schedule.placement;
  placement.ranks = static_cast<int32_t>(ranks);
  for (int32_t r = 0; r < placement.ranks; ++r) placement.rank_of_stage.push_back(r);
  for (int32_t r = placement.ranks; folded && r-- > 0;) placement.rank_of_stage.push_back(r);
  const auto add = [&](ActionKind kind, int32_t stage, int32_t microbatch) {
    schedule.ranks[static_cast<size_t>(placement.rank_of(stage, 0))].push_back(
        {.kind = kind, .stage = StageId(stage), .first = microbatch});
  };
  for (int32_t s = 0; s < placement.stages(); ++s) {
    for (const int32_t microbatch : {0, 1}) add(ActionKind::kF, s, microbatch);
  }
  for (int32_t s = placement.stages(); s-- > 0;) {
    add(ActionKind::kB, s, 0);
    add(ActionKind::kI, s, 1);
    add(ActionKind::kW, s, 1);
  }
  return schedule;
}

void strip(pipeline::Program& program) {
  program.names.clear();
  for (Fragment& fragment : program.fragments) {
    for (ir::Value& value : fragment.graph.values) value.name.clear();
    for (auto* ports : {&fragment.inputs, &fragment.outputs}) {
      for (pipeline::Port& port : *ports) port.name.clear();
    }
  }
  for (pipeline::RankProgram& rank : program.ranks) {
    std::erase_if(rank.commands,
                  [](const Command& command) { return command.kind != Command::Kind::kCall; });
    for (Command& command : rank.commands) command.buffers.clear();
    for (size_t b = static_cast<size_t>(rank.states); b < rank.buffers.size(); ++b) {
      if (rank.buffers[b].storage.kind != pipeline::Storage::Kind::kState) continue;
      if (b > static_cast<size_t>(rank.states))
        std::swap(rank.buffers[static_cast<size_t>(rank.states)], rank.buffers[b]);
      ++rank.states;
    }
    rank.buffers.resize(static_cast<size_t>(rank.states));
  }
}
cluster::Mesh resized(const cluster::Mesh& small, int64_t dp, int64_t pp) {
  std::vector<cluster::Axis> axes = small.axes();
  for (cluster::Axis& axis : axes) {
    if (axis.name == "dp") axis.size = dp;
    if (axis.name == "pp") axis.size = pp;
  }
  return cluster::Mesh(axes);
}

void place_on(const cluster::Mesh& mesh, const GrowingSizes* sizes, int64_t microbatch, size_t f,
              Fragment& fragment) {
  bool changed = false;
  for (size_t v = 0; v < fragment.graph.values.size(); ++v) {
    ir::TensorType& type = fragment.graph.values[v].type;
    if (is_flat_part(fragment, v)) {
      const DType dtype = type.dtype;
      type = sharding::local_type(fragment.global_types[v], fragment.shardings[v], mesh);
      type.dtype = dtype;
      changed = true;
    } else if (sizes != nullptr) {
      sizes->resize(f, v, microbatch, fragment);
      changed = true;
    }
  }
  if (changed) pipeline::plan_fragment(fragment);
}

std::vector<simulate::CallTime> times_on(const pipeline::Program& program, const Request& request,
                                         int64_t pp, bool folded) {
  const auto ranks = static_cast<int32_t>(program.ranks.size());
  const auto last = static_cast<int32_t>(pp) - 1;
  std::vector<std::vector<int32_t>> coordinates;
  for (int32_t r = 0; r < ranks; ++r)
    coordinates.push_back({r == ranks - 1 ? last : std::min(r, last)});
  const std::vector<int32_t> between = places_between(program.mesh, request.cluster);
  for (int32_t r = 1; r + (folded ? 0 : 1) < ranks && !between.empty(); ++r)
    coordinates[static_cast<size_t>(r)] = between;
  return simulate::call_times(program, request.cluster, request.options, coordinates);
}

}  // namespace mw::predict
