#include "small_training.h"

#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "models/model.h"
#include "pipeline/verifier.h"

namespace mw {
namespace {

constexpr int64_t kSequence = 6, kVocabulary = 20;

models::ModelConfig config() {
  return models::parse_config(
      R"({"model_type": "gpt2", "vocab_size": 20, "n_positions": 6, "n_embd": 16, "n_layer": 4,
          "n_head": 4, "n_inner": 32})",
      "small.json");
}

compile::CompiledPlan compile_small(const compile::Plan& plan, double max_norm) {
  const models::ModelConfig model = config();
  const ir::Module module =
      models::build_model(model, {kSmallBatch / plan.units(), kSequence, plan.sequence_slices()});
  compile::ModelShape shape;
  shape.name = model.source;
  shape.must_divide["heads"] = model.heads;
  shape.key["heads"] = "n_head";
  shape.global_batch = kSmallBatch;
  shape.seq_len = kSequence;
  compile::OptimizerSpec optimizer;
  optimizer.max_norm = max_norm;
  return compile::compile({module, nullptr, plan, shape, optimizer});
}

void require_sound(const pipeline::Program& program, const compile::CompiledPlan& plan) {
  pipeline::VerifyOptions options;
  options.module = &plan.module;
  const pipeline::Verification proved = pipeline::verify(program, options);
  MW_CHECK(proved.sound(), "{}: {}", program.name, join(proved.findings, "\n"));
}

// Made-up tokens: a function of the sample and the position alone.
int32_t token(int64_t sample, int64_t position) {
  const auto at = static_cast<uint64_t>(sample * (kSequence + 1) + position);
  return static_cast<int32_t>(random_uniform(RngKey{5, 0, rng_site("token")}, at) * kVocabulary);
}

execute::Loader loader(const cluster::Mesh& mesh, int64_t step) {
  return [&mesh, step](const std::string& name, int32_t microbatch, RankId rank,
                       const ir::TensorType& type, void* out) {
    const auto scalar = [&](auto value) { std::memcpy(out, &value, sizeof value); };
    if (name == "seed") return scalar(int64_t{11});
    if (name == "step") return scalar(step);
    if (name == "lr") return scalar(3e-4F);
    if (name == "loss_scale") return scalar(1.0F / static_cast<float>(kSmallBatch * kSequence));
    const int64_t rows = type.dim(0);
    const int64_t first =
        step * kSmallBatch + (microbatch * mesh.axis_size("dp") + mesh.index(rank, {"dp"})) * rows;
    if (name == "sample_ids") {
      for (int64_t b = 0; b < rows; ++b) static_cast<int64_t*>(out)[b] = first + b;
      return;
    }
    for (int64_t i = 0; i < type.elements(); ++i) {
      const int64_t sample = first + i / kSequence, position = i % kSequence;
      static_cast<int32_t*>(out)[i] = name == "positions" ? static_cast<int32_t>(position)
                                      : name == "tokens"  ? token(sample, position)
                                                          : token(sample, position + 1);
    }
  };
}

}  // namespace

SmallTraining::SmallTraining(const std::string& plan, const execute::ExecutorOptions& options,
                             InterpreterBackend::Hook hook, double max_norm)
    : plan_(compile::parse_plan(plan)),
      compiled_(compile_small(plan_, max_norm)),
      backend_(std::move(hook)) {
  std::vector<const pipeline::Program*> programs{&compiled_.init, &compiled_.train};
  if (compiled_.validate) {
    programs.insert(programs.end(), {&*compiled_.validate, &*compiled_.amend});
    const std::vector<std::string> found =
        pipeline::amendment_findings(compiled_.train, *compiled_.amend);
    MW_CHECK(found.empty(), "{}", join(found, "\n"));
  }
  for (const pipeline::Program* program : programs) require_sound(*program, compiled_);
  executor_ = std::make_unique<execute::Executor>(programs, backend_, options);
}

void SmallTraining::initialize() { executor_->run(0, loader(compiled_.plan.mesh, 0)); }

float SmallTraining::metric(const char* name, RankId rank) const {
  float value;
  std::memcpy(&value, executor_->state_data(rank, executor_->find_state(rank, name)), sizeof value);
  return value;
}

void SmallTraining::steps(int count) {
  if (compiled_.validate) return flow(count);
  for (int i = 0; i < count; ++i) {
    executor_->run(1, loader(compiled_.plan.mesh, ++step_));
    trained_.losses.push_back(metric(compile::kLossValue, RankId(0)));
    trained_.norms.push_back(metric(compile::kGradNorm, RankId(0)));
  }
}

// Every rank finds the same.
void SmallTraining::flow(int count) {
  const auto ranks = static_cast<size_t>(compiled_.plan.mesh.size());
  std::vector<std::vector<std::pair<float, float>>> found(ranks);
  execute::Flow flow;
  flow.train = 1;
  flow.validate = 2;
  flow.amend = 3;
  flow.calls = static_cast<size_t>(count);
  flow.loader = [&](size_t call) {
    return loader(compiled_.plan.mesh, step_ + 1 + static_cast<int64_t>(call));
  };
  flow.validated = [&](RankId rank, size_t call) {
    MW_CHECK(found[rank.index()].size() == call, "rank {} validates call {} after {} others",
             rank.value, call, found[rank.index()].size());
    found[rank.index()].emplace_back(metric(compile::kLossValue, rank),
                                     metric(compile::kGradNorm, rank));
    return true;
  };
  flow.ended = [](RankId, int, const execute::Measured&) {};
  executor_->run(flow);
  step_ += count;
  for (const auto& of_rank : found) MW_CHECK(of_rank == found[0], "ranks validate other steps");
  for (const auto& [loss, norm] : found[0]) {
    trained_.losses.push_back(loss);
    trained_.norms.push_back(norm);
  }
}

Trained SmallTraining::result() {
  trained_.states.clear();
  const cluster::Mesh& mesh = compiled_.plan.mesh;
  for (int64_t r = 0; r < mesh.size(); ++r) {
    const pipeline::RankProgram& program =
        compiled_.train.ranks[static_cast<size_t>(mesh.index(RankId(r), {"pp"}))];
    std::vector<std::byte>& bytes = trained_.states.emplace_back();
    for (int32_t b = 0; b < program.states; ++b) {
      const auto* data =
          static_cast<const std::byte*>(executor_->state_data(RankId(r), BufferId(b)));
      bytes.insert(bytes.end(), data, data + program.buffers[static_cast<size_t>(b)].bytes().value);
    }
  }
  return trained_;
}

Trained train(const std::string& plan, const execute::ExecutorOptions& options, double max_norm,
              int steps) {
  SmallTraining training(plan, options, nullptr, max_norm);
  training.initialize();
  training.steps(steps);
  return training.result();
}

}  // namespace mw
