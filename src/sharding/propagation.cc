#include "sharding/propagation.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "sharding/pending.h"

namespace mw::sharding {
namespace {

using ops::ShardingRule;

bool contains(const Axes& axes, Name axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

bool uses(const Sharding& sharding, Name axis) {
  return std::any_of(sharding.dims.begin(), sharding.dims.end(),
                     [&](const Axes& axes) { return contains(axes, axis); });
}

void add_axes(Axes& to, const Axes& from) {
  for (const Name axis : from) {
    if (!contains(to, axis)) to.push_back(axis);
  }
  std::sort(to.begin(), to.end());
}

// Ops of a graph, the first of them to be taken first.
class Waiting {
 public:
  explicit Waiting(size_t ops) : waits_(ops / kBits + 1, 0) {}
  void add(size_t op) {
    waits_[op / kBits] |= uint64_t{1} << (op % kBits);
    from_ = std::min(from_, op / kBits);
  }
  std::optional<size_t> take() {
    while (from_ < waits_.size() && waits_[from_] == 0) ++from_;
    if (from_ == waits_.size()) return std::nullopt;
    const auto bit = static_cast<size_t>(std::countr_zero(waits_[from_]));
    waits_[from_] &= waits_[from_] - 1;
    return from_ * kBits + bit;
  }

 private:
  static constexpr size_t kBits = 64;
  std::vector<uint64_t> waits_;  // a bit an op
  size_t from_ = 0;              // none waits before this word
};

class Propagator {
 public:
  explicit Propagator(const PropagationRequest& request)
      : r_(request), users_(request.graph.users()) {
    MW_CHECK(r_.given.size() == r_.graph.values.size(), "{} given shardings for {} values",
             r_.given.size(), r_.graph.values.size());
    seed();
    find_rules();
    views_.resize(r_.graph.ops.size());
    fresh_.assign(r_.graph.ops.size(), false);
  }

  Propagation run() {
    const auto& strategies = propagation_strategies();
    waiting_.assign(strategies.size(), Waiting(r_.graph.ops.size()));
    for (size_t i = 0; i < r_.graph.ops.size(); ++i) wake(OpId(static_cast<int64_t>(i)));
    for (size_t s = 0; s < strategies.size();) {
      const std::optional<size_t> op = waiting_[s].take();
      if (!op) {
        ++s;
        continue;
      }
      // What this op says anew concerns the strategies before this one first.
      if (visit(*op, *strategies[s])) s = 0;
    }
    leave_pending();
    result_.decisions = std::move(decisions_);
    views_.clear();
    return std::move(result_);
  }

 private:
  // Without factors: the op has none.
  const ShardingRule& rule_of(size_t op) const { return *result_.rules[op]; }

  void seed() {
    result_.origins.resize(r_.graph.values.size());
    authority_.assign(r_.graph.values.size(), Authority::kPropagated);
    for (size_t v = 0; v < r_.graph.values.size(); ++v) {
      const int rank = r_.graph.values[v].type.rank();
      result_.shardings.push_back(r_.given[v] ? *r_.given[v] : replicated(rank));
      if (!r_.given[v]) continue;
      result_.origins[v].kind = Origin::Kind::kAnnotation;
      authority_[v] = Authority::kAnnotation;
    }
    for (const ir::Input& input : r_.graph.inputs) {
      if (!input.state.valid() || !r_.given[input.value.index()]) continue;
      result_.origins[input.value.index()].kind = Origin::Kind::kState;
      authority_[input.value.index()] = Authority::kState;
    }
  }

  // Most ops have a twin in another layer: one of the same kind, attributes and types.
  void find_rules() {
    std::map<ir::OpKind, std::vector<size_t>> unlike;  // ops
    const auto none = std::make_shared<const ShardingRule>();
    result_.rules.reserve(r_.graph.ops.size());
    for (size_t i = 0; i < r_.graph.ops.size(); ++i) {
      const ir::Op& op = r_.graph.ops[i];
      if (ops::op_def(op.kind).rule == nullptr) {
        result_.rules.push_back(none);
        continue;
      }
      std::vector<size_t>& others = unlike[op.kind];
      const auto twin = std::find_if(others.begin(), others.end(), [&](size_t other) {
        return same_rule(r_.graph.ops[other], op);
      });
      if (twin != others.end()) {
        result_.rules.push_back(result_.rules[*twin]);
        continue;
      }
      others.push_back(i);
      result_.rules.push_back(std::make_shared<const ShardingRule>(ops::rule_of(r_.graph, op)));
    }
  }
  bool same_rule(const ir::Op& a, const ir::Op& b) const {
    const auto same_type = [&](ValueId x, ValueId y) {
      return r_.graph.type(x) == r_.graph.type(y);
    };
    return a.attrs == b.attrs && a.accumulates == b.accumulates &&
           std::equal(a.operands.begin(), a.operands.end(), b.operands.begin(), b.operands.end(),
                      same_type) &&
           std::equal(a.results.begin(), a.results.end(), b.results.begin(), b.results.end(),
                      same_type);
  }

  // Operands, then results.
  ValueId tensor(const ir::Op& op, size_t t) const {
    return t < op.operands.size() ? op.operands[t] : op.results[t - op.operands.size()];
  }

  // Made anew where a tensor of the op has changed.
  const OpView& view_of(size_t index) {
    std::optional<OpView>& view = views_[index];
    if (!fresh_[index])
      look_at(index, view.emplace(OpView{r_.graph.ops[index], rule_of(index), r_.mesh, {}}));
    fresh_[index] = true;
    return *view;
  }
  void look_at(size_t index, OpView& view) const {
    const ir::Op& op = r_.graph.ops[index];
    const ShardingRule& rule = rule_of(index);
    view.tensors.reserve(rule.operands.size() + rule.results.size());
    for (size_t t = 0; t < rule.operands.size() + rule.results.size(); ++t) {
      const ValueId v = tensor(op, t);
      TensorView seen;
      seen.dims =
          t < rule.operands.size() ? &rule.operands[t] : &rule.results[t - rule.operands.size()];
      const Sharding& sharding = result_.shardings[v.index()];
      seen.axes = factors_of(rule, *seen.dims, sharding, r_.mesh);
      // What the op needs whole is gathered in front of it: it claims nothing.
      for (size_t f = 0; f < seen.axes.size(); ++f) {
        if (!rule.factors[f].shardable) seen.axes[f].clear();
      }
      seen.authority = authority_[v.index()];
      seen.bytes =
          static_cast<double>(local_type(r_.graph.type(v), sharding, r_.mesh).bytes().value);
      view.tensors.push_back(std::move(seen));
    }
  }

  // Whether a tensor has changed.
  bool visit(size_t index, const PropagationStrategy& strategy) {
    ++result_.visits;
    const OpView& view = view_of(index);  // as it was, until the next call
    const Proposals proposals = strategy.propose(view);
    bool changed = false;
    for (const Proposal& proposal : proposals.list) {
      for (size_t t = 0; t < view.tensors.size(); ++t)
        changed = apply(index, view, proposal, t, strategy) || changed;
    }
    for (const Conflict& conflict : proposals.conflicts) decide(index, conflict);
    return changed;
  }

  bool apply(size_t index, const OpView& view, const Proposal& proposal, size_t t,
             const PropagationStrategy& strategy) {
    const ValueId v = tensor(view.op, t);
    const ShardingRule::Dims& dims = *view.tensors[t].dims;
    if (r_.given[v.index()] || !has_factor(dims, proposal.factor)) return false;
    // A tensor's axes only become more.
    if (view.tensors[t].axes[proposal.factor].size() >= proposal.axes.size()) return false;
    Sharding& sharding = result_.shardings[v.index()];
    FactorAxes axes = factors_of(view.rule, dims, sharding, r_.mesh);
    if (sharding_of_factors(dims, axes).dims != sharding.dims) return false;
    Axes& own = axes[proposal.factor];
    if (own.size() >= proposal.axes.size() ||
        !std::equal(own.begin(), own.end(), proposal.axes.begin()))
      return false;
    bool changed = false;
    while (own.size() < proposal.axes.size()) {
      const Name axis = proposal.axes[own.size()];
      if (uses(sharding, axis)) break;
      own.push_back(axis);
      if (!can_shard(view.rule, dims, axes, r_.mesh)) break;
      sharding.dims = sharding_of_factors(dims, axes).dims;
      Origin& origin = result_.origins[v.index()];
      origin.kind = Origin::Kind::kPropagated;
      origin.steps.push_back(
          {axis, OpId(static_cast<int64_t>(index)), tensor(view.op, proposal.from), strategy.name});
      changed = true;
    }
    if (changed) wake(v);
    return changed;
  }

  void wake(ValueId v) {
    if (r_.graph.value(v).producer.valid()) wake(r_.graph.value(v).producer);
    for (const OpId user : users_[v.index()]) wake(user);
  }
  void wake(OpId op) {
    fresh_[op.index()] = false;
    if (rule_of(op.index()).factors.empty()) return;
    for (Waiting& of_strategy : waiting_) of_strategy.add(op.index());
  }

  void decide(size_t index, const Conflict& conflict) {
    const ir::Op& op = r_.graph.ops[index];
    const ShardingRule& rule = rule_of(index);
    const Decision made{OpId(static_cast<int64_t>(index)), conflict.axis,
                        rule.factors[conflict.kept].name,  rule.factors[conflict.lost].name,
                        tensor(op, conflict.kept_by),      tensor(op, conflict.lost_by)};
    const auto same = [&](const Decision& d) {
      return d.op == made.op && d.axis == made.axis && d.lost == made.lost;
    };
    const auto there = std::find_if(decisions_.begin(), decisions_.end(), same);
    if (there == decisions_.end()) {
      decisions_.push_back(made);
    } else {
      *there = made;
    }
  }

  // Forward: what each op's layout leaves pending.
  void leave_pending() {
    const std::vector<bool> accumulated = accumulated_only(r_.graph),
                            carries = carried(r_.graph, r_.given, accumulated);
    for (size_t i = 0; i < r_.graph.ops.size(); ++i) {
      const ir::Op& op = r_.graph.ops[i];
      const OpView& view = view_of(i);
      FactorAxes layout(rule_of(i).factors.size());
      for (const Proposal& proposal : kResolve.propose(view).list)
        layout[proposal.factor] = proposal.axes;
      const Axes passed = passed_through(op, rule_of(i), layout);
      for (size_t r = 0; r < op.results.size(); ++r) {
        const size_t v = op.results[r].index();
        if (r_.given[v] && !accumulated[v] && !carries[v]) continue;
        Sharding& sharding = result_.shardings[v];
        sharding.partial = passed;
        for (size_t f = 0; f < layout.size(); ++f) {
          if (layout[f].empty() || !reduced_in(rule_of(i), f, r)) continue;
          add_axes(sharding.partial, layout[f]);
          sharding.reduction = rule_of(i).factors[f].reduction;
        }
        erase_if(sharding.partial, [&](Name a) { return uses(sharding, a); });
      }
    }
    std::sort(decisions_.begin(), decisions_.end(), [](const Decision& a, const Decision& b) {
      return std::tuple(a.op.value, a.axis, a.lost) < std::tuple(b.op.value, b.axis, b.lost);
    });
  }

  // The axes over which pending sums of operands pass through the op.
  Axes passed_through(const ir::Op& op, const ShardingRule& rule, const FactorAxes& layout) const {
    const Sharding* first = nullptr;
    for (const int i : rule.linear) {
      const Sharding& sharding = result_.shardings[op.operands[static_cast<size_t>(i)].index()];
      const bool sum = sharding.is_partial() && sharding.reduction == ir::Reduction::kSum;
      if (rule.linearity == ShardingRule::Linearity::kJoint) {
        if (!sum || (first != nullptr && first->partial != sharding.partial)) return {};
        first = &sharding;
      } else if (sum && first == nullptr) {
        first = &sharding;
      }
    }
    if (first == nullptr) return {};
    for (const Axes& axes : layout) {
      for (const Name axis : axes) {
        if (contains(first->partial, axis)) return {};
      }
    }
    return first->partial;
  }

  const PropagationRequest& r_;
  std::vector<ir::OpIds> users_;
  std::vector<std::optional<OpView>> views_;  // [op]
  std::vector<bool> fresh_;                   // [op] its view is as things are
  std::vector<Authority> authority_;
  std::vector<Waiting> waiting_;  // [strategy] ops to visit
  std::vector<Decision> decisions_;
  Propagation result_;
};

std::string op_text(const ir::Graph& graph, OpId id) {
  const ir::Op& op = graph.op(id);
  return op.results.empty()
             ? std::string(ir::op_name(op.kind))
             : fmt::format("{} {}", ir::op_name(op.kind), graph.label(op.results[0]));
}

// Axes that came the same way together.
std::string steps_text(const Origin& origin, const ir::Graph& graph) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < origin.steps.size();) {
    const Origin::Step& step = origin.steps[i];
    std::vector<std::string> axes;
    for (; i < origin.steps.size(); ++i) {
      const Origin::Step& next = origin.steps[i];
      if (next.op != step.op || next.from != step.from || next.strategy != step.strategy) break;
      axes.push_back(next.axis);
    }
    texts.push_back(fmt::format("{} from {} through {} by {}", join(axes, ", "),
                                graph.label(step.from), op_text(graph, step.op), step.strategy));
  }
  return join(texts, "; ");
}

}  // namespace

