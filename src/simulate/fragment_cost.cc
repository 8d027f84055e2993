#include "simulate/fragment_cost.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "cost/collective.h"
#include "cost/op_time.h"
#include "ops/op_def.h"
#include "pipeline/volume.h"

namespace mw::simulate {
namespace {

using ir::OpKind;
using pipeline::Divides;
using pipeline::Fragment;

ValueId root_of(const Fragment& fragment, ValueId v) {
  const ValueId root = fragment.alias_of[v.index()];
  return root.valid() ? root : v;
}

// A view, a reshape or a copy whose result already lies where its operand does; an assembly of
// parts that lie in it.
bool is_alias(const Fragment& fragment, const ir::Op& op) {
  const bool may = op.kind == OpKind::kReshape || op.kind == OpKind::kCopy ||
                   op.kind == OpKind::kView || op.kind == OpKind::kAssemble;
  if (!may) return false;
  for (const ValueId operand : op.operands) {
    if (root_of(fragment, operand) != root_of(fragment, op.results[0])) return false;
  }
  return true;
}

// Ops count causal attention's pairs; utilization is told with the whole square [Narayanan 2021].
double square_flops(const ir::Graph& graph, const ir::Op& op, double flops) {
  if (op.kind != OpKind::kAttention && op.kind != OpKind::kAttentionGrad) return flops;
  const auto& attrs = op.as<ir::AttentionAttrs>();
  if (!attrs.causal) return flops;
  const size_t keys = op.kind == OpKind::kAttentionGrad ? 2 : 1;
  const bool part = !attrs.queries.axes.empty();
  const double T = static_cast<double>(graph.type(op.operands[part ? keys : 0]).dim(1));
  return flops * 2 * T / (T + 1);
}

bool is_state(const Fragment& fragment, ValueId v) {
  return std::any_of(fragment.inputs.begin(), fragment.inputs.end(), [&](const auto& port) {
    return port.kind == pipeline::PortKind::kState && port.value == v;
  });
}

Beside beside_of(OpKind kind, Divides divides) {
  if (kind == OpKind::kAllToAll || kind == OpKind::kPermute) return Beside::kOther;
  switch (divides) {
    case Divides::kTensor: return Beside::kTensor;
    case Divides::kSequence: return Beside::kRing;
    case Divides::kExperts: return Beside::kOther;  // tokens, gathered for few experts
    case Divides::kReplicas: break;
  }
  return kind == OpKind::kAllGather ? Beside::kParamGather : Beside::kGradReduce;
}

// Whether recomputed ops read what the op gathers, directly or through views.
bool serves_recomputation(const Fragment& fragment, const ir::Op& gather) {
  std::set<ValueId> parts(gather.results.begin(), gather.results.end());
  for (const ir::Op& op : fragment.graph.ops) {
    const bool reads = std::any_of(op.operands.begin(), op.operands.end(),
                                   [&](ValueId v) { return parts.contains(v); });
    if (!reads) continue;
    if (op.recompute.valid() && op.kind != OpKind::kView) return true;
    if (op.kind == OpKind::kView) parts.insert(op.results.begin(), op.results.end());
  }
  return false;
}

// Of an update: what adds up the gradients' norm, in fp64, or the loss, a scalar.
bool sums_of_step(const ir::Graph& graph, const ir::Op& op) {
  return std::all_of(op.operands.begin(), op.operands.end(), [&](ValueId v) {
    const ir::TensorType& type = graph.type(v);
    return type.dtype == DType::kF64 || type.elements() == 1;
  });
}

// The streams of a fragment's collectives: one for those of each label, which has a process group;
// with Gloo as many as that has threads, which take them in turn.
class Streams {
 public:
  Streams(bool gloo, size_t labels) : threads_(gloo ? kGlooThreads : 1), taken_(labels, 0) {}
  int32_t of(int32_t label) {
    return 1 + label * threads_ + taken_[static_cast<size_t>(label)]++ % threads_;
  }

