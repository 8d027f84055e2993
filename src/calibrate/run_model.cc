#include "calibrate/run_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace mw::calibrate {
namespace {

// Families of models and whose blocks they have. `whole`: no letter may stand on either side of
// the name. A GPT's: layer norms, biases, an MLP of two products. A Llama's: RMS norms, one of
// three.
struct Known {
  std::string_view name;
  models::Family family;
  bool whole = false;
};
constexpr std::array<Known, 18> kKnown = {{{"llama", models::Family::kLlama},
                                           {"mistral", models::Family::kLlama},
                                           {"mixtral", models::Family::kLlama},
                                           {"qwen", models::Family::kLlama},
                                           {"yi", models::Family::kLlama, true},
                                           {"deepseek", models::Family::kLlama},
                                           {"moonlight", models::Family::kLlama},
                                           {"internlm", models::Family::kLlama},
                                           {"vicuna", models::Family::kLlama},
                                           {"gpt-oss", models::Family::kLlama},
                                           {"gpt", models::Family::kGpt2},
                                           {"mt-nlg", models::Family::kGpt2},
                                           {"turing-nlg", models::Family::kGpt2},
                                           {"bloom", models::Family::kGpt2},
                                           {"mpt", models::Family::kGpt2, true},
                                           {"opt", models::Family::kGpt2, true},
                                           {"pythia", models::Family::kGpt2},
                                           {"bert", models::Family::kGpt2}}};

// Of params_b, as a logarithm: a quarter.
const double kNearSizes = std::log(1.25);

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

bool holds(const std::string& lower, const Known& known) {
  for (size_t at = lower.find(known.name); at != std::string::npos;
       at = lower.find(known.name, at + 1)) {
    const size_t end = at + known.name.size();
    if (!known.whole ||
        ((at == 0 || !is_letter(lower[at - 1])) && (end == lower.size() || !is_letter(lower[end]))))
      return true;
  }
  return false;
}

bool ties_embeddings(const Run& run) {
  return run.kv_heads == run.heads && !says_one_of(run, {"untied embeddings"});
}

// Matrices of the blocks and of the embeddings, in billions. A GPT's with a matrix of positions.
double billions(const Run& run, models::Family family) {
  const bool llama = family == models::Family::kLlama;
  const auto layers = static_cast<double>(run.layers), hidden = static_cast<double>(run.hidden),
             ffn = static_cast<double>(run.ffn), vocab = static_cast<double>(run.vocab);
  const double shared = static_cast<double>(run.kv_heads) / static_cast<double>(run.heads);
  const double block = 2 * hidden * hidden * (1 + shared) + (llama ? 3 : 2) * hidden * ffn;
  const double rows = llama                  ? 2 * vocab
                      : ties_embeddings(run) ? vocab + static_cast<double>(run.seq)
                                             : 2 * vocab + static_cast<double>(run.seq);
  return (layers * block + rows * hidden) / 1e9;
}

// By what the row says of sizes alone.
Blocks blocks_by_sizes(const Run& run) {
  using models::Family;
  if (run.params_b > 0) {
    const double gpt = billions(run, Family::kGpt2), llama = billions(run, Family::kLlama);
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

// What a row does not say stands in the models' public config.json: Qwen3 has heads of 128 and
// norms them, Qwen before it has biases of queries, keys and values; GPT-OSS has heads of 64,
// biases and a window of 128 in every other layer.
void add_family(const Run& run, models::ModelConfig& model) {
  const std::string name = to_lower(run.model);
  const auto says = [&](const char* family) { return name.find(family) != std::string::npos; };
  if (says("qwen3")) {
    model.head_dim = 128;
    model.normed_heads = true;
  } else if (says("qwen")) {
    model.attention_bias = true;
  } else if (says("gpt-oss")) {
    model.head_dim = 64;
    model.attention_bias = true;
    model.mixture.bias = model.mixture.experts > 0;
    model.window = 128;
  }
}

// DeepSeek-V3's latent attention has ranks 1536 and 512, heads of 128 + 64 and values of 128.
void add_experts(const Experts& experts, models::ModelConfig& model) {
  models::Mixture& mixture = model.mixture;
  mixture.experts = experts.experts;
  mixture.top_k = experts.top_k;
  mixture.ffn_size = experts.ffn;
  mixture.shared_ffn_size = experts.shared * experts.ffn;
  mixture.dense_layers = experts.dense;
  if (!experts.latent) return;
  mixture.sigmoid = true;
  mixture.scale = 2.5;
  model.latent = {1536, 512, 64, 128};
  model.head_dim = 128 + 64;
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
      const std::string text(part);
      int used = 0;
      long long e = 0, k = 0, s = 0, f = 0;
      if (std::sscanf(text.c_str(), "E%lldk%llds%lldf%lld%n", &e, &k, &s, &f, &used) != 4 ||
          used != static_cast<int>(text.size()))
        return std::nullopt;
      made.experts = e, made.top_k = k, made.shared = s, made.ffn = f;
    }
  }
  // As in a model's config.json (models/config.cc).
  constexpr int64_t kMostExperts = 1 << 14, kMostWidth = int64_t{4} << 20;
  if (made.experts < 1 || made.experts > kMostExperts || made.top_k < 1 ||
      made.top_k > made.experts || made.shared < 0 || made.shared > kMostExperts || made.ffn < 1 ||
      made.ffn > kMostWidth || made.dense < 0)
    return std::nullopt;
  return made;
}

Blocks blocks_of(const Run& run) {
  if (!run.moe.empty()) return {models::Family::kLlama, ""};
  const std::string name = to_lower(run.model);
  for (const Known& known : kKnown) {
    if (holds(name, known)) return {known.family, ""};
  }
  return blocks_by_sizes(run);
}

std::string odd_sizes(const Run& run) {
  if (run.params_b <= 0 || !run.moe.empty()) return "";
  const double have = billions(run, blocks_of(run).family);
  if (std::abs(std::log(have / run.params_b)) < kNearSizes) return "";
  return fmt::format("sizes of {:.3g} billion parameters, not {:g}", have, run.params_b);
}

models::ModelConfig model_of(const Run& run) {
  models::ModelConfig model;
  model.source = run.model;
  model.family = blocks_of(run).family;
  model.vocab_size = run.vocab;
  model.max_positions = run.seq;
  model.hidden_size = run.hidden;
  model.layers = run.layers;
  model.heads = run.heads;
  model.kv_heads = run.kv_heads;
  model.head_dim = run.hidden / run.heads;
  model.ffn_size = run.ffn;
  const bool llama = model.family == models::Family::kLlama;
  model.tie_word_embeddings = !llama && ties_embeddings(run);
  if (!llama) return model;
  model.activation = models::Activation::kSilu;
  if (const auto experts = experts_of(run.moe)) add_experts(*experts, model);
  if (!model.latent.kv_rank) add_family(run, model);
  return model;
}

}  // namespace mw::calibrate
