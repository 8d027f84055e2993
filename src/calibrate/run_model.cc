#include "calibrate/run_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace mw::calibrate {
namespace {

// Of params_b, as a logarithm: a quarter.
const double kNearSizes = std::log(1.25);

// What the row's sizes say of a model of that family.
models::ModelConfig sized(const Run& run, models::Family family) {
  models::ModelConfig model;
  model.source = run.model;
  model.family = family;
  model.vocab_size = run.vocab;
  model.max_positions = run.seq;
  model.hidden_size = run.hidden;
  model.layers = run.layers;
  model.heads = run.heads;
  model.kv_heads = run.kv_heads;
  model.head_dim = run.hidden / run.heads;
  model.ffn_size = run.ffn;
  model.tie_word_embeddings =
      run.tied.value_or(family == models::Family::kGpt2 && run.kv_heads == run.heads);
  if (family == models::Family::kLlama) model.activation = models::Activation::kSilu;
  return model;
}

// Matrices of the blocks and of the embeddings, in billions. A GPT's with a matrix of positions.
// For rows whose sizes need not make a model; of one that is built models::parameter_count.
double billions(const models::ModelConfig& model) {
  const bool llama = model.family == models::Family::kLlama;
  const auto layers = static_cast<double>(model.layers),
             hidden = static_cast<double>(model.hidden_size),
             ffn = static_cast<double>(model.ffn_size),
             vocab = static_cast<double>(model.vocab_size),
             heads = static_cast<double>((model.heads + model.kv_heads) * model.head_dim);
  const double block = 2 * hidden * heads + (llama ? 3 : 2) * hidden * ffn;
  const double rows = (model.tie_word_embeddings ? 1 : 2) * vocab +
                      (llama ? 0 : static_cast<double>(model.max_positions));
  return (layers * block + rows * hidden) / 1e9;
}

// By what the row says of sizes alone.
Blocks blocks_by_sizes(const Run& run) {
  using models::Family;
  if (run.params_b > 0) {
    const double gpt = billions(sized(run, Family::kGpt2)),
                 llama = billions(sized(run, Family::kLlama));
    const double from_gpt = std::abs(std::log(gpt / run.params_b)),
                 from_llama = std::abs(std::log(llama / run.params_b));
    if (std::min(from_gpt, from_llama) < kNearSizes) {
      const bool is_llama = from_llama < from_gpt;
      return {
          is_llama ? Family::kLlama : Family::kGpt2,
          fmt::format("{} blocks (params_b {:g}: a {} has {:.3g}, a {} {:.3g})",
                      is_llama ? "Llama" : "GPT", run.params_b, is_llama ? "Llama" : "GPT",
                      is_llama ? llama : gpt, is_llama ? "GPT" : "Llama", is_llama ? gpt : llama)};
    }
  }
  if (run.kv_heads < run.heads)
    return {Family::kLlama,
            fmt::format("Llama blocks (kv_heads {} of {} heads)", run.kv_heads, run.heads)};
  if (run.ffn != 4 * run.hidden)
    return {Family::kLlama, fmt::format("Llama blocks (ffn {} is not 4*hidden)", run.ffn)};
  return {Family::kGpt2, "GPT blocks (kv_heads = heads, ffn = 4*hidden)"};
}

void add_experts(const Experts& experts, models::ModelConfig& model) {
  models::Mixture& mixture = model.mixture;
  mixture.experts = experts.experts;
  mixture.top_k = experts.top_k;
  mixture.ffn_size = experts.ffn;
  mixture.shared_ffn_size = experts.shared * experts.ffn;
  mixture.dense_layers = experts.dense;
}

// What a row has no column for is as in a public model of its family.
void add_latent(const models::ModelConfig& known, models::ModelConfig& model) {
  model.latent = known.latent;
  model.head_dim = known.head_dim;
  model.mixture.sigmoid = known.mixture.sigmoid;
  model.mixture.scale = known.mixture.scale;
}
void add_plain(const models::ModelConfig& known, models::ModelConfig& model) {
  if (known.head_dim > 0) model.head_dim = known.head_dim;
  model.normed_heads = known.normed_heads;
  model.attention_bias = known.attention_bias;
  model.qkv_bias = known.qkv_bias;
  model.mlp_bias = known.mlp_bias;
  model.mixture.bias = model.mixture.experts > 0 && known.mixture.bias;
  model.window = known.window;
}

// Of "E256k8s1f2048" the numbers behind those letters; empty: it is not made so.
std::optional<std::array<int64_t, 4>> counts_behind(std::string_view letters,
                                                    std::string_view text) {
  std::array<int64_t, 4> counts = {};
  for (size_t i = 0; i < counts.size(); ++i) {
    if (text.empty() || text[0] != letters[i]) return std::nullopt;
    const size_t end = std::min(text.size(), text.find_first_not_of("0123456789", 1));
    const std::optional<int64_t> count = parse_int64(text.substr(1, end - 1));
    if (!count) return std::nullopt;
    counts[i] = *count;
    text.remove_prefix(end);
  }
  return text.empty() ? std::optional(counts) : std::nullopt;
}

}  // namespace