 private:
  // [pytorch torch/csrc/distributed/c10d/init.cpp: twice its devices, of which there is one]
  static constexpr int32_t kGlooThreads = 2;
  const int32_t threads_;
  std::vector<int32_t> taken_;  // [label] collectives
};

void set_levels(const cluster::Cluster& cluster, const std::vector<cluster::GroupShape>& shapes,
                OpCost& op) {
  const std::vector<size_t> ports = cluster.port_levels();
  for (const cluster::GroupShape& shape : shapes) {
    for (size_t level = 0; level < shape.ways.size(); ++level) {
      if (shape.ways[level] <= 1) continue;
      op.levels |= uint32_t{1} << level;
      if (cluster.links[level].kind != cluster::LinkKind::kTorus)
        op.links |= uint32_t{1} << ports[level];
    }
    for (const cluster::TorusSide& side : shape.torus)
      op.links |= uint32_t{1} << side_level(cluster, side);
  }
}

}  // namespace

size_t side_level(const cluster::Cluster& cluster, const cluster::TorusSide& side) {
  static_assert(cluster::kMostLevels + cluster::kMostDimensions <= 32, "levels are bits");
  return cluster.links.size() + static_cast<size_t>(side.dimension);
}

int32_t Labels::id(const ir::DeviceGroup& group, bool of_weights, const cluster::Mesh& mesh) {
  const std::string name = pipeline::group_label(group);
  const Divides divides = pipeline::divided_by(group, of_weights);
  const auto it = std::find_if(labels_.begin(), labels_.end(), [&](const Label& label) {
    return label.name == name && label.divides == divides;
  });
  const auto id = static_cast<int32_t>(it - labels_.begin());
  if (it == labels_.end())
    labels_.push_back({name, pipeline::group_entry(group, divides, mesh), divides});
  return id;
}

FragmentCoster::FragmentCoster(const pipeline::Program& program, const cluster::Cluster& cluster,
                               const Options& options, Labels& labels,
                               std::vector<int32_t> coordinates)
    : program_(program),
      cluster_(cluster),
      options_(options),
      labels_(labels),
      coordinates_(std::move(coordinates)) {
  for (const pipeline::RankProgram& rank : program.ranks) {
    for (const pipeline::Buffer& buffer : rank.buffers) {
      if (buffer.category != pipeline::Category::kWeights) continue;
      const DType dtype = buffer.type().dtype;
      half_weights_ = half_weights_ || dtype_size(dtype) == 2;
      bf16_weights_ = bf16_weights_ || dtype == DType::kBF16;
    }
    if (half_weights_) break;
  }
  runs_ = runs_of_a_stage();
}

// Replicas of a stage share the microbatches, slices of a sequence are runs of their own.
double FragmentCoster::runs_of_a_stage() const {
  int32_t replicas = 1, slices = 1;
  for (const Fragment& fragment : program_.fragments) slices = std::max(slices, fragment.slice + 1);
  if (!program_.ranks.empty()) {
    for (const pipeline::Command& command : program_.ranks[0].commands)
      replicas = std::max(replicas, command.action.replica + 1);
  }
  return std::max(1.0, static_cast<double>(program_.microbatches) * slices / replicas);
}

RankId FragmentCoster::representative(int32_t pipeline_rank) const {
  const int32_t stands =
      coordinates_.empty() ? pipeline_rank : coordinates_[static_cast<size_t>(pipeline_rank)];
  std::vector<int64_t> at;
  for (const cluster::Axis& axis : program_.mesh.axes())
    at.push_back(axis.name == "pp" ? stands : 0);
  return at.empty() ? RankId(0) : program_.mesh.rank_at(at);
}

std::vector<RankId> FragmentCoster::replicas_beside(const Names& axes) const {
  Names others;
  for (const cluster::Axis& axis : program_.mesh.axes()) {
    if (axis.name != "pp" && std::find(axes.begin(), axes.end(), axis.name) == axes.end())
      others.push_back(axis.name);
  }
  return cluster::distinct_shifts(cluster_, program_.mesh.members(RankId(0), others));
}

const FragmentCoster::Group& FragmentCoster::group_along(const Names& axes, int32_t rank) {
  // A group over pp is that of all pipeline ranks, which lie at the same place in the other axes.
  constexpr int32_t kAll = -1;
  const bool crosses = std::find(axes.begin(), axes.end(), "pp") != axes.end();
  const auto [it, is_new] = groups_.try_emplace({crosses ? kAll : rank, axes});
  Group& group = it->second;
  if (!is_new) return group;
  const std::vector<RankId> members = program_.mesh.members(representative(rank), axes);
  group.size = static_cast<int64_t>(members.size());
  group.shapes = cluster::group_shapes(cluster_, members, replicas_beside(axes));
  if (!crosses) {
    group.ranks = {rank};
  } else {
    for (size_t r = 0; r < program_.ranks.size(); ++r)
      group.ranks.push_back(static_cast<int32_t>(r));
  }
  return group;
}

const FragmentCoster::Group& FragmentCoster::group_holding(const ir::Holders& holders) {
  const auto [it, is_new] = holders_.try_emplace(pipeline::group_label(holders));
  Group& group = it->second;
  if (!is_new) return group;
  std::set<RankId> members;
  for (size_t r = 0; r < program_.ranks.size(); ++r) {
    if (!holds(program_.ranks[r], holders.state)) continue;
    group.ranks.push_back(static_cast<int32_t>(r));
    const std::vector<RankId> of_rank =
        program_.mesh.members(representative(static_cast<int32_t>(r)), holders.axes);
    members.insert(of_rank.begin(), of_rank.end());
  }
  MW_CHECK(!members.empty(), "nobody holds {}", holders.state);
  group.size = static_cast<int64_t>(members.size());
  group.shapes = cluster::group_shapes(cluster_, {members.begin(), members.end()},
                                       replicas_beside(holders.axes));
  return group;
}

int64_t FragmentCost::Collective::sent() const {
  const Bytes once = pipeline::collective_volume(kind, bytes, size);
  return std::llround(static_cast<double>(once.value) * times);
}

const FragmentCoster::Group& FragmentCoster::group_of(const ir::DeviceGroup& group, int32_t rank) {
  if (const auto* axes = std::get_if<ir::AxisGroup>(&group)) return group_along(axes->axes, rank);
  return group_holding(std::get<ir::Holders>(group));
}

bool FragmentCoster::lie_alike(const Fragment& fragment, int32_t a, int32_t b) {
  const std::vector<ir::Op>& ops = fragment.graph.ops;
  return std::all_of(ops.begin(), ops.end(), [&](const ir::Op& op) {
    if (!ir::is_collective(op.kind)) return true;
    const ir::DeviceGroup& group = op.as<ir::CollectiveAttrs>().group;
    return group_of(group, a).shapes == group_of(group, b).shapes;
  });
}

void FragmentCoster::add_collective(const Fragment& fragment, const ir::Op& op, int32_t rank,
                                    FragmentCost& cost, OpCost& made) {
  const auto& attrs = op.as<ir::CollectiveAttrs>();
  const Group& group = group_of(attrs.group, rank);
  const bool left_out =
      cost.update && !cluster_.stack.global_sums && sums_of_step(fragment.graph, op);
  if (group.size <= 1 || left_out) {
    made.alias = true;
    return;
  }
  Bytes whole;
  for (const ValueId v : op.kind == OpKind::kAllGather ? op.results : op.operands)
    whole += fragment.graph.type(v).bytes();
  const bool of_weights = pipeline::is_of_weights(op, is_state(fragment, op.operands[0]));
  made.label = labels_.id(attrs.group, cost.update || of_weights, program_.mesh);
  const auto l = static_cast<size_t>(made.label);
  cost.sent.resize(std::max(cost.sent.size(), l + 1), 0);
  cost.collectives.resize(cost.sent.size(), 0);
  set_levels(cluster_, group.shapes, made);
  const bool reduces = op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduceScatter;
  made.beside = beside_of(op.kind, labels_[l].divides);
  FragmentCost::Collective collective;
  collective.op = static_cast<int32_t>(cost.ops.size());
  collective.kind = op.kind;
  collective.bytes = whole;
  collective.of_weights = !cost.update && of_weights;
  const DType dtype = fragment.graph.type(op.operands[0]).dtype;  // f64: the norm's sums
  const bool of_gradients = reduces && (cost.update || of_weights) && dtype != DType::kF64;
  if (of_gradients && half_weights_) {
    collective.gradients = whole.value / static_cast<int64_t>(dtype_size(dtype));
    collective.bytes =
        Bytes(std::llround(cluster_.device.attained.gradient_bytes_of(bf16_weights_) *
                           static_cast<double>(collective.gradients)));
  }
  collective.size = group.size;
  collective.shapes = group.shapes;
  if (collective.of_weights && op.kind == OpKind::kAllGather && cluster_.stack.gathered_again > 0 &&
      serves_recomputation(fragment, op))
    collective.times += cluster_.stack.gathered_again;
  cost.sent[l] += collective.sent();
  ++cost.collectives[l];
  cost.collectives_of.push_back(std::move(collective));
  if (group.ranks.size() <= 1) return;
  cost.crosses = true;
  const auto it = std::find(cross_labels_.begin(), cross_labels_.end(), made.label);
  made.cross = static_cast<int32_t>(it - cross_labels_.begin());
  if (it == cross_labels_.end()) {
    cross_labels_.push_back(made.label);
    cross_groups_.push_back({group.ranks});
  }
}

bool FragmentCoster::is_tensor(const OpCost& collective) const {
  return labels_[static_cast<size_t>(collective.label)].divides == Divides::kTensor;
}

// Whether it gathers or reduces weights of a microbatch, which go beside nothing.
bool FragmentCoster::holds_up(const OpCost& op, const FragmentCost& cost) const {
  return !options_.overlap.weights && !cost.update && op.label >= 0 &&
         (op.beside == Beside::kParamGather || op.beside == Beside::kGradReduce);
}

void FragmentCoster::add_launch_deps(const Fragment& fragment, FragmentCost& cost) const {
  cost.in_order = true;
  std::vector<int32_t> recorder;  // [event]
  for (size_t o = 0; o < cost.ops.size(); ++o) {
    const pipeline::Launch& launch = fragment.launches[o];
    OpCost& op = cost.ops[o];
    op.stream = holds_up(op, cost) ? 0 : launch.stream.value;
    cost.streams = std::max(cost.streams, op.stream + 1);
    op.first_dep = static_cast<uint32_t>(cost.deps.size());
    for (const EventId event : launch.waits) cost.deps.push_back(recorder[event.index()]);
    op.deps = static_cast<uint32_t>(cost.deps.size()) - op.first_dep;
    if (!launch.records.valid()) continue;
    recorder.resize(std::max(recorder.size(), launch.records.index() + 1), -1);
    recorder[launch.records.index()] = static_cast<int32_t>(o);
  }
}

// By data alone: collectives of each label on streams of their own, everything else on stream 0;
// so is a collective that holds up all that comes after it.
void FragmentCoster::add_data_deps(const Fragment& fragment, FragmentCost& cost) const {
  const ir::Graph& graph = fragment.graph;
  Streams streams(cluster_.stack.gloo, labels_.size());
  std::vector<int32_t> port_of(graph.values.size(), -1);
  for (size_t i = 0; i < fragment.inputs.size(); ++i) {
    if (fragment.inputs[i].kind == pipeline::PortKind::kState)
      port_of[fragment.inputs[i].value.index()] = static_cast<int32_t>(i);
  }
  for (size_t o = 0; o < cost.ops.size(); ++o) {
    OpCost& op = cost.ops[o];
    const bool holds = op.label >= 0 && !cost.update &&
                       (options_.overlap.serial || (!options_.overlap.tensor && is_tensor(op)));
    op.stream = op.label < 0 || holds || holds_up(op, cost) ? 0 : streams.of(op.label);
    cost.streams = std::max(cost.streams, op.stream + 1);
    op.first_dep = static_cast<uint32_t>(cost.deps.size());
    op.first_state = static_cast<uint32_t>(cost.state_reads.size());
    for (const ValueId v : graph.ops[o].operands) {
      const OpId producer = graph.value(v).producer;
      if (producer.valid()) cost.deps.push_back(producer.value);
      if (port_of[v.index()] >= 0) cost.state_reads.push_back(port_of[v.index()]);
    }
    op.deps = static_cast<uint32_t>(cost.deps.size()) - op.first_dep;
    op.states = static_cast<uint32_t>(cost.state_reads.size()) - op.first_state;
  }
}

void FragmentCoster::find_state_uses(const Fragment& fragment, FragmentCost& cost) const {
  const ir::Graph& graph = fragment.graph;
  std::vector<int32_t> use_of(graph.values.size(), -1);  // by root value
  for (size_t i = 0; i < fragment.inputs.size(); ++i) {
    if (fragment.inputs[i].kind != pipeline::PortKind::kState) continue;
    use_of[fragment.inputs[i].value.index()] = static_cast<int32_t>(cost.state_uses.size());
    cost.state_uses.push_back({static_cast<int32_t>(i), -1, -1});
  }
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    if (cost.ops[o].alias) continue;
    for (const ValueId v : graph.ops[o].operands) {
      const int32_t use = use_of[root_of(fragment, v).index()];
      if (use < 0) continue;
      int32_t& first = cost.state_uses[static_cast<size_t>(use)].first_read;
      if (first < 0) first = static_cast<int32_t>(o);
    }
    for (const ValueId v : graph.ops[o].results) {
      const int32_t use = use_of[root_of(fragment, v).index()];
      if (use >= 0) cost.state_uses[static_cast<size_t>(use)].last_write = static_cast<int32_t>(o);
    }
  }
  // All-gathers whose result no op reads but through views.
  const auto users = graph.users();
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    if (graph.ops[o].kind != OpKind::kAllGather || cost.ops[o].label < 0) continue;
    const bool last =
        std::all_of(graph.ops[o].results.begin(), graph.ops[o].results.end(), [&](ValueId v) {
          const auto& readers = users[v.index()];
          return std::all_of(readers.begin(), readers.end(),
                             [&](OpId id) { return cost.ops[id.index()].alias; });
        });
    if (last) cost.gathers.push_back(static_cast<int32_t>(o));
  }
  if (!cost.update) return;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const OpId producer = graph.value(root_of(fragment, graph.outputs[i])).producer;
    if (std::find(cost.gathers.begin(), cost.gathers.end(), producer.value) != cost.gathers.end())
      cost.gathered.push_back({producer.value, static_cast<int32_t>(i)});
  }
}

