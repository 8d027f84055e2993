#include "pipeline/fragment_sharding.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "ops/op_def.h"
#include "pipeline/sharding_steps.h"
#include "sharding/factors.h"
#include "sharding/padding.h"

namespace mw::pipeline {
namespace {

using ir::Axes;
using ir::OpKind;
using ops::ShardingRule;
using sharding::Sharding;

bool contains(const std::vector<int>& list, size_t i) {
  return std::find(list.begin(), list.end(), static_cast<int>(i)) != list.end();
}

std::string axes_text(const Axes& axes) { return "{" + join(axes, ", ") + "}"; }

class Checker {
 public:
  Checker(const Fragment& fragment, const cluster::Mesh& mesh)
      : fragment_(fragment),
        graph_(fragment.graph),
        mesh_(mesh),
        zero_(graph_.values.size(), false) {
    for (const Sharding& s : fragment.shardings)
      shardings_.push_back(sharding::normalized(s, mesh));
    for (const ir::Value& value : graph_.values) {
      tails_.emplace_back(value.type.dims.size(), true);
      boundless_.emplace_back(value.type.dims.size(), false);
    }
  }

  std::vector<std::string> run() {
    for (size_t v = 0; v < graph_.values.size(); ++v) check_value(ValueId(static_cast<int64_t>(v)));
    if (!out_.empty()) return out_.findings();
    for (const ir::Op& op : graph_.ops) {
      op_ = &op;
      if (!check_types()) continue;  // rules are made for types that fit
      try {
        check_op();
      } catch (const CheckFailure& failure) {  // of the whole tensors: local ones may fit by chance
        add("works on whole tensors that do not fit: {}", failure.what());
      }
    }
    check_left();
    return out_.findings();
  }

 private:
  const Sharding& of(ValueId v) const { return shardings_[v.index()]; }
  const ir::TensorType& global(ValueId v) const { return fragment_.global_types[v.index()]; }
  const ir::Op& op() const { return *op_; }
  std::string here() const {
    return fmt::format("op {} ({}{})", op_ - graph_.ops.data(), ir::op_name(op().kind),
                       op().results.empty() ? "" : " -> " + graph_.label(op().results[0]));
  }
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_.add("{} {}", here(), fmt::format(format, std::forward<Args>(args)...));
  }

  // Sizes that a gather or a padding may leave larger than the global size until a trim.
  static bool may_be_padded(const ir::Graph& graph, ValueId v) {
    const OpId producer = graph.value(v).producer;
    if (!producer.valid()) return false;
    const OpKind kind = graph.op(producer).kind;
    return kind == OpKind::kPad || kind == OpKind::kAllGather || kind == OpKind::kAllToAll ||
           kind == OpKind::kAllReduce || kind == OpKind::kPadMask;
  }

  void check_value(ValueId v) {
    const ir::TensorType &local = graph_.type(v), &whole = global(v);
    const Sharding& sharding = fragment_.shardings[v.index()];
    for (const std::string& finding : sharding::findings(sharding, whole, mesh_)) {
      out_.add("{}: {}", graph_.label(v), finding);
    }
    bool fits = local.dtype == whole.dtype && local.dims.size() == whole.dims.size() &&
                sharding.dims.size() == whole.dims.size();
    if (!fits) {
      out_.add("{}: local {} is no shard of {} as {}", graph_.label(v), ir::to_string(local),
               ir::to_string(whole), to_string(sharding));
      return;
    }
    for (size_t d = 0; d < local.dims.size(); ++d) {
      const int64_t shards = sharding::shards(sharding.dims[d], mesh_);
      const int64_t size = (whole.dims[d].size + shards - 1) / shards;
      fits = fits && (local.dims[d].size == size ||
                      (local.dims[d].size > size && may_be_padded(graph_, v)));
    }
    if (!fits) {
      out_.add("{}: local {} is no shard of {} as {}", graph_.label(v), ir::to_string(local),
               ir::to_string(whole), to_string(sharding));
    }
    for (const Axes& axes : sharding.dims) {
      if (std::find(axes.begin(), axes.end(), "pp") != axes.end()) {
        out_.add("{}: sharding {} splits a dimension over the pipeline axis", graph_.label(v),
                 to_string(sharding));
      }
    }
  }

  bool check_types() {
    try {
      ops::infer(op(), ops::operand_types(graph_, op()), ops::result_types(graph_, op()));
      return true;
    } catch (const Error& error) {
      add("{}", error.what());
    } catch (const CheckFailure& failure) {
      add("{}", failure.what());
    }
    return false;
  }

