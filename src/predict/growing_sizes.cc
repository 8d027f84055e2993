#include "predict/growing_sizes.h"

#include <algorithm>
#include <numeric>

namespace mw::predict {
namespace {

using ir::TensorType;
using pipeline::Fragment;
using pipeline::Program;

// Attributes that only say how large something is may differ.
bool alike(const ir::Attributes& a, const ir::Attributes& b) {
  if (a == b) return true;
  if (a.index() != b.index()) return false;
  if (const auto* collective = std::get_if<ir::CollectiveAttrs>(&a)) {
    ir::CollectiveAttrs other = std::get<ir::CollectiveAttrs>(b);
    other.global_size = collective->global_size;
    return other == *collective;
  }
  return std::holds_alternative<ir::SliceAttrs>(a) || std::holds_alternative<ir::PadAttrs>(a);
}

bool alike(const ir::Op& a, const ir::Op& b) {
  return a.kind == b.kind && a.operands == b.operands && a.results == b.results &&
         a.work == b.work && a.accumulates == b.accumulates && alike(a.attrs, b.attrs);
}

bool alike(const std::vector<pipeline::Port>& a, const std::vector<pipeline::Port>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const pipeline::Port& x, const pipeline::Port& y) {
                      return x.kind == y.kind && x.value == y.value && x.consumed == y.consumed;
                    });
}

bool alike(const Fragment& a, const Fragment& b) {
  const auto same_launch = [](const pipeline::Launch& x, const pipeline::Launch& y) {
    return x.stream == y.stream && x.waits == y.waits && x.records == y.records;
  };
  return a.kind == b.kind && a.slice == b.slice && a.samples == b.samples &&
         a.graph.values.size() == b.graph.values.size() && a.shardings == b.shardings &&
         a.alias_of == b.alias_of && alike(a.inputs, b.inputs) && alike(a.outputs, b.outputs) &&
         std::equal(a.graph.ops.begin(), a.graph.ops.end(), b.graph.ops.begin(), b.graph.ops.end(),
                    [](const ir::Op& x, const ir::Op& y) { return alike(x, y); }) &&
         std::equal(a.launches.begin(), a.launches.end(), b.launches.begin(), b.launches.end(),
                    same_launch);
}

// Who calls what, and what the states are.
bool alike(const pipeline::RankProgram& a, const pipeline::RankProgram& b) {
  return std::equal(a.commands.begin(), a.commands.end(), b.commands.begin(), b.commands.end(),
                    [](const pipeline::Command& x, const pipeline::Command& y) {
                      return x.kind == y.kind && x.fragment == y.fragment && x.action == y.action;
                    }) &&
         std::equal(a.buffers.begin(), a.buffers.begin() + a.states, b.buffers.begin(),
                    b.buffers.begin() + b.states,
                    [](const pipeline::Buffer& x, const pipeline::Buffer& y) {
                      return x.category == y.category && x.type() == y.type();
                    });
}

bool alike(const Program& a, const Program& b) {
  return std::equal(a.ranks.begin(), a.ranks.end(), b.ranks.begin(), b.ranks.end(),
                    [](const auto& x, const auto& y) { return alike(x, y); }) &&
         std::equal(a.fragments.begin(), a.fragments.end(), b.fragments.begin(), b.fragments.end(),
                    [](const Fragment& x, const Fragment& y) { return alike(x, y); });
}

uint32_t multiples(const TensorType& type, int64_t of) {
  uint32_t dims = 0;
  for (size_t d = 0; d < type.dims.size(); ++d) {
    if (type.dims[d].size % of == 0) dims |= 1u << d;
  }
  return dims;
}

// The dimensions that differ; empty: one of them not by as much as the sequences.
std::optional<uint32_t> grown(const TensorType& fewer, int64_t few, const TensorType& more,
                              int64_t many) {
  if (fewer.dtype != more.dtype || fewer.dims.size() != more.dims.size()) return std::nullopt;
  uint32_t dims = 0;
  for (size_t d = 0; d < fewer.dims.size(); ++d) {
    const int64_t small = fewer.dims[d].size, large = more.dims[d].size;
    if (small == large) continue;
    if (small * many != large * few) return std::nullopt;
    dims |= 1u << d;
  }
  return dims;
}

void resize_dims(TensorType& type, uint32_t grows, int64_t from, int64_t sequences) {
  for (size_t d = 0; d < type.dims.size(); ++d) {
    if (grows >> d & 1) type.dims[d].size = type.dims[d].size * sequences / from;
  }
}

}  // namespace

void GrowingSizes::add(const TensorType& type, uint32_t grows) {
  for (size_t d = 0; d < type.dims.size(); ++d) {
    if (grows >> d & 1) unit_ = std::gcd(unit_, type.dims[d].size);
  }
}

GrowingSizes GrowingSizes::marked(const Program& program, int64_t sequences) {
  GrowingSizes sizes(sequences);
  for (const Fragment& fragment : program.fragments) {
    auto& values = sizes.values_.emplace_back();
    for (size_t v = 0; v < fragment.graph.values.size(); ++v) {
      const TensorType &local = fragment.graph.values[v].type, &global = fragment.global_types[v];
      values.push_back({multiples(local, sequences), multiples(global, sequences)});
      sizes.add(local, values.back().local);
      sizes.add(global, values.back().global);
    }
  }
  return sizes;
}

std::optional<GrowingSizes> GrowingSizes::between(const Program& fewer, int64_t few,
                                                  const Program& more, int64_t many) {
  if (!alike(fewer, more)) return std::nullopt;
  GrowingSizes sizes(few);
  for (size_t f = 0; f < fewer.fragments.size(); ++f) {
    const Fragment &a = fewer.fragments[f], &b = more.fragments[f];
    auto& values = sizes.values_.emplace_back();
    for (size_t v = 0; v < a.graph.values.size(); ++v) {
      const auto local = grown(a.graph.values[v].type, few, b.graph.values[v].type, many);
      const auto global = grown(a.global_types[v], few, b.global_types[v], many);
      if (!local || !global) return std::nullopt;
      values.push_back({*local, *global});
      sizes.add(a.graph.values[v].type, *local);
      sizes.add(a.global_types[v], *global);
    }
  }
  return sizes;
}

void GrowingSizes::resize(size_t f, size_t v, int64_t sequences, Fragment& fragment) const {
  const Dims& grows = values_[f][v];
  resize_dims(fragment.graph.values[v].type, grows.local, from_, sequences);
  resize_dims(fragment.global_types[v], grows.global, from_, sequences);
}

}  // namespace mw::predict