// What a stack that saves what it has cast casts again: weights once a step, which stands here for
// a part of it every microbatch; of what forward has saved the other layout alone, which was
// written with the first one, not read again.
std::vector<cost::CastShare> FragmentCoster::casts_of(const Fragment& fragment) const {
  if (options_.fp8 == cost::Fp8::kOff || !cluster_.stack.narrow_saved) return {};
  std::vector<cost::CastShare> of_root(fragment.graph.values.size());
  for (const pipeline::Port& port : fragment.inputs) {
    if (port.kind == pipeline::PortKind::kState)
      of_root[port.value.index()] = {1 / runs_, 1 / runs_};
    if (port.kind == pipeline::PortKind::kSaved) of_root[port.value.index()] = {0, 1};
  }
  std::vector<cost::CastShare> casts;
  for (size_t v = 0; v < of_root.size(); ++v)
    casts.push_back(of_root[root_of(fragment, ValueId(static_cast<int32_t>(v))).index()]);
  return casts;
}

void find_queues(FragmentCost& cost) {
  std::vector<uint32_t> of_stream(static_cast<size_t>(cost.streams), 0);
  for (const OpCost& op : cost.ops) {
    of_stream[static_cast<size_t>(op.stream)] |= op.links;
    if (op.stream > 0 && op.label >= 0) cost.besides |= uint32_t{1} << static_cast<int>(op.beside);
  }
  uint32_t once = 0;
  for (const uint32_t levels : of_stream) {
    cost.shared_levels |= once & levels;
    once |= levels;
  }
  if (cost.besides == 0) return;
  cost.queues.resize(static_cast<size_t>(cost.streams));
  for (size_t o = 0; o < cost.ops.size(); ++o) {
    if (!cost.ops[o].alias || cost.in_order)
      cost.queues[static_cast<size_t>(cost.ops[o].stream)].push_back(static_cast<int32_t>(o));
  }
}