const std::vector<const PropagationStrategy*>& propagation_strategies() {
  static const std::vector<const PropagationStrategy*> strategies{&kPassThrough, &kFactors,
                                                                  &kResolve};
  return strategies;
}

Propagation propagate(const PropagationRequest& request) { return Propagator(request).run(); }

std::string to_string(const Origin& origin, const ir::Graph& graph, ValueId value,
                      const ir::Module& module) {
  const std::string steps = steps_text(origin, graph);
  switch (origin.kind) {
    case Origin::Kind::kWhole: return "nothing splits it";
    case Origin::Kind::kAnnotation: return "annotation";
    case Origin::Kind::kState:
      for (const ir::Input& input : graph.inputs) {
        if (input.value == value && input.state.valid())
          return "state " + module.state(input.state).name;
      }
      return "state";
    case Origin::Kind::kPropagated: return steps;
    case Origin::Kind::kCheaper:
      return fmt::format("moves fewer bytes than {}{}{}", to_string(*origin.propagated),
                         steps.empty() ? "" : ": ", steps);
  }
  MW_CHECK(false, "origin {}", static_cast<int>(origin.kind));
}

std::string to_text(const Propagation& propagation, const ir::Graph& graph,
                    const ir::Module& module) {
  std::string text;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const ValueId value(static_cast<int64_t>(v));
    text += fmt::format("{} : {} <- {}\n", graph.label(value), to_string(propagation.shardings[v]),
                        to_string(propagation.origins[v], graph, value, module));
  }
  for (const Decision& decision : propagation.decisions) {
    const std::string kept_by = graph.label(decision.kept_by),
                      lost_by = graph.label(decision.lost_by);
    text += fmt::format("decided at {}: ", op_text(graph, decision.op));
    if (decision.kept == decision.lost) {
      text += fmt::format("{} is split as {} has it, not over {} as {} has it\n", decision.kept,
                          kept_by, decision.axis, lost_by);
    } else {
      text += fmt::format("axis {} splits {} of {}, not {} of {}\n", decision.axis, decision.kept,
                          kept_by, decision.lost, lost_by);
    }
  }
  return text;
}

}  // namespace mw::sharding
