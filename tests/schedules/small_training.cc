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
constexpr int kSteps = 2;

models::ModelConfig config() {
  return models::parse_config(
      R"({"model_type": "gpt2", "vocab_size": 20, "n_positions": 6, "n_embd": 16, "n_layer": 4,
          "n_head": 4, "n_inner": 32})",
      "small.json");
}

compile::CompiledPlan compile_small(const compile::Plan& plan) {
  const models::ModelConfig model = config();
  const ir::Module module =
      models::build_model(model, {kSmallBatch / plan.units(), kSequence, plan.sequence_slices()});
  compile::ModelShape shape;
  shape.name = model.source;
  shape.must_divide["heads"] = model.heads;
  shape.key["heads"] = "n_head";
  shape.global_batch = kSmallBatch;
  shape.seq_len = kSequence;
  return compile::compile({module, nullptr, plan, shape, {}});
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
                             InterpreterBackend::Hook hook)
    : plan_(compile::parse_plan(plan)), compiled_(compile_small(plan_)), backend_(std::move(hook)) {
  require_sound(compiled_.init, compiled_);
  require_sound(compiled_.train, compiled_);
  const std::vector<const pipeline::Program*> programs{&compiled_.init, &compiled_.train};
  executor_ = std::make_unique<execute::Executor>(programs, backend_, options);
}

void SmallTraining::initialize() { executor_->run(0, loader(compiled_.plan.mesh, 0)); }

void SmallTraining::step() {
  executor_->run(1, loader(compiled_.plan.mesh, ++step_));
  const auto metric = [&](const char* name) {
    float value;
    std::memcpy(&value, executor_->state_data(RankId(0), executor_->find_state(RankId(0), name)),
                sizeof value);
    return value;
  };
  trained_.losses.push_back(metric(compile::kLossValue));
  trained_.norms.push_back(metric(compile::kGradNorm));
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

Trained train(const std::string& plan, const execute::ExecutorOptions& options) {
  SmallTraining training(plan, options);
  training.initialize();
  for (int i = 0; i < kSteps; ++i) training.step();
  return training.result();
}

}  // namespace mw