// Views lie between a collective and the op that reads or made its tensor.
void FragmentCoster::find_copies(const Fragment& fragment, FragmentCost& cost) {
  const ir::Graph& graph = fragment.graph;
  const std::vector<ir::OpIds> users = graph.users();
  const auto runs = [&](OpId id) {
    const OpCost& op = cost.ops[id.index()];
    return !op.alias && op.label < 0;
  };
  const auto first_reader = [&](ValueId v) {
    std::vector<ValueId> parts{v};
    int32_t first = -1;
    for (size_t i = 0; i < parts.size(); ++i) {
      for (const OpId id : users[parts[i].index()]) {
        if (runs(id) && (first < 0 || id.value < first)) first = id.value;
        if (cost.ops[id.index()].alias)
          parts.insert(parts.end(), graph.op(id).results.begin(), graph.op(id).results.end());
      }
    }
    return first;
  };
  const auto maker = [&](ValueId v) {
    OpId made = graph.value(v).producer;
    while (made.valid() && cost.ops[made.index()].alias && !graph.op(made).operands.empty())
      made = graph.value(graph.op(made).operands[0]).producer;
    return made.valid() && runs(made) ? made.value : -1;
  };
  for (FragmentCost::Collective& collective : cost.collectives_of) {
    if (!collective.of_weights) continue;
    const ir::Op& op = graph.ops[static_cast<size_t>(collective.op)];
    if (collective.kind == OpKind::kAllGather) {
      collective.copied_at = first_reader(op.results[0]);
    } else if (collective.kind == OpKind::kReduceScatter) {
      collective.copied_at = maker(op.operands[0]);
    }
  }
}

