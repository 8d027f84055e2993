#include "partition/test_ranks.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "ops/op_def.h"
#include "sharding/permutation.h"

namespace mw::partition::test {
namespace {

using ir::OpKind;
using Index = std::vector<int64_t>;

template <typename Visit>
void for_each(const ir::TensorType& type, Visit visit) {
  Index index(type.dims.size(), 0);
  const int64_t n = type.elements();
  for (int64_t at = 0; at < n; ++at) {
    visit(index, static_cast<size_t>(at));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < type.dims[d].size) break;
      index[d] = 0;
    }
  }
}

size_t place(const ir::TensorType& type, const Index& index) {
  int64_t at = 0;
  for (size_t d = 0; d < index.size(); ++d) at = at * type.dims[d].size + index[d];
  return static_cast<size_t>(at);
}

double reduced(ir::Reduction op, double a, double b) {
  switch (op) {
    case ir::Reduction::kSum: return a + b;
    case ir::Reduction::kMax: return std::max(a, b);
    case ir::Reduction::kMin: return std::min(a, b);
  }
  MW_CHECK(false, "reduction {}", static_cast<int>(op));
}

// The global index of a shard's element; false: it is padding.
bool global_index(const Index& local, const ir::TensorType& local_type,
                  const ir::TensorType& global, const sharding::Sharding& sharding,
                  const cluster::Mesh& mesh, RankId rank, Index& index) {
  index.resize(local.size());
  for (size_t d = 0; d < local.size(); ++d) {
    index[d] = mesh.index(rank, sharding.dims[d]) * local_type.dims[d].size + local[d];
    if (index[d] >= global.dims[d].size) return false;
  }
  return true;
}

// One rank's part of a value that is pending over `members` ranks.
double part(const sharding::Sharding& sharding, double value, int64_t member, int64_t members,
            uint64_t at) {
  const auto noise = [&](int64_t m) {
    return random_uniform(RngKey{7, static_cast<uint64_t>(m), rng_site("part")}, at);
  };
  if (sharding.reduction == ir::Reduction::kSum) {
    if (member + 1 < members) return noise(member) - 0.5;
    for (int64_t m = 0; m + 1 < members; ++m) value -= noise(m) - 0.5;
    return value;
  }
  if (static_cast<int64_t>(at) % members == member) return value;
  return sharding.reduction == ir::Reduction::kMax ? value - noise(member) : value + noise(member);
}

// The member that has before what `member` has behind: its shard over `from` is the other's over
// `to`, and of several the one that permutation.h matches.
size_t source_of(const ir::CollectiveAttrs& attrs, const ir::Axes& axes, const cluster::Mesh& mesh,
                 int64_t member) {
  for (const auto& [source, to] : sharding::shard_moves(attrs.from, attrs.to, axes, mesh)) {
    if (to == member) return static_cast<size_t>(source);
  }
  MW_CHECK(false, "nobody sends to member {}", member);
}

Tensor collective(const ir::Op& op, const PerRank& x, const ir::TensorType& type,
                  const cluster::Mesh& mesh, RankId rank) {
  const auto& attrs = op.as<ir::CollectiveAttrs>();
  const ir::Axes& axes = std::get<ir::AxisGroup>(attrs.group).axes;
  const std::vector<RankId> members = mesh.members(rank, axes);
  const auto dim = static_cast<size_t>(attrs.dim), concat = static_cast<size_t>(attrs.concat_dim);
  const int64_t own = mesh.index(rank, axes);
  const auto of = [&](size_t m) -> const Tensor& { return x[members[m].index()]; };
  Tensor out = ops::zeros(type);
  for_each(type, [&](const Index& index, size_t at) {
    Index from = index;
    double& to = out.values[at];
    const ir::TensorType& source = of(0).type;
    if (op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduceScatter) {
      if (op.kind == OpKind::kReduceScatter) from[dim] += own * type.dims[dim].size;
      to = of(0).values[place(source, from)];
      for (size_t m = 1; m < members.size(); ++m)
        to = reduced(attrs.op, to, of(m).values[place(source, from)]);
      return;
    }
    if (op.kind == OpKind::kPermute) {
      to = of(source_of(attrs, axes, mesh, own)).values[at];
      return;
    }
    const size_t joined = op.kind == OpKind::kAllGather ? dim : concat;
    if (op.kind == OpKind::kAllToAll) from[dim] += own * type.dims[dim].size;
    const int64_t size = source.dims[joined].size;
    from[joined] = index[joined] % size;
    to = of(static_cast<size_t>(index[joined] / size)).values[place(source, from)];
  });
  return out;
}

}  // namespace

Tensor random_tensor(const ir::TensorType& type, const std::string& site, uint64_t seed) {
  Tensor tensor = ops::zeros(type);
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    tensor.values[i] = 2 * random_uniform(RngKey{seed, 0, rng_site(site)}, i) - 1;
  }
  return tensor;
}

PerRank shard(const Tensor& global, const sharding::Sharding& sharding, const cluster::Mesh& mesh,
              double tail) {
  PerRank shards;
  const ir::TensorType type = sharding::local_type(global.type, sharding, mesh);
  for (int64_t r = 0; r < mesh.size(); ++r) {
    const RankId rank(r);
    Tensor local = ops::zeros(type);
    Index index;
    for_each(type, [&](const Index& at, size_t i) {
      if (!global_index(at, type, global.type, sharding, mesh, rank, index)) {
        local.values[i] = tail;
        return;
      }
      const size_t g = place(global.type, index);
      local.values[i] = part(sharding, global.values[g], mesh.index(rank, sharding.partial),
                             mesh.group_size(sharding.partial), g);
    });
    shards.push_back(std::move(local));
  }
  return shards;
}