  void check_op() {
    check_boundless();
    if (is_sharding_step(op().kind)) return check_step();
    zero_results();
    if (ops::op_def(op().kind).rule == nullptr) {
      add("has no sharding rule, so it cannot be checked");
      return;
    }
    if (is_flattening()) return;
    const ShardingRule rule = global_rule();
    check_factors(rule);
    check_pending(rule);
    check_tails(rule);
    check_offsets();
  }

  // The states' programs lay a device's part of a parameter into its flat group, whose elements are
  // the device's own: there the axes of the parameter's dimensions end.
  bool is_flattening() const {
    if (op().kind != OpKind::kReshape || fragment_.kind != ActionKind::kUpdate) return false;
    const ValueId x = op().operands[0], y = op().results[0];
    return graph_.type(y).rank() == 1 && graph_.type(y).elements() == graph_.type(x).elements() &&
           global(y) == graph_.type(y) && of(y).dims[0].empty() && of(y).partial == of(x).partial;
  }

  void check_step() {
    StepValues values;
    for (const ValueId v : op().operands) {
      values.operands.push_back(&of(v));
      values.operand_zero.push_back(zero_[v.index()]);
      values.global_operands.push_back(&global(v));
    }
    for (const ValueId v : op().results) {
      values.results.push_back(&of(v));
    }
    for (const std::string& finding : step_findings(op(), values, mesh_)) add("{}", finding);
    // The moves give zeros in new tails; what masks with another value says so.
    for (const ValueId v : op().results) {
      if (op().kind == OpKind::kAllReduce || op().kind == OpKind::kPermute ||
          op().kind == OpKind::kCopy || op().kind == OpKind::kPadMask) {
        tails_[v.index()] = tails_[op().operands[0].index()];
      }
      if (op().kind != OpKind::kPadMask) continue;
      const ir::PadMaskAttrs& attrs = op().as<ir::PadMaskAttrs>();
      tails_[v.index()][static_cast<size_t>(attrs.dim)] = attrs.value == 0;
      boundless_[v.index()] = boundless_[op().operands[0].index()];
      boundless_[v.index()][static_cast<size_t>(attrs.dim)] = false;
      masked_.push_back({v, attrs.dim});
    }
  }

  // The rule on global types. A slice's bounds are local where it keeps the whole dimension.
  ShardingRule global_rule() const {
    ir::Graph global;
    ir::Op copy = op();
    for (ValueId& v : copy.operands) v = global.add_value(fragment_.global_types[v.index()]);
    for (ValueId& v : copy.results) v = global.add_value(fragment_.global_types[v.index()]);
    if (copy.kind == OpKind::kSlice) {
      ir::SliceAttrs attrs = copy.as<ir::SliceAttrs>();
      const ir::TensorType& local = graph_.type(op().operands[0]);
      for (size_t d = 0; d < attrs.limit.size(); ++d) {
        const bool whole =
            attrs.start[d] == 0 && attrs.stride[d] == 1 && attrs.limit[d] == local.dims[d].size;
        if (whole) attrs.limit[d] = global.type(copy.operands[0]).dims[d].size;
      }
      copy.attrs = attrs;
    }
    return ops::rule_of(global, copy);
  }

  // Axes of every factor, as the first tensor that has it says.
  void check_factors(const ShardingRule& rule) {
    factor_axes_.assign(rule.factors.size(), std::nullopt);
    const auto check = [&](const ShardingRule::Dims& dims, ValueId v) {
      const sharding::FactorAxes axes = sharding::factors_of(rule, dims, of(v), mesh_);
      const Sharding followed = sharding::sharding_of_factors(dims, axes);
      for (size_t d = 0; d < dims.size(); ++d) {
        for (const int f : dims[d])
          check_factor(rule, f, axes[static_cast<size_t>(f)], v, static_cast<int>(d));
        if (dims[d].empty() && !of(v).dims[d].empty()) {
          add("splits {} over {}, which it does not know", graph_.label(v),
              axes_text(of(v).dims[d]));
        } else if (followed.dims[d] != of(v).dims[d]) {
          add("splits dimension {} of {} over {}, which does not follow the factors of its rule "
              "\"{}\"",
              d, graph_.label(v), axes_text(of(v).dims[d]), rule.to_string());
        }
      }
    };
    for (size_t i = 0; i < rule.operands.size(); ++i) check(rule.operands[i], op().operands[i]);
    for (size_t i = 0; i < rule.results.size(); ++i) check(rule.results[i], op().results[i]);
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      for (size_t g = 0; g < f; ++g) check_distinct(rule, f, g);
    }
  }
  void check_factor(const ShardingRule& rule, int index, const Axes& axes, ValueId v, int dim) {
    const ops::Factor& factor = rule.factors[static_cast<size_t>(index)];
    if (factor.ignored) return;
    if (!factor.shardable && !axes.empty()) {
      add("needs dimension {} of {} whole, but it is split over {}", dim, graph_.label(v),
          axes_text(axes));
    }
    std::optional<Axes>& known = factor_axes_[static_cast<size_t>(index)];
    if (!known) known = axes;
    if (*known != axes) {
      add("has dimension {} of {} over {}, but factor {} of its rule \"{}\" is over {} elsewhere",
          dim, graph_.label(v), axes_text(axes), factor.name, rule.to_string(), axes_text(*known));
    }
  }
  void check_distinct(const ShardingRule& rule, size_t f, size_t g) {
    if (!factor_axes_[f] || !factor_axes_[g] || factor_axes_[f]->empty() ||
        factor_axes_[g]->empty())
      return;
    for (const Name axis : *factor_axes_[f]) {
      if (std::find(factor_axes_[g]->begin(), factor_axes_[g]->end(), axis) ==
          factor_axes_[g]->end())
        continue;
      add("has axis {} on factors {} and {} of its rule \"{}\"", axis, rule.factors[g].name,
          rule.factors[f].name, rule.to_string());
    }
  }

