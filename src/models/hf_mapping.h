// How a Hugging Face checkpoint stores the parameters of a model of the zoo: names, shapes and the
// order of elements. Our shapes show heads and put the output dimension first; theirs join
// dimensions, and GPT-2's Conv1D has the input dimension first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "models/config.h"

namespace mw::models {

struct TensorMapping {
  std::string hf_name;               // in the state_dict of the model with its language-model head
  std::vector<std::string> aliases;  // other names under which files hold it: without the base
                                     // model's prefix, and the tied lm_head.weight
  StateId state;
  std::vector<int64_t> hf_shape;
  // hf_shape with its joined dimensions split (same elements in the same order); the state's
  // dimension i is its dimension permutation[i].
  std::vector<int64_t> view;
  std::vector<int> permutation;

  friend bool operator==(const TensorMapping&, const TensorMapping&) = default;
};

// One entry for each weight, in the module's order. REQUIRES: module is build_model(config, …).
std::vector<TensorMapping> hf_mapping(const ModelConfig& config, const ir::Module& module);

// Whether files of a family hold a tensor of that name that is no weight: causal masks (GPT-2) and
// rotary frequencies (Llama), which older ones have.
bool is_hf_buffer(std::string_view name);

// Whether file and state hold the elements in the same order.
bool is_identity(const TensorMapping& mapping);

// Copies all elements from the file's order into the state's, and back; elements of 1, 2, 4 or 8
// bytes. REQUIRES: both spans hold the tensor exactly.
void from_hf(const TensorMapping& mapping, std::span<const std::byte> hf,
             std::span<std::byte> state);
void to_hf(const TensorMapping& mapping, std::span<const std::byte> state, std::span<std::byte> hf);

}  // namespace mw::models