std::optional<Tensor> unshard(const PerRank& shards, const ir::TensorType& global,
                              const sharding::Sharding& sharding, const cluster::Mesh& mesh,
                              std::string& problem) {
  const ir::TensorType type = sharding::local_type(global, sharding, mesh);
  Tensor whole = ops::zeros(global);
  std::vector<bool> known(whole.values.size(), false);
  for (int64_t r = 0; r < mesh.size(); ++r) {
    const RankId rank(r);
    if (shards[rank.index()].type != type) {
      problem = fmt::format("rank {} holds {}, must hold {}", r,
                            ir::to_string(shards[rank.index()].type), ir::to_string(type));
      return std::nullopt;
    }
    const std::vector<RankId> members = mesh.members(rank, sharding.partial);
    Index index;
    for_each(type, [&](const Index& at, size_t i) {
      if (!global_index(at, type, global, sharding, mesh, rank, index)) return;
      double value = shards[members[0].index()].values[i];
      for (size_t m = 1; m < members.size(); ++m) {
        value = reduced(sharding.reduction, value, shards[members[m].index()].values[i]);
      }
      const size_t g = place(global, index);
      if (known[g] && std::abs(whole.values[g] - value) > 1e-9 * (1 + std::abs(value))) {
        problem = fmt::format("rank {} holds {} as element {}, another rank {}", r, value, g,
                              whole.values[g]);
      }
      whole.values[g] = value;
      known[g] = true;
    });
  }
  if (std::find(known.begin(), known.end(), false) != known.end())
    problem = "an element is on no rank";
  if (!problem.empty()) return std::nullopt;
  return whole;
}

std::vector<PerRank> run_ranks(const ir::Graph& graph, const std::vector<PerRank>& inputs,
                               const cluster::Mesh& mesh) {
  std::vector<PerRank> values(graph.values.size());
  for (size_t i = 0; i < inputs.size(); ++i) values[graph.inputs[i].value.index()] = inputs[i];
  for (const ir::Op& op : graph.ops) {
    const std::vector<ir::TensorType> types = ops::result_types(graph, op);
    for (int64_t r = 0; r < mesh.size(); ++r) {
      const RankId rank(r);
      std::vector<Tensor> results;
      if (ir::is_collective(op.kind)) {
        for (size_t i = 0; i < op.results.size(); ++i) {
          results.push_back(collective(op, values[op.operands[i].index()], types[i], mesh, rank));
        }
      } else {
        std::vector<Tensor> operands;
        for (const ValueId v : op.operands) operands.push_back(values[v.index()][rank.index()]);
        ops::InterpretContext context;
        context.index = [&](const ir::Axes& axes) { return mesh.index(rank, axes); };
        context.size = [&](const ir::Axes& axes) { return mesh.group_size(axes); };
        results = ops::interpret_op(op, operands, types, context);
      }
      for (size_t i = 0; i < results.size(); ++i)
        values[op.results[i].index()].push_back(std::move(results[i]));
    }
  }
  return values;
}

std::string difference(const ir::Graph& graph, const std::vector<Tensor>& inputs,
                       const Partitioned& partitioned, const cluster::Mesh& mesh,
                       const Comparison& comparison) {
  std::vector<PerRank> local;
  for (const ir::Input& input : partitioned.graph.inputs) {
    const ValueId global = partitioned.global_value[input.value.index()];
    size_t at = 0;
    while (graph.inputs[at].value != global) ++at;
    const bool is_float = graph.type(global).dtype == DType::kF32;
    local.push_back(shard(inputs[at], partitioned.shardings[input.value.index()], mesh,
                          input.state.valid() || !is_float ? 0 : comparison.tail));
  }
  const std::vector<Tensor> whole = ops::interpret(graph, inputs);
  const std::vector<PerRank> values = run_ranks(partitioned.graph, local, mesh);
  for (size_t v = 0; v < whole.size(); ++v) {
    const ValueId version = partitioned.main_version[v];
    if (!version.valid()) continue;
    std::string problem;
    const auto got = unshard(values[version.index()], whole[v].type,
                             partitioned.shardings[version.index()], mesh, problem);
    const std::string label = graph.label(ValueId(static_cast<int64_t>(v)));
    if (!got) return label + ": " + problem;
    for (size_t i = 0; i < whole[v].values.size(); ++i) {
      const double want = whole[v].values[i];
      const double bound = 1e-9 * (1 + comparison.relative * std::abs(want));
      if (!(std::abs(got->values[i] - want) <= bound))
        return fmt::format("{}[{}] is {}, must be {}", label, i, got->values[i], want);
    }
  }
  return "";
}

std::vector<std::string> communication(const ir::Graph& graph) {
  std::vector<std::string> found;
  for (const ir::Op& op : graph.ops) {
    if (!ir::is_collective(op.kind) && op.kind != OpKind::kShardSlice) continue;
    const auto& attrs = op.as<ir::CollectiveAttrs>();
    const ir::Axes& axes = std::get<ir::AxisGroup>(attrs.group).axes;
    std::string text = fmt::format("{}{{{}}}", ir::op_name(op.kind), join(axes, ","));
    if (op.kind != OpKind::kAllReduce) text += fmt::format(" dim {}", attrs.dim);
    if (op.kind == OpKind::kAllToAll) text += fmt::format(" from {}", attrs.concat_dim);
    if (op.kind == OpKind::kPermute)
      text += fmt::format(" from {{{}}} to {{{}}}", join(attrs.from, ","), join(attrs.to, ","));
    found.push_back(std::move(text));
  }
  return found;
}

}  // namespace mw::partition::test