// What an op adds to a sum of microbatches, a state, it makes alone where the stack does not add
// there, in the weights' format. Autograd lets gradients go in place of setting them to zero.
cost::OpWork FragmentCoster::work_of(const Fragment& fragment, const ir::Op& op) const {
  const ir::Graph& graph = fragment.graph;
  const bool update = fragment.kind == pipeline::ActionKind::kUpdate;
  const cluster::Accumulation by = cluster_.stack.accumulation;
  if (update && op.kind == OpKind::kZero && by == cluster::Accumulation::kAutograd) {
    cost::OpWork none;
    none.kind = cost::OpWork::Kind::kFused;
    return none;
  }
  if (!op.accumulates || by == cluster::Accumulation::kProducts ||
      !is_state(fragment, root_of(fragment, op.operands.back())))
    return cost::work_of(graph, op, update);
  ir::Op alone = op;
  alone.accumulates = false;
  alone.operands.pop_back();
  cost::OpWork work = cost::work_of(graph, alone, update);
  const ir::TensorType& sum = graph.type(op.results[0]);
  const auto elements = static_cast<double>(sum.elements());
  const auto size = static_cast<double>(dtype_size(sum.dtype));
  const double kept =
      half_weights_ ? cluster_.device.attained.gradient_bytes_of(bf16_weights_) : size;
  const double made = half_weights_ ? static_cast<double>(dtype_size(DType::kBF16)) : size;
  work.bytes -= (size - made) * elements;
  const double added = made + 2 * kept;
  double first = added;
  if (by == cluster::Accumulation::kAutograd)
    first = kept == made || runs_ == 1 ? 0 : made + kept;  // as it comes, or cast
  work.adds = (first + (runs_ - 1) * added) / runs_ * elements;
  return work;
}

