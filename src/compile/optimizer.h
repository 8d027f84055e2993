// What the update does, beside the plan.
#pragma once

namespace mw::compile {

// AdamW with decoupled weight decay, after clipping by the global norm.
struct OptimizerSpec {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;
  double max_norm = 1.0;  // 0: no clipping
};

}  // namespace mw::compile
