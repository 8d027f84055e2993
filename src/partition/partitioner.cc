#include "partition/partitioner.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "ops/op_def.h"
#include "partition/assignment.h"
#include "partition/choose.h"
#include "partition/memo.h"
#include "partition/reshard.h"
#include "sharding/padding.h"
#include "sharding/pending.h"

namespace mw::partition {
namespace {

using ir::OpKind;
using ir::Work;
using sharding::Sharding;

// A global value in one layout.
struct Version {
  Sharding sharding;
  int number;  // of the sharding (Memo)
  ValueId local;
  std::vector<bool> tail_zero;  // [dimension] the padded tail of the shard holds zeros
};

class Partitioner {
 public:
  explicit Partitioner(const PartitionRequest& request)
      : r_(request),
        own_memo_(request.mesh),
        memo_(request.memo != nullptr ? *request.memo : own_memo_),
        versions_(request.graph.values.size()),
        main_(request.graph.values.size()) {
    MW_CHECK(memo_.mesh() == request.mesh, "a memo of another mesh");
    for (const ir::Value& value : request.graph.values) type_.push_back(memo_.number(value.type));
    result_.main_version.resize(request.graph.values.size());
    result_.graph.name = request.graph.name;
    find_inputs();
    find_originals();
    propagate();
  }

  Partitioned run() {
    // Half as many again for reshardings.
    const size_t values = r_.graph.values.size() * 3 / 2;
    result_.graph.reserve(values, r_.graph.ops.size() * 3 / 2);
    result_.shardings.reserve(values);
    result_.global_types.reserve(values);
    result_.global_value.reserve(values);
    for (const ir::Input& input : r_.graph.inputs) {
      if (!is_accumulator(input)) add_input(input);
    }
    for (size_t i = 0; i < r_.graph.ops.size(); ++i)
      partition_op(r_.graph.ops[i], *advice_.rules[i]);
    for (const ValueId output : r_.graph.outputs) {
      const Version whole = version_in(output, output_sharding(output), Work::kForward, LayerId());
      result_.graph.outputs.push_back(whole.local);
    }
    for (const ir::StateUpdate& update : r_.graph.updates) {
      result_.graph.updates.push_back({update.state, main_version(update.value).local});
    }
    for (size_t v = 0; v < versions_.size(); ++v) {
      if (!versions_[v].empty()) result_.main_version[v] = versions_[v][main_[v]].local;
    }
    take_origins();
    return std::move(result_);
  }

 private:
  const ir::TensorType& type(ValueId v) const { return r_.graph.type(v); }
  const std::optional<Sharding>& given(ValueId v) const { return r_.given[v.index()]; }
  const Version& main_version(ValueId v) const {
    MW_CHECK(!versions_[v.index()].empty(), "{} is read before it is made", r_.graph.label(v));
    return versions_[v.index()][main_[v.index()]];
  }
  bool is_accumulator(const ir::Input& input) const {
    if (!input.state.valid()) return false;
    const ir::StateKind kind = r_.module.state(input.state).kind;
    return kind == ir::StateKind::kGradient || kind == ir::StateKind::kMetric;
  }
  bool is_weight(ValueId v) const { return weight_[v.index()]; }

  Sharding output_sharding(ValueId v) const {
    if (given(v)) return *given(v);
    return main_version(v).sharding.without_partial();
  }

  void find_inputs() {
    weight_.assign(r_.graph.values.size(), false);
    input_.assign(r_.graph.values.size(), nullptr);
    for (const ir::Input& input : r_.graph.inputs) {
      input_[input.value.index()] = &input;
      if (input.state.valid() && !is_accumulator(input)) weight_[input.value.index()] = true;
    }
  }