FragmentCost FragmentCoster::cost(const Fragment& fragment, int32_t rank) {
  FragmentCost cost;
  cost.update = fragment.kind == pipeline::ActionKind::kUpdate;
  const ir::Graph& graph = fragment.graph;
  cost.works.resize(graph.ops.size());
  const std::vector<cost::ProductRole> roles = cost::product_roles(graph);
  for (const ir::Op& op : graph.ops) {
    OpCost made;
    cost.kinds.push_back(op.kind);
    if (ir::is_collective(op.kind)) {
      add_collective(fragment, op, rank, cost, made);
      cost::OpWork& work = cost.works[cost.ops.size()];
      work.op = op.kind;
      work.narrows = made.label >= 0 && !cost.update && is_tensor(made);
    } else if (is_alias(fragment, op)) {
      made.alias = true;
    } else {
      cost::OpWork work = work_of(fragment, op);
      const cost::ProductRole role = roles[cost.ops.size()];
      if (role == cost::ProductRole::kLogits) work.kind = cost::OpWork::Kind::kLogits;
      work.narrows = role == cost::ProductRole::kLinear;
      cost.flops += work.flops;
      if (work.matrix_product && op.recompute.valid())
        cost.recomputed_flops += square_flops(graph, op, work.flops);
      cost.works[cost.ops.size()] = work;
    }
    cost.ops.push_back(made);
    for (const ValueId v : op.results) {
      if (root_of(fragment, v) != v || fragment.workspace_offset[v.index()] < 0) continue;
      cost.workspace_end = std::max(
          cost.workspace_end, fragment.workspace_offset[v.index()] + graph.type(v).bytes().value);
    }
  }
  cost::find_casts(graph, cost.works, casts_of(fragment));
  const cluster::Device& device = cluster_.device;
  if (device.attained.fused_elementwise && device.kernel_rates.empty())
    cost::fuse_elementwise(graph, cost.works);
  if (device.attained.fused_linears && device.kernel_rates.empty())
    cost::fuse_linears(graph, cost.works);
  // The update's dependencies are its data's where its reductions start early; `serial` is of
  // microbatches alone.
  const Overlap& overlap = options_.overlap;
  if (overlap.collectives || (overlap.serial && !cost.update) ||
      (cost.update && (overlap.grad_reduce || overlap.param_gather || cluster_.stack.gloo))) {
    add_data_deps(fragment, cost);
  } else {
    add_launch_deps(fragment, cost);
  }
  find_rings(fragment, cost);
  hold_rings(cost);
  find_queues(cost);
  find_state_uses(fragment, cost);
  if (options_.overlap.async_tp) find_product_rings(fragment, cost);
  if (cluster_.stack.copies_shards) find_copies(fragment, cost);
  set_times(cost, cluster_, options_);
  return cost;
}

}  // namespace mw::simulate
