// Models of a few layers, differentiated and partitioned, for several programs of them. Private to
// room predict.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "compile/compile.h"
#include "compile/plan.h"
#include "predict/predict.h"

namespace mw::predict {

// What the compiler is to make a sample of, without schedule and offsets (compile/compile.h).
// REQUIRES: `model` and `request` outlive it.
compile::CompileRequest sample_request(const Request& request, const compile::Plan& plan,
                                       int64_t microbatch, const ir::Module& model);

// Kept while it lives: plans that differ in no more than compile::partitioning_plan leaves out have
// one. For one thread; the model, the cluster and the sequence length are the same at every call.
class PartitionedSamples {
 public:
  struct Sample {
    ir::Module model;
    std::unique_ptr<compile::PartitionedModel> partitioned;
  };
  // Valid while this lives.
  const Sample& of(const Request& request, const compile::Plan& plan, int64_t microbatch);

 private:
  struct Kept {
    compile::Plan plan;  // compile::partitioning_plan
    int64_t microbatch = 0;
    std::unique_ptr<Sample> sample;
  };
  std::vector<Kept> kept_;
};

}  // namespace mw::predict