  // A clone of a recomputed op is its original by kind, attributes, layer, what it reads and the
  // types of what it makes.
  void find_originals() {
    original_.resize(r_.graph.values.size());
    for (size_t v = 0; v < original_.size(); ++v) original_[v] = ValueId(static_cast<int64_t>(v));
    const auto is_clone = [](const ir::Op& op) { return op.recompute.valid(); };
    if (std::none_of(r_.graph.ops.begin(), r_.graph.ops.end(), is_clone)) return;
    std::map<std::vector<int64_t>, const ir::Op*> forward;
    std::vector<int64_t> key;
    for (const ir::Op& op : r_.graph.ops) {
      if (op.work != Work::kForward && !is_clone(op)) continue;
      key = {static_cast<int64_t>(op.kind), memo_.number(op.attrs), op.layer.value};
      for (const ValueId v : op.operands) key.push_back(original_[v.index()].value);
      for (const ValueId v : op.results) key.push_back(type_[v.index()]);
      if (!is_clone(op)) {
        forward.emplace(key, &op);
        continue;
      }
      const auto of = forward.find(key);
      if (of == forward.end()) continue;
      for (size_t i = 0; i < op.results.size(); ++i)
        original_[op.results[i].index()] = of->second->results[i];
    }
  }

  // Inputs that nobody annotated are whole: who supplies them does not know better.
  void propagate() {
    sharding::PropagationRequest request{r_.graph, r_.module, r_.mesh, r_.given};
    for (const ir::Input& input : r_.graph.inputs) {
      std::optional<Sharding>& of_input = request.given[input.value.index()];
      if (!of_input) of_input = sharding::replicated(type(input.value).rank());
    }
    advice_ = sharding::propagate(request);
    may_pend_ = sharding::accumulated_only(r_.graph);
    carried_ = sharding::carried(r_.graph, r_.given, may_pend_);
    for (size_t v = 0; v < carried_.size(); ++v) may_pend_[v] = may_pend_[v] || carried_[v];
  }

  // Where an op was laid out unlike the propagation's advice, its results say so.
  void take_origins() {
    result_.origins = std::move(advice_.origins);
    for (size_t v = 0; v < versions_.size(); ++v) {
      const Sharding& advised = advice_.shardings[v];
      if (given(ValueId(static_cast<int64_t>(v))) || versions_[v].empty() ||
          versions_[v][main_[v]].sharding.dims == advised.dims)
        continue;
      result_.origins[v].kind = sharding::Origin::Kind::kCheaper;
      result_.origins[v].propagated = advised;
    }
    result_.decisions = std::move(advice_.decisions);
  }

  ValueId add_local(ir::Op op, ValueIds globals, const std::vector<ir::TensorType>& types,
                    const std::vector<Sharding>& shardings) {
    const OpId id = result_.graph.add_op(std::move(op), types);
    for (size_t i = 0; i < types.size(); ++i) {
      result_.shardings.push_back(shardings[i]);
      result_.global_types.push_back(type(globals[i]));
      result_.global_value.push_back(globals[i]);
    }
    return result_.graph.op(id).results.front();
  }

  // The first is the main one, unless `settle` brings another.
  void add_version(ValueId global, Version version) {
    versions_[global.index()].push_back(std::move(version));
  }

  // REQUIRES: called for a value without a version.
  ValueId add_input(const ir::Input& input, std::optional<Sharding> sharding = {}) {
    const Sharding layout = sharding             ? *sharding
                            : given(input.value) ? *given(input.value)
                                                 : sharding::replicated(type(input.value).rank());
    const ir::Value& value = r_.graph.value(input.value);
    const ValueId local = result_.graph.add_input(sharding::local_type(value.type, layout, r_.mesh),
                                                  value.name, input.state);
    result_.graph.value(local).logical = value.logical;
    result_.shardings.push_back(layout);
    result_.global_types.push_back(value.type);
    result_.global_value.push_back(input.value);
    // States have zeros in their tails; what another stage sends has what its ops left there.
    add_version(input.value, {layout, memo_.number(layout), local,
                              std::vector<bool>(value.type.dims.size(), input.state.valid())});
    return local;
  }

  Memo::Numbers numbers(ValueId v) const {
    Memo::Numbers numbers;
    for (const Version& version : versions_[v.index()]) numbers.push_back(version.number);
    return numbers;
  }

  // The version from which `to` is cheapest; null if none can become it.
  const Version* cheapest(ValueId v, const Sharding& to) {
    const int nearest = memo_.nearest(type_[v.index()], numbers(v), memo_.number(to)).version;
    return nearest < 0 ? nullptr : &versions_[v.index()][static_cast<size_t>(nearest)];
  }

