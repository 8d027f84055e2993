#include "models/hf_mapping.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace mw::models {

bool is_identity(const TensorMapping& mapping) {
  return std::is_sorted(mapping.permutation.begin(), mapping.permutation.end());
}

namespace {

// How the tensors whose names end like this are stored: the permutation (empty: none) and how many
// dimensions of the view each dimension of the file joins.
struct Layout {
  std::string_view suffix;
  std::vector<int> permutation;
  std::vector<int> joins;
};

const std::vector<Layout>& layouts(Family family) {
  static const std::vector<Layout> gpt2 = {
      {".attn.c_attn.weight", {1, 2, 3, 0}, {1, 3}},  // Conv1D [D, 3HK] is [3, H, K, D]
      {".attn.c_attn.bias", {}, {3}},
      {".attn.c_proj.weight", {2, 0, 1}, {2, 1}},  // [HK, D] is [D, H, K]
      {".mlp.c_fc.weight", {1, 0}, {1, 1}},
      {".mlp.c_proj.weight", {1, 0}, {1, 1}},
  };
  static const std::vector<Layout> llama = {
      {".q_proj.weight", {}, {2, 1}}, {".k_proj.weight", {}, {2, 1}},
      {".v_proj.weight", {}, {2, 1}}, {".q_proj.bias", {}, {2}},
      {".k_proj.bias", {}, {2}},      {".v_proj.bias", {}, {2}},
      {".o_proj.weight", {}, {1, 2}},
  };
  return family == Family::kGpt2 ? gpt2 : llama;
}

TensorMapping map_tensor(const ModelConfig& config, const ir::State& state, StateId id) {
  TensorMapping mapping;
  mapping.hf_name = state.name;
  mapping.state = id;
  const auto rank = static_cast<size_t>(state.type.rank());
  mapping.permutation.resize(rank);
  std::iota(mapping.permutation.begin(), mapping.permutation.end(), 0);
  std::vector<int> joins(rank, 1);
  for (const Layout& layout : layouts(config.family)) {
    if (!ends_with(state.name, layout.suffix)) continue;
    if (!layout.permutation.empty()) mapping.permutation = layout.permutation;
    joins = layout.joins;
  }
  mapping.view.resize(rank);
  for (size_t i = 0; i < rank; ++i) {
    mapping.view[static_cast<size_t>(mapping.permutation[i])] = state.type.dim(static_cast<int>(i));
  }
  auto next = mapping.view.begin();
  for (const int count : joins) {
    mapping.hf_shape.push_back(
        std::accumulate(next, next + count, int64_t{1}, std::multiplies<>()));
    next += count;
  }
  MW_CHECK(next == mapping.view.end(), "the layout of {} does not fit rank {}", state.name, rank);
  return mapping;
}

// For every element of the state, in order, its index in the file.
template <typename Visit>
void for_each_element(const TensorMapping& mapping, const Visit& visit) {
  const size_t rank = mapping.view.size();
  std::vector<int64_t> view_strides(rank, 1);
  for (size_t i = rank; i-- > 1;) view_strides[i - 1] = view_strides[i] * mapping.view[i];
  std::vector<int64_t> sizes(rank), strides(rank), at(rank, 0);
  int64_t elements = 1;
  for (size_t i = 0; i < rank; ++i) {
    const auto from = static_cast<size_t>(mapping.permutation[i]);
    sizes[i] = mapping.view[from];
    strides[i] = view_strides[from];
    elements *= sizes[i];
  }
  if (elements == 0) return;
  const int64_t inner = rank == 0 ? 1 : sizes[rank - 1];
  const int64_t inner_stride = rank == 0 ? 1 : strides[rank - 1];
  int64_t hf = 0;
  for (int64_t begin = 0; begin < elements; begin += inner) {
    for (int64_t i = 0; i < inner; ++i) visit(begin + i, hf + i * inner_stride);
    for (size_t d = rank > 0 ? rank - 1 : 0; d-- > 0;) {
      hf += strides[d];
      if (++at[d] < sizes[d]) break;
      hf -= sizes[d] * strides[d];
      at[d] = 0;
    }
  }
}

template <size_t kSize, typename Order>
void copy_elements(const TensorMapping& mapping, const std::byte* from, std::byte* to,
                   const Order& order) {
  for_each_element(mapping, [&](int64_t state, int64_t hf) {
    const auto [source, target] = order(state, hf);
    std::memcpy(to + static_cast<size_t>(target) * kSize,
                from + static_cast<size_t>(source) * kSize, kSize);
  });
}

template <typename Order>
void copy(const TensorMapping& mapping, std::span<const std::byte> from, std::span<std::byte> to,
          const Order& order) {
  const int64_t elements =
      std::accumulate(mapping.view.begin(), mapping.view.end(), int64_t{1}, std::multiplies<>());
  MW_CHECK(
      from.size() == to.size() && elements > 0 && from.size() % static_cast<size_t>(elements) == 0,
      "{}: copies {} bytes to {} for {} elements", mapping.hf_name, from.size(), to.size(),
      elements);
  if (is_identity(mapping)) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  switch (from.size() / static_cast<size_t>(elements)) {
    case 1: return copy_elements<1>(mapping, from.data(), to.data(), order);
    case 2: return copy_elements<2>(mapping, from.data(), to.data(), order);
    case 4: return copy_elements<4>(mapping, from.data(), to.data(), order);
    case 8: return copy_elements<8>(mapping, from.data(), to.data(), order);
    default:
      MW_CHECK(false, "{}: {} bytes for {} elements", mapping.hf_name, from.size(), elements);
  }
}

}  // namespace

std::vector<TensorMapping> hf_mapping(const ModelConfig& config, const ir::Module& module) {
  const std::string prefix = config.family == Family::kGpt2 ? "transformer." : "model.";
  std::vector<TensorMapping> mappings;
  for (const StateId id : module.parameters()) {
    TensorMapping mapping = map_tensor(config, module.state(id), id);
    if (starts_with(mapping.hf_name, prefix))
      mapping.aliases.push_back(mapping.hf_name.substr(prefix.size()));
    const bool table = ends_with(mapping.hf_name, ".wte.weight") ||
                       ends_with(mapping.hf_name, ".embed_tokens.weight");
    if (table && config.tie_word_embeddings) mapping.aliases.push_back("lm_head.weight");
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

bool is_hf_buffer(std::string_view name) {
  return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
         ends_with(name, "rotary_emb.inv_freq");
}

void from_hf(const TensorMapping& mapping, std::span<const std::byte> hf,
             std::span<std::byte> state) {
  copy(mapping, hf, state,
       [](int64_t state_index, int64_t hf_index) { return std::pair(hf_index, state_index); });
}

void to_hf(const TensorMapping& mapping, std::span<const std::byte> state,
           std::span<std::byte> hf) {
  copy(mapping, state, hf,
       [](int64_t state_index, int64_t hf_index) { return std::pair(state_index, hf_index); });
}

}  // namespace mw::models
