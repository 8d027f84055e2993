#include "field_plans.h"

#include "base/error.h"

namespace mw::field {
namespace {

int64_t one_of(Random& random, std::initializer_list<int64_t> values) {
  return values.begin()[random.below(values.size())];
}

// As many layers as `blocks`, dealt out anyhow.
std::vector<int64_t> random_layers(Random& random, int64_t stages, int64_t blocks) {
  std::vector<int64_t> layers(static_cast<size_t>(stages));
  for (int64_t b = 0; b < blocks; ++b) ++layers[random.below(layers.size())];
  return layers;
}

// Most of these are refused.
Training draw(const std::string& kind, Random& random) {
  Training training;
  training.model = random.below(kModels);
  training.batch = one_of(random, {8, 12});
  training.max_norm = one_of(random, {0, 1, 1});
  compile::Plan& plan = training.plan;
  plan.schedule = kind;
  plan.pp = one_of(random, {1, 2, 2, 3, 4, 4});
  plan.chunks = one_of(random, {1, 2, 2, 3});
  plan.microbatches = one_of(random, {1, 2, 3, 4, 4, 6, 8});
  plan.dp = one_of(random, {1, 1, 2, 2, 4});
  plan.tp = one_of(random, {1, 1, 2, 4});
  plan.cp = one_of(random, {1, 1, 1, 1, 2});
  plan.ep = training.model == 2 ? one_of(random, {1, 2}) : 1;
  plan.sp = plan.tp > 1 && random.below(2) == 0;
  plan.regather = plan.sp && random.below(3) == 0;
  plan.zero = static_cast<int64_t>(random.below(4));
  plan.recompute = static_cast<compile::Recompute>(random.below(4));
  if (random.below(3) == 0)
    plan.grad_reduce =
        random.below(2) == 0 ? compile::GradReduce::kStep : compile::GradReduce::kMicrobatch;
  plan.bucket_mb = one_of(random, {0, 160});
  plan.prefetch_mb = one_of(random, {0, 1 << 20});
  if (random.below(2) == 0) plan.layers = random_layers(random, plan.stages(), 4);
  plan.post_validation = random.below(3) == 0;
  const pipeline::KindOptions& options = pipeline::kind_of(kind).options;
  if (options.group) plan.group = one_of(random, {0, 0, 2, 3});
  if (options.pairs) plan.pairs = one_of(random, {0, 1, 2});
  if (options.slices) plan.slices = one_of(random, {0, 2, 4});
  if (options.memory_limit) plan.memory_limit = static_cast<double>(one_of(random, {0, 0, 4, 8}));
  return training;
}

constexpr int64_t kMostDevices = 8;

}  // namespace

Compiled draw_compiled(const std::string& kind, Random& random) {
  for (int tries = 0; tries < 3000; ++tries) {
    Training training = draw(kind, random);
    if (training.plan.ranks() > kMostDevices) continue;
    // What the text form refuses, no option can ask for.
    try {
      training.plan = compile::parse_plan(short_form(training.plan));
      return {training, compile_training(training)};
    } catch (const Error&) {
    }
  }
  MW_CHECK(false, "no plan of {}", kind);
}

}  // namespace mw::field