  Version version_in(ValueId v, const Sharding& to, Work work, LayerId layer) {
    for (const Version& version : versions_[v.index()]) {
      if (version.sharding == to) return version;
    }
    const Version* from = cheapest(v, to);
    MW_CHECK(from != nullptr, "{} cannot become {}", r_.graph.label(v), to_string(to));
    const int number = memo_.number(to);
    const ReshardPlan& steps = memo_.reshard(type_[v.index()], from->number, number);
    Version made = *from;
    made.sharding = to;
    made.number = number;
    made.local = emit_reshard(
        steps, type(v), from->local, from->sharding, r_.mesh,
        [&](ValueId local) { return result_.graph.type(local); },
        [&](ir::Op op, ir::TensorType local_type, const Sharding& sharding) {
          op.work = work == Work::kWeightGrad ? Work::kInputGrad : work;
          op.layer = layer;
          return add_local(std::move(op), {v}, {local_type}, {sharding});
        });
    for (const ReshardStep& step : steps.steps) {
      if (step.kind == OpKind::kAllReduce || step.kind == OpKind::kPermute) continue;
      made.tail_zero[static_cast<size_t>(step.dim)] = true;
      if (step.kind == OpKind::kAllToAll)
        made.tail_zero[static_cast<size_t>(step.concat_dim)] = true;
    }
    add_version(v, made);
    return made;
  }

  // Overwrites the padded tail of a dimension with zeros.
  Version masked(ValueId v, Version version, int dim, const ir::Op& reader, double value = 0) {
    ir::Op op;
    op.kind = OpKind::kPadMask;
    ir::PadMaskAttrs attrs;
    attrs.dim = dim;
    attrs.value = value;
    attrs.offset = {version.sharding.dims[static_cast<size_t>(dim)], type(v).dim(dim)};
    op.attrs = attrs;
    op.operands = {version.local};
    op.work = reader.work == Work::kWeightGrad ? Work::kInputGrad : reader.work;
    op.layer = reader.layer;
    const ir::TensorType local = result_.graph.type(version.local);
    version.local = add_local(std::move(op), {v}, {local}, {version.sharding});
    version.tail_zero[static_cast<size_t>(dim)] = value == 0;
    return version;
  }

  Version with_zero_tails(ValueId v, Version version, const ir::Op& reader) {
    for (int d = 0; d < type(v).rank(); ++d) {
      if (!version.tail_zero[static_cast<size_t>(d)] &&
          sharding::is_padded(type(v), version.sharding, d, r_.mesh))
        version = masked(v, version, d, reader);
    }
    return version;
  }

  void partition_op(const ir::Op& op, const ops::ShardingRule& rule) {
    if (op.kind == OpKind::kAccumulate) return partition_accumulate(op);
    MW_CHECK(ops::op_def(op.kind).rule != nullptr, "{} in a global graph", ir::op_name(op.kind));
    const Assignment& assignment = choose(problem_of(op), rule, memo_);
    std::vector<Version> operands = materialize(op, rule, assignment);
    emit(op, rule, assignment, operands);
  }

  Memo::Problem problem_of(const ir::Op& op) {
    Memo::Problem problem{op.kind, memo_.number(op.attrs), op.accumulates, {}, {}};
    for (const ValueId v : op.operands) {
      const Version& main = main_version(v);
      Memo::Operand& operand = problem.operands.emplace_back();
      operand.type = type_[v.index()];
      operand.is_weight = is_weight(v);
      if (carried_[v.index()]) operand.carried_as = main.number;
      operand.versions = numbers(v);
      if (original_[v.index()] != v) operand.kept = numbers(original_[v.index()]);
    }
    for (const ValueId v : op.results) {
      Memo::Result& result = problem.results.emplace_back();
      result.type = type_[v.index()];
      if (given(v)) result.given = memo_.number(*given(v));
      result.advice = memo_.number(advice_.shardings[v.index()]);
      result.may_pend = may_pend_[v.index()];
    }
    return problem;
  }

