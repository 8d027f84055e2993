// The model that a row of published runs names. Private to room calibrate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "calibrate/runs.h"
#include "models/config.h"

namespace mw::calibrate {

// Whether the row's source or notes hold one of the texts.
bool says_one_of(const Run& run, const std::vector<std::string>& texts);

// "E256k8s1f2048;3 dense;MLA": 256 experts, 8 of them a token's, a shared one, 2048 wide; the first
// 3 layers have none; latent attention.
struct Experts {
  int64_t experts = 0, top_k = 0, shared = 0, ffn = 0, dense = 0;
  bool latent = false;
};
std::optional<Experts> experts_of(const std::string& moe);
bool says_latent(const std::string& moe);

// Whose blocks a row's are: those of its family (families.h); a mixture's are a Llama's. Where the
// name holds none, those whose parameters are the nearer to params_b, if either's are within a
// quarter of it; else a Llama's where queries share keys or ffn is not 4 hidden.
struct Blocks {
  models::Family family = models::Family::kGpt2;
  std::string assumed;  // "Llama blocks (kv_heads 8 of 32)", where the name does not say it
};
Blocks blocks_of(const Run& run);

// "sizes of 17.7 billion parameters, not 177", where the blocks' matrices have more than a quarter
// more or less than params_b; "": they have not, or a mixture's are not held against it.
std::string odd_sizes(const Run& run);

// REQUIRES: the row's sizes are there. Where the row does not say whether they are tied, a GPT's
// output weights are the embedding's unless its queries share keys (Megatron-LM's functional tests
// untie them).
models::ModelConfig model_of(const Run& run);

}  // namespace mw::calibrate