  // The pending reduction of each result: over the axes of the factors that are reduced in it, and
  // of the pending operand that passes.
  void check_pending(const ShardingRule& rule) {
    const size_t own = op().operands.size() - (op().accumulates ? 1 : 0);
    const Sharding* passed = nullptr;  // the pending operand
    for (size_t i = 0; i < own; ++i) check_pending_operand(rule, i, own, passed);
    for (size_t r = 0; r < op().results.size(); ++r) {
      const Sharding pending = pending_result(rule, r, passed);
      if (r == 0 && op().accumulates) check_result_pending(op().operands.back(), pending);
      check_result_pending(op().results[r], pending);
    }
  }

  Sharding pending_result(const ShardingRule& rule, size_t result, const Sharding* passed) {
    Sharding pending;
    const auto join = [&](const Axes& axes, ir::Reduction reduction) {
      if (axes.empty()) return;
      if (!pending.partial.empty() && pending.reduction != reduction)
        add("mixes pending reductions of two kinds");
      pending.partial.insert(pending.partial.end(), axes.begin(), axes.end());
      pending.reduction = reduction;
    };
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (factor_axes_[f] && sharding::reduced_in(rule, f, result))
        join(*factor_axes_[f], rule.factors[f].reduction);
    }
    if (passed != nullptr) join(passed->partial, passed->reduction);
    std::sort(pending.partial.begin(), pending.partial.end());
    if (std::adjacent_find(pending.partial.begin(), pending.partial.end()) !=
        pending.partial.end()) {
      add("sums over an axis on which an operand is pending already");
    }
    return pending;
  }

  void check_pending_operand(const ShardingRule& rule, size_t i, size_t own,
                             const Sharding*& passed) {
    const Sharding& sharding = of(op().operands[i]);
    const bool joint =
        rule.linearity == ShardingRule::Linearity::kJoint && contains(rule.linear, i);
    if (joint) {
      for (size_t j = 0; j < own; ++j) {
        if (!contains(rule.linear, j) || j == i) continue;
        const Sharding& other = of(op().operands[j]);
        if (j > i && (other.partial != sharding.partial || other.reduction != sharding.reduction)) {
          add("joins {} as {} and {} as {}: one is pending, the other not",
              graph_.label(op().operands[i]), to_string(sharding), graph_.label(op().operands[j]),
              to_string(other));
        }
      }
    }
    if (!sharding.is_partial()) return;
    if (!contains(rule.linear, i)) {
      add("reads {}, which is pending as {}, but is not linear in it: a reduction is missing",
          graph_.label(op().operands[i]), to_string(sharding));
    } else if (sharding.reduction != ir::Reduction::kSum) {
      add("reads {}, which is pending as {}: only sums pass", graph_.label(op().operands[i]),
          to_string(sharding));
    } else if (passed != nullptr && !joint) {
      add("reads two pending operands");
    }
    passed = &sharding;
  }

  void check_result_pending(ValueId v, const Sharding& pending) {
    const Sharding& have = of(v);
    const bool same = have.partial == pending.partial &&
                      (have.partial.empty() || have.reduction == pending.reduction);
    // Zeros are the same sum whether they are pending or not.
    if (same || zero_[v.index()]) return;
    add("makes {} pending over {}, but it is held as {}", graph_.label(v),
        axes_text(pending.partial), to_string(have));
  }

  void zero_results() {
    const bool zero = op().kind == OpKind::kZero ||
                      (op().kind == OpKind::kConstant && op().as<ir::ConstantAttrs>().value == 0);
    for (const ValueId v : op().results) zero_[v.index()] = zero;
  }

  // A factor that is summed over and padded needs zeros in the tail of an operand in which the op
  // is linear; the other reductions need the tail masked.
  void check_tails(const ShardingRule& rule) {
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (!factor_axes_[f] || !sharding::reduces_tail(rule, f, *factor_axes_[f], mesh_) ||
          has_safe_tail(rule, f))
        continue;
      add("reduces over factor {} of its rule \"{}\", whose last shard is padded, and no operand "
          "has that tail masked",
          rule.factors[f].name, rule.to_string());
    }
    for (size_t r = 0; r < rule.results.size(); ++r) {
      const ValueId v = op().results[r];
      const std::vector<bool> zero = sharding::zero_tails(
          rule, r, [&](size_t i, size_t d) { return tails_[op().operands[i].index()][d]; });
      tails_[v.index()] = zero;
      for (size_t d = 0; d < zero.size(); ++d) {
        boundless_[v.index()][d] =
            !zero[d] && !rule.finite_preserving &&
            sharding::is_padded(global(v), of(v), static_cast<int>(d), mesh_);
      }
    }
  }
  // Such a value may only be masked: what reads it beside a tail of zeros takes 0 * inf for 0.
  void check_boundless() {
    for (const ValueId v : op().operands) {
      if (op().kind != OpKind::kPadMask && is_boundless(v)) {
        add("reads {}, whose padded tail may hold infinities: it must be masked first",
            graph_.label(v));
      }
    }
  }
  void check_left() {
    for (const ValueId v : graph_.outputs) {
      if (is_boundless(v))
        out_.add("{}: leaves with a padded tail that may hold infinities", graph_.label(v));
    }
  }
  bool is_boundless(ValueId v) const {
    const std::vector<bool>& dims = boundless_[v.index()];
    return std::find(dims.begin(), dims.end(), true) != dims.end();
  }
  bool has_safe_tail(const ShardingRule& rule, size_t f) const {
    for (size_t i = 0; i < rule.operands.size(); ++i) {
      for (size_t d = 0; d < rule.operands[i].size(); ++d) {
        if (!contains(rule.operands[i][d], f)) continue;
        const ValueId v = op().operands[i];
        const bool is_masked = std::find(masked_.begin(), masked_.end(),
                                         Masked{v, static_cast<int>(d)}) != masked_.end();
        const bool zeros = contains(rule.linear, i) && tails_[v.index()][d];
        if (is_masked || (zeros && rule.factors[f].reduction == ir::Reduction::kSum)) return true;
      }
    }
    return false;
  }

  // The offsets of shards in the attributes are those that the operands' layout gives.
  void check_offsets() {
    const ops::OpDef& def = ops::op_def(op().kind);
    if (def.localize == nullptr || op().kind == OpKind::kSlice) return;
    for (const bool normal : {false, true}) {
      ops::LocalLayout layout;
      const auto fill = [&](const ValueIds& values, auto& axes, auto& globals, auto& locals) {
        for (const ValueId v : values) {
          axes.push_back(normal ? of(v).dims : fragment_.shardings[v.index()].dims);
          globals.push_back(global(v));
          locals.push_back(graph_.type(v));
        }
      };
      fill(op().operands, layout.operands, layout.global_operands, layout.local_operands);
      fill(op().results, layout.results, layout.global_results, layout.local_results);
      ir::Op again = op();
      def.localize(again, layout);
      if (again.attrs == op().attrs) return;
    }
    add("has offsets {} that do not fit the layout of its operands", ir::to_string(op().attrs));
  }

  struct Masked {
    ValueId value;
    int dim;
    friend bool operator==(const Masked&, const Masked&) = default;
  };

  const Fragment& fragment_;
  const ir::Graph& graph_;
  const cluster::Mesh& mesh_;
  std::vector<Sharding> shardings_;  // normalized
  std::vector<bool> zero_;           // [value] known to be zeros
  // [value][dimension] the padded tail is known to hold zeros; may hold infinities.
  std::vector<std::vector<bool>> tails_, boundless_;
  std::vector<Masked> masked_;
  std::vector<std::optional<Axes>> factor_axes_;
  const ir::Op* op_ = nullptr;
  Diagnostics out_;
};

}  // namespace

std::vector<std::string> fragment_sharding_findings(const Fragment& fragment,
                                                    const cluster::Mesh& mesh) {
  return Checker(fragment, mesh).run();
}

}  // namespace mw::pipeline