  std::vector<Version> materialize(const ir::Op& op, const ops::ShardingRule& rule,
                                   const Assignment& assignment) {
    std::vector<Version> operands;
    bool some_partial = false;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      Sharding needed = operand_sharding(rule, static_cast<int>(i), assignment);
      if (needed.is_partial() && rule.linearity == ops::ShardingRule::Linearity::kEach) {
        if (some_partial || cheapest(op.operands[i], needed) == nullptr) {
          needed = needed.without_partial();
        } else {
          some_partial = true;
        }
      }
      operands.push_back(version_in(op.operands[i], needed, op.work, op.layer));
    }
    mask_contracted(op, rule, assignment, operands);
    return operands;
  }

  // A factor with a padded tail that some result reduces must contribute nothing to it: the tail of
  // an operand that the op is linear in has to hold zeros (of a maximum: the lowest number). The
  // others hold finite numbers there (`emit`).
  void mask_contracted(const ir::Op& op, const ops::ShardingRule& rule,
                       const Assignment& assignment, std::vector<Version>& operands) {
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (!sharding::reduces_tail(rule, f, assignment.factors[f], r_.mesh)) continue;
      const ops::Factor& factor = rule.factors[f];
      int at_operand = -1, at_dim = -1;
      bool safe = false;
      for (size_t i = 0; i < operands.size(); ++i) {
        for (size_t d = 0; d < rule.operands[i].size(); ++d) {
          const std::vector<int>& dim = rule.operands[i][d];
          if (std::find(dim.begin(), dim.end(), static_cast<int>(f)) == dim.end()) continue;
          const bool linear = std::find(rule.linear.begin(), rule.linear.end(),
                                        static_cast<int>(i)) != rule.linear.end();
          if (at_operand < 0 || linear)
            at_operand = static_cast<int>(i), at_dim = static_cast<int>(d);
          safe = safe ||
                 (linear && operands[i].tail_zero[d] && factor.reduction == ir::Reduction::kSum);
        }
      }
      MW_CHECK(at_operand >= 0, "{}: reduced factor {} in no operand", ir::op_name(op.kind),
               factor.name);
      if (safe) continue;
      const double neutral = factor.reduction == ir::Reduction::kSum ? 0
                             : factor.reduction == ir::Reduction::kMax
                                 ? -std::numeric_limits<double>::max()
                                 : std::numeric_limits<double>::max();
      const size_t i = static_cast<size_t>(at_operand);
      operands[i] = masked(op.operands[i], operands[i], at_dim, op, neutral);
    }
  }

  void emit(const ir::Op& op, const ops::ShardingRule& rule, const Assignment& assignment,
            const std::vector<Version>& operands) {
    ir::Op local = op;
    local.operands.clear();
    local.results.clear();
    for (const Version& version : operands) local.operands.push_back(version.local);
    std::vector<ir::TensorType> types;
    std::vector<Sharding> shardings;
    for (size_t i = 0; i < op.results.size(); ++i) {
      Sharding made = result_sharding(rule, static_cast<int>(i), assignment);
      types.push_back(sharding::local_type(type(op.results[i]), made, r_.mesh));
      shardings.push_back(std::move(made));
    }
    localize(op, local, operands, shardings);
    add_local(local, op.results, types, shardings);
    const ir::Op& added = result_.graph.ops.back();
    const ValueIds locals = added.results;
    for (size_t i = 0; i < op.results.size(); ++i) {
      const ValueId v = op.results[i];
      result_.graph.value(locals[i]).name = r_.graph.value(v).name;
      result_.graph.value(locals[i]).logical = r_.graph.value(v).logical;
      Version made{shardings[i], memo_.number(shardings[i]), locals[i],
                   sharding::zero_tails(rule, i, [&](size_t operand, size_t dim) {
                     return operands[operand].tail_zero[dim];
                   })};
      // Readers take what lies beside zeros for zero: it must not be infinite.
      if (!rule.finite_preserving) made = with_zero_tails(v, made, op);
      add_version(v, made);
      settle(v, op);
    }
  }

  void localize(const ir::Op& op, ir::Op& local, const std::vector<Version>& operands,
                const std::vector<Sharding>& results) const {
    const ops::OpDef& def = ops::op_def(op.kind);
    if (def.localize == nullptr) return;
    ops::LocalLayout layout;
    for (const Version& version : operands) layout.operands.push_back(version.sharding.dims);
    for (const Sharding& sharding : results) layout.results.push_back(sharding.dims);
    for (const Version& version : operands)
      layout.local_operands.push_back(result_.graph.type(version.local));
    for (size_t i = 0; i < results.size(); ++i) {
      layout.local_results.push_back(
          sharding::local_type(type(op.results[i]), results[i], r_.mesh));
    }
    layout.global_operands = ops::operand_types(r_.graph, op);
    layout.global_results = ops::result_types(r_.graph, op);
    def.localize(local, layout);
  }

