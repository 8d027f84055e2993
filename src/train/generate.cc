#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/store.h"
#include "compile/compile.h"
#include "models/hf_mapping.h"
#include "models/model.h"
#include "runtime/cpu_backend.h"
#include "train/parameter_io.h"

namespace mw::train {
namespace {

// Draws from softmax(logits / temperature).
int32_t sample(std::span<const float> logits_V, const GenerateOptions& options, int64_t at) {
  const auto best = std::max_element(logits_V.begin(), logits_V.end());
  if (options.temperature == 0) return static_cast<int32_t>(best - logits_V.begin());
  std::vector<double> weights;
  double sum = 0;
  for (const float logit : logits_V) {
    weights.push_back(std::exp((static_cast<double>(logit) - *best) / options.temperature));
    sum += weights.back();
  }
  const RngKey key{static_cast<uint64_t>(options.seed), 0, rng_site("generate")};
  double left = sum * random_u32(key, static_cast<uint64_t>(at)) / 4294967296.0;
  for (size_t v = 0; v < weights.size(); ++v) {
    left -= weights[v];
    if (left < 0) return static_cast<int32_t>(v);
  }
  return static_cast<int32_t>(best - logits_V.begin());
}

class Generator {
 public:
  Generator(FileSystem& fs, const std::string& run_dir)
      : config_(read_config(fs, run_dir)),
        window_(config_.max_positions),
        model_(models::build_model(config_, {1, window_})),
        plan_(compile::compile_forward(model_, "logits")),
        executor_({&plan_.init, &plan_.train}, backend_, {}) {
    ParameterIo io(plan_, executor_);
    const checkpoint::CheckpointReader reader =
        checkpoint::CheckpointReader::latest(fs, join_path(run_dir, "checkpoint"));
    reader.verify();
    for (const models::TensorMapping& m : models::hf_mapping(config_, plan_.module)) {
      const checkpoint::TensorSpec wanted{m.hf_name, DType::kF32, m.hf_shape};
      reader.require(std::span(&wanted, 1));
      std::vector<float> values(reader.bytes(m.hf_name).size() / sizeof(float));
      models::from_hf(m, reader.bytes(m.hf_name), std::as_writable_bytes(std::span<float>(values)));
      io.write(m.state, Part::kWeight, values);
    }
  }

  const models::ModelConfig& config() const { return config_; }

  // Logits of the last token; the model sees at most its window of them.
  std::span<const float> logits(const std::vector<int32_t>& tokens) {
    const int64_t count = std::min<int64_t>(static_cast<int64_t>(tokens.size()), window_);
    const auto load = [&](const std::string& name, int32_t, RankId, const ir::TensorType& type,
                          void* out) {
      std::memset(out, 0, static_cast<size_t>(type.bytes().value));
      if (type.dtype != DType::kI32) return;
      auto* values_S = static_cast<int32_t*>(out);
      for (int64_t s = 0; s < window_; ++s) {
        if (name == "positions") values_S[s] = static_cast<int32_t>(s);
        if (name == "tokens" && s < count)
          values_S[s] = tokens[tokens.size() - static_cast<size_t>(count - s)];
      }
    };
    executor_.run(1, load);
    const RankId rank(0);
    const auto* all_SV =
        static_cast<const float*>(executor_.state_data(rank, executor_.find_state(rank, "logits")));
    return {all_SV + (count - 1) * config_.vocab_size, static_cast<size_t>(config_.vocab_size)};
  }

 private:
  static models::ModelConfig read_config(FileSystem& fs, const std::string& run_dir) {
    const std::string path = join_path(run_dir, "config.json");
    models::ModelConfig config = models::parse_config(fs.read_file(path), path);
    config.embedding_dropout = config.residual_dropout = config.attention_dropout = 0;
    return config;
  }

  models::ModelConfig config_;
  int64_t window_;
  ir::Module model_;
  compile::CompiledPlan plan_;
  runtime::CpuBackend backend_;
  execute::Executor executor_;
};

}  // namespace

std::string generate(FileSystem& fs, const std::string& run_dir, const std::string& prompt,
                     const GenerateOptions& options) {
  if (prompt.empty()) throw_error("--prompt: is empty; give at least one character");
  Generator generator(fs, run_dir);
  if (generator.config().vocab_size < 256) {
    throw_error(
        "{}: vocab_size={} has no room for bytes, which prompts are made of; it must be at least "
        "256",
        generator.config().source, generator.config().vocab_size);
  }
  std::vector<int32_t> tokens;
  for (const char c : prompt) tokens.push_back(static_cast<unsigned char>(c));
  std::string text = prompt;
  for (int64_t t = 0; t < options.tokens; ++t) {
    std::span<const float> logits_V = generator.logits(tokens);
    tokens.push_back(sample(logits_V.first(std::min<size_t>(256, logits_V.size())), options, t));
    text += static_cast<char>(tokens.back());
  }
  return text;
}

}  // namespace mw::train
