#include "predict/partitioned_samples.h"

#include <algorithm>

#include "predict/precision.h"
#include "predict/sample.h"

namespace mw::predict {

compile::CompileRequest sample_request(const Request& request, const compile::Plan& plan,
                                       int64_t microbatch, const ir::Module& model) {
  return {.model = model,
          .plan = stack_plan(request.cluster, plan),
          .shape = sample_shape(request, plan, microbatch),
          .optimizer = {},
          .without = passes_left_out(request.cluster),
          .init = false,
          .whole_recompute = request.cluster.stack.whole_recompute};
}

const PartitionedSamples::Sample& PartitionedSamples::of(const Request& request,
                                                         const compile::Plan& plan,
                                                         int64_t microbatch) {
  const compile::Plan kind = compile::partitioning_plan(plan);
  const auto there = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return kept.microbatch == microbatch && kept.plan == kind;
  });
  if (there != kept_.end()) return *there->sample;
  auto sample = std::make_unique<Sample>();
  sample->model = sample_model(request, plan, microbatch);
  sample->partitioned = std::make_unique<compile::PartitionedModel>(
      sample_request(request, plan, microbatch, sample->model));
  kept_.push_back({kind, microbatch, std::move(sample)});
  return *kept_.back().sample;
}

}  // namespace mw::predict