  // Brings a new value into its given sharding, if it has one.
  void settle(ValueId v, const ir::Op& op) {
    if (!given(v)) return;
    Sharding wanted = *given(v);
    const Version& made = main_version(v);
    if (may_pend_[v.index()]) wanted = sharding::pending_as(std::move(wanted), made.sharding);
    if (made.sharding == wanted) return;
    version_in(v, wanted, op.work, op.layer);
    main_[v.index()] = versions_[v.index()].size() - 1;
  }

  // acc += g. The accumulator takes the dimensions of its parameter's sharding and the gradient's
  // pending sum.
  void partition_accumulate(const ir::Op& op) {
    const ValueId acc = op.operands[0], g = op.operands[1];
    const ir::Input* input = input_[acc.index()];
    MW_CHECK(input != nullptr, "accumulator {} is no state", r_.graph.label(acc));
    const Sharding wanted =
        sharding::pending_as(given(acc) ? *given(acc) : sharding::replicated(type(acc).rank()),
                             main_version(g).sharding);
    const Version gradient = with_zero_tails(g, version_in(g, wanted, op.work, op.layer), op);
    const ValueId local_acc = add_input(*input, wanted);
    ir::Op local = op;
    local.operands = {local_acc, gradient.local};
    local.results.clear();
    const ir::TensorType local_type = sharding::local_type(type(acc), wanted, r_.mesh);
    add_local(std::move(local), op.results, {local_type}, {wanted});
    add_version(op.results[0], {wanted, memo_.number(wanted), result_.graph.ops.back().results[0],
                                gradient.tail_zero});
  }

  const PartitionRequest& r_;
  Memo own_memo_;
  Memo& memo_;
  std::vector<int> type_;  // [value] its number
  std::vector<std::vector<Version>> versions_;
  std::vector<size_t> main_;
  std::vector<bool> may_pend_, carried_, weight_;
  std::vector<const ir::Input*> input_;  // [value] null: it is none
  std::vector<ValueId> original_;  // [value] what it is made again of; itself, if it is no clone
  sharding::Propagation advice_;
  Partitioned result_;
};

}  // namespace

std::vector<std::optional<Sharding>> given_shardings(
    const ir::Graph& graph, const ir::Module& module, const cluster::Mesh& mesh,
    const std::function<const sharding::Strategy&(LayerId)>& strategy) {
  std::vector<std::optional<Sharding>> given(graph.values.size());
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const ir::Value& value = graph.values[i];
    if (value.logical.empty() && value.type.rank() > 0) continue;
    if (value.logical.empty() && value.producer.valid()) continue;
    const LayerId layer = value.producer.valid() ? graph.op(value.producer).layer : LayerId();
    given[i] = sharding::sharding_of(value.logical, strategy(layer), mesh);
  }
  for (const ir::Input& input : graph.inputs) {
    if (!input.state.valid()) continue;
    const ir::State& state = module.state(input.state);
    ir::LogicalAxes logical = state.logical;
    logical.resize(state.type.dims.size());
    given[input.value.index()] = sharding::sharding_of(logical, strategy(state.layer), mesh);
  }
  return given;
}

Partitioned partition(const PartitionRequest& request) { return Partitioner(request).run(); }

std::string layout_text(const Partitioned& partitioned, const ir::Graph& global,
                        const ir::Module& module) {
  sharding::Propagation layout;
  for (size_t v = 0; v < global.values.size(); ++v) {
    const ValueId main = partitioned.main_version[v];
    layout.shardings.push_back(main.valid() ? partitioned.shardings[main.index()]
                                            : sharding::replicated(global.values[v].type.rank()));
  }
  layout.origins = partitioned.origins;
  layout.decisions = partitioned.decisions;
  return to_text(layout, global, module);
}

}  // namespace mw::partition
