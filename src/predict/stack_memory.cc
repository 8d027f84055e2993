#include "predict/stack_memory.h"

#include <algorithm>

#include "compile/passes.h"
#include "transform/unfuse.h"

namespace mw::predict {

StackMemory stack_memory(const cluster::Cluster& cluster, const compile::Plan& plan,
                         cost::Fp8 fp8) {
  const cluster::Attained& attained = cluster.device.attained;
  StackMemory memory;
  memory.f32_loss = cluster.stack.f32_loss;
  memory.f32_softmax = cluster.stack.f32_softmax;
  memory.gathered_ends = cluster.stack.gathered_ends;
  memory.kept_products =
      plan.recompute == compile::Recompute::kSelectiveOp && !attained.fused_elementwise;
  memory.scores = cluster.stack.autograd && !attained.fused_attention;
  memory.blocked_softmax = memory.scores && attained.blocked_softmax;
  memory.attention_copies = memory.scores && cluster.stack.attention_copies;
  memory.masks = cluster.stack.dropout_masks;
  memory.wide_norms = !attained.fused_elementwise;
  memory.copies = cluster.stack.autograd && !attained.fused_elementwise &&
                  plan.recompute != compile::Recompute::kSelectiveOp;
  memory.wide_last_norm = cluster.stack.f32_loss;
  if (cluster.stack.narrow_saved) memory.narrow = fp8;
  memory.f16_gradients = cluster.stack.f16_gradients;
  return memory;
}

compile::Plan stack_plan(const cluster::Cluster& cluster, compile::Plan plan) {
  const int64_t most = cluster.stack.prefetch_mb;
  if (most > 0) plan.prefetch_mb = std::min(plan.prefetch_mb, most);
  return plan;
}

ir::Module stack_model(const cluster::Cluster& cluster, const models::ModelConfig& config,
                       const models::BatchShape& shape) {
  ir::Module module = models::build_model(config, shape);
  if (!cluster.device.attained.fused_elementwise) {
    for (ir::Graph& graph : module.graphs) transform::unfuse_activations(graph);
  }
  return module;
}

std::set<std::string> passes_left_out(const cluster::Cluster& cluster) {
  std::set<std::string> out;
  if (cluster.stack.autograd) out.insert(std::string(compile::kRemake));
  if (cluster.stack.gathers_late) out.insert(std::string(compile::kGatherAhead));
  return out;
}

}  // namespace mw::predict