bool says_one_of(const Run& run, const std::vector<std::string>& texts) {
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
    return run.source.find(text) != std::string::npos || run.notes.find(text) != std::string::npos;
  });
}

std::optional<Experts> experts_of(const std::string& moe) {
  Experts made;
  for (const std::string_view part : split(moe, ';')) {
    const std::vector<std::string_view> words = split_words(part);
    if (words.size() == 2 && words[1] == "dense") {
      made.dense = parse_int64(words[0]).value_or(-1);
    } else if (words.size() == 1 && words[0] == "MLA") {
      made.latent = true;
    } else {
      const std::optional<std::array<int64_t, 4>> counts = counts_behind("Eksf", part);
      if (!counts) return std::nullopt;
      std::tie(made.experts, made.top_k, made.shared, made.ffn) = std::tuple_cat(*counts);
    }
  }
  // As in a model's config.json (models/config.cc).
  constexpr int64_t kMostExperts = 1 << 14, kMostWidth = int64_t{4} << 20;
  if (made.experts < 1 || made.experts > kMostExperts || made.top_k < 1 ||
      made.top_k > made.experts || made.shared > kMostExperts || made.ffn < 1 ||
      made.ffn > kMostWidth || made.dense < 0)
    return std::nullopt;
  return made;
}

bool says_latent(const std::string& moe) {
  const std::optional<Experts> experts = experts_of(moe);
  return experts && experts->latent;
}

Blocks blocks_of(const Run& run) {
  if (run.moe.empty())
    return run.family ? Blocks{run.family->model.family, ""} : blocks_by_sizes(run);
  Blocks made{models::Family::kLlama, ""};
  if (says_latent(run.moe) && run.family && !is_of_family(run.model, *run.family))
    made.assumed = fmt::format("latent attention of {}'s sizes", run.family->name);
  return made;
}

std::string odd_sizes(const Run& run) {
  if (run.params_b <= 0 || !run.moe.empty()) return "";
  const double have = billions(model_of(run));
  if (std::abs(std::log(have / run.params_b)) < kNearSizes) return "";
  return fmt::format("sizes of {:.3g} billion parameters, not {:g}", have, run.params_b);
}

models::ModelConfig model_of(const Run& run) {
  models::ModelConfig model = sized(run, blocks_of(run).family);
  if (model.family != models::Family::kLlama) return model;
  if (const auto experts = experts_of(run.moe)) add_experts(*experts, model);
  const bool latent = says_latent(run.moe);
  if (run.family && run.family->has_latent_attention() == latent)
    (latent ? add_latent : add_plain)(run.family->model, model);
  return model;
}

}  // namespace mw::calibrate
