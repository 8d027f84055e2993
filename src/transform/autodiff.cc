#include "transform/autodiff.h"

#include <algorithm>
#include <map>
#include <string_view>

#include <fmt/core.h>

#include "base/error.h"
#include "ops/builder.h"
#include "ops/op_def.h"

namespace mw::transform {
namespace {

using ir::OpKind;
using ir::Work;

constexpr std::string_view kGradPrefix = "grad/";

// A part of a value's gradient: what one use of the value gives.
struct Contribution {
  OpId consumer;
  int operand = 0;
  LayerId layer;  // of the consumer
  ValueId gradient;
};

class Differentiator {
 public:
  Differentiator(ir::Module& module, ir::Graph& graph, const AutodiffOptions& options)
      : module_(module),
        graph_(graph),
        options_(options),
        builder_(graph),
        forward_ops_(graph.ops.size()),
        uses_from_(graph.ops.size()) {}

  void run() {
    graph_.reserve(4 * graph_.values.size(), 4 * graph_.ops.size());
    const ValueId loss = find_loss(), scale = find_scale(loss);
    find_needed();
    find_reaching(loss);
    add_accumulators();
    accumulate_loss(loss);
    gradients_.resize(graph_.values.size());
    gradients_[loss.index()].push_back({OpId(), 0, LayerId(), scale});
    for (size_t i = forward_ops_; i-- > 0;) {
      const ir::Op op = graph_.ops[i];
      differentiate_op(OpId(static_cast<int64_t>(i)), op);
      for (const size_t use : uses_from_[i]) finish_parameter(uses_[use]);
    }
    ir::drop_dead(graph_);
    mark_work(graph_);
  }

 private:
  // A weight and a layer that uses it.
  struct Use {
    ValueId parameter;
    LayerId layer;
    ValueId accumulator;
    StateId state;
  };

  ValueId find_loss() const {
    for (const ValueId output : graph_.outputs) {
      if (graph_.value(output).name != options_.loss) continue;
      const ir::TensorType& type = graph_.type(output);
      if (type.rank() != 0 || !is_floating(type.dtype)) {
        throw_error("graph '{}': the loss '{}' is {}; it must be a floating scalar", graph_.name,
                    options_.loss, ir::to_string(type));
      }
      return output;
    }
    throw_error(
        "graph '{}' has no output '{}'; the loss to differentiate must be one of its outputs",
        graph_.name, options_.loss);
  }

  ValueId find_scale(ValueId loss) const {
    for (const ir::Input& input : graph_.inputs) {
      if (graph_.value(input.value).name != options_.loss_scale) continue;
      if (graph_.type(input.value) != graph_.type(loss)) {
        throw_error("graph '{}': the input '{}' is {}; it must have the type {} of the loss",
                    graph_.name, options_.loss_scale, ir::to_string(graph_.type(input.value)),
                    ir::to_string(graph_.type(loss)));
      }
      return input.value;
    }
    throw_error("graph '{}' has no input '{}'; it is the gradient that the loss starts with",
                graph_.name, options_.loss_scale);
  }

  bool is_parameter(const ir::Input& input) const {
    return input.state.valid() && module_.state(input.state).kind == ir::StateKind::kWeight &&
           is_floating(graph_.type(input.value).dtype);
  }

  // Values that depend on a weight.
  void find_needed() {
    needed_.assign(graph_.values.size(), false);
    for (const ir::Input& input : graph_.inputs) needed_[input.value.index()] = is_parameter(input);
    for (const ir::Op& op : graph_.ops) {
      const bool any =
          std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return needed(v); });
      for (const ValueId result : op.results) {
        needed_[result.index()] = any && is_floating(graph_.type(result).dtype);
      }
    }
  }
  bool needed(ValueId v) const { return needed_[v.index()]; }

  // Values that the loss depends on.
  void find_reaching(ValueId loss) {
    reaching_.assign(graph_.values.size(), false);
    reaching_[loss.index()] = true;
    for (size_t i = graph_.ops.size(); i-- > 0;) {
      const ir::Op& op = graph_.ops[i];
      const bool any = std::any_of(op.results.begin(), op.results.end(),
                                   [&](ValueId v) { return reaching_[v.index()]; });
      if (!any) continue;
      for (const ValueId operand : op.operands) reaching_[operand.index()] = true;
    }
  }

  // One a (parameter, layer), in the order of parameters and then of layers.
  void add_accumulators() {
    Diagnostics diagnostics;
    const std::vector<ir::Input> inputs = graph_.inputs;
    const std::vector<ir::OpIds> users = graph_.users();
    for (const ir::Input& input : inputs) {
      if (!is_parameter(input)) continue;
      std::map<LayerId, OpId> layers;
      for (const OpId user : users[input.value.index()]) {
        const ir::Op& op = graph_.op(user);
        const bool reaches = std::any_of(op.results.begin(), op.results.end(),
                                         [&](ValueId v) { return reaching_[v.index()]; });
        if (reaches) layers.try_emplace(op.layer, user);
      }
      if (layers.empty()) {
        diagnostics.add(
            "graph '{}': parameter '{}' does not reach the loss '{}'; without a gradient it cannot "
            "be trained",
            graph_.name, module_.state(input.state).name, options_.loss);
      }
      for (const auto& [layer, first] : layers)
        add_accumulator(input, layer, first, layers.size() > 1);
    }
    diagnostics.throw_if_any();
  }

  void add_accumulator(const ir::Input& parameter, LayerId layer, OpId first, bool several) {
    const ir::State weight = module_.state(parameter.state);
    ir::State state;
    state.name = std::string(kGradPrefix) + weight.name;
    if (several)
      state.name +=
          "@" + (layer.valid() ? module_.layers[layer.index()].name : std::string("none"));
    state.type = weight.type;
    state.kind = ir::StateKind::kGradient;
    state.logical = weight.logical;
    state.layer = layer;
    state.decay = weight.decay;
    state.parameter = parameter.state;
    state.use = layer;
    const std::string name = state.name;
    const StateId id = module_.add_state(std::move(state));
    const ValueId accumulator = graph_.add_input(graph_.type(parameter.value), name, id);
    graph_.value(accumulator).logical = graph_.value(parameter.value).logical;
    uses_from_[first.index()].push_back(uses_.size());
    uses_.push_back({parameter.value, layer, accumulator, id});
  }

  void accumulate_loss(ValueId loss) {
    const OpId producer = graph_.value(loss).producer;
    ir::State state;
    state.name = "loss";
    state.type = graph_.type(loss);
    state.kind = ir::StateKind::kMetric;
    state.layer = producer.valid() ? graph_.op(producer).layer : LayerId();
    builder_.layer = state.layer;
    builder_.work = Work::kForward;
    const StateId id = module_.add_state(std::move(state));
    const ValueId accumulator = graph_.add_input(graph_.type(loss), "loss_accumulator", id);
    const ValueId sum = builder_.emit1(OpKind::kAccumulate, ir::NoAttrs{}, {accumulator, loss});
    graph_.updates.push_back({id, sum});
    builder_.work = Work::kInputGrad;
  }

  void differentiate_op(OpId id, const ir::Op& op) {
    MW_CHECK(op.work == Work::kForward,
             "graph '{}' is differentiated already: op {} is no forward op", graph_.name, id.value);
    ValueIds result_grads;
    bool any = false;
    for (const ValueId result : op.results) {
      result_grads.push_back(
          needed(result) ? gradient_of(result, op.layer, graph_.value(result).name) : ValueId());
      any = any || result_grads.back().valid();
    }
    if (!any) return;
    std::vector<bool> needs;
    for (const ValueId operand : op.operands) needs.push_back(needed(operand));
    const ops::OpDef& def = ops::op_def(op.kind);
    if (def.gradient == nullptr) {
      throw_error(
          "graph '{}': {} -> {} has no gradient, but the loss depends on a parameter through it",
          graph_.name, ir::op_name(op.kind), graph_.label(op.results[0]));
    }
    builder_.layer = op.layer;
    ops::GradientContext context(builder_, op, std::move(result_grads), needs);
    def.gradient(context);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const ValueId gradient = context.operand_grads()[i];
      if (!needs[i] || !gradient.valid()) continue;
      MW_CHECK(graph_.type(gradient) == graph_.type(op.operands[i]),
               "{}: the gradient of operand {} is {}, not {}", ir::op_name(op.kind), i,
               ir::to_string(graph_.type(gradient)), ir::to_string(graph_.type(op.operands[i])));
      gradients_[op.operands[i].index()].push_back({id, static_cast<int>(i), op.layer, gradient});
    }
  }

  // The sum of the contributions to v, named "d.<name>". All uses of `v` lie behind its producer,
  // of layer `home`, and have given theirs.
  ValueId gradient_of(ValueId v, LayerId home, std::string name) {
    std::vector<Contribution> parts = std::move(gradients_[v.index()]);
    if (parts.empty()) return ValueId();
    std::sort(parts.begin(), parts.end(), [](const Contribution& a, const Contribution& b) {
      return std::pair(a.consumer, a.operand) < std::pair(b.consumer, b.operand);
    });
    std::vector<LayerId> layers;  // in order of their first use
    for (const Contribution& part : parts) {
      if (std::find(layers.begin(), layers.end(), part.layer) == layers.end())
        layers.push_back(part.layer);
    }
    ValueId total;
    for (const LayerId layer : layers) {
      ValueId sum;
      builder_.layer = layer;
      for (const Contribution& part : parts) {
        if (part.layer == layer)
          sum = sum.valid() ? builder_.add(sum, part.gradient) : part.gradient;
      }
      adopt_logical(sum, v);
      builder_.layer = home;
      total = total.valid() ? builder_.add(total, sum) : sum;
    }
    adopt_logical(total, v);
    adopt_name(total, name);
    return total;
  }

  // A gradient that is an input (the loss scale) or has axes or a name of another value keeps them.
  void adopt_logical(ValueId gradient, ValueId of) {
    ir::Value& value = graph_.value(gradient);
    if (value.producer.valid() && value.logical.empty()) value.logical = graph_.value(of).logical;
  }
  void adopt_name(ValueId gradient, const std::string& name) {
    ir::Value& value = graph_.value(gradient);
    if (value.producer.valid() && value.name.empty() && !name.empty()) value.name = "d." + name;
  }

  // Accumulates the gradients of a parameter in a layer, when the first op that uses it there has
  // given its contribution, the last of all.
  void finish_parameter(const Use& use) {
    std::vector<Contribution>& all = gradients_[use.parameter.index()];
    std::vector<Contribution> rest;
    std::vector<Contribution> mine;
    for (const Contribution& part : all) (part.layer == use.layer ? mine : rest).push_back(part);
    all = std::move(mine);
    const std::string& name = module_.state(use.state).name;
    const ValueId gradient = gradient_of(use.parameter, use.layer, name.substr(kGradPrefix.size()));
    gradients_[use.parameter.index()] = std::move(rest);
    if (!gradient.valid()) {
      throw_error("graph '{}': no gradient comes to '{}' though its parameter reaches the loss",
                  graph_.name, name);
    }
    builder_.layer = use.layer;
    const ValueId sum =
        builder_.emit1(OpKind::kAccumulate, ir::NoAttrs{}, {use.accumulator, gradient});
    graph_.value(sum).logical = graph_.value(use.parameter).logical;
    graph_.updates.push_back({use.state, sum});
  }

  ir::Module& module_;
  ir::Graph& graph_;
  const AutodiffOptions& options_;
  ops::Builder builder_;
  size_t forward_ops_;
  std::vector<bool> needed_, reaching_;
  std::vector<std::vector<Contribution>> gradients_;
  std::vector<Use> uses_;
  std::vector<std::vector<size_t>> uses_from_;  // [forward op] uses that it is the first op of
};

}  // namespace

void differentiate(ir::Module& module, const AutodiffOptions& options) {
  ir::Graph* graph = module.find_graph(options.graph);
  if (graph == nullptr)
    throw_error("module '{}' has no graph '{}' to differentiate", module.name, options.graph);
  Differentiator(module, *graph, options).run();
}

void mark_work(ir::Graph& graph) {
  const std::vector<ir::OpIds> users = graph.users();
  std::vector<bool> updated(graph.values.size(), false), output(graph.values.size(), false);
  for (const ir::StateUpdate& update : graph.updates) updated[update.value.index()] = true;
  for (const ValueId v : graph.outputs) output[v.index()] = true;
  // Whether all that happens to the value ends in updates, in this layer.
  const auto ends_in_updates = [&](ValueId v, LayerId layer) {
    if (output[v.index()]) return false;
    return std::all_of(users[v.index()].begin(), users[v.index()].end(), [&](OpId user) {
      return graph.op(user).work == Work::kWeightGrad && graph.op(user).layer == layer;
    });
  };
  for (size_t i = graph.ops.size(); i-- > 0;) {
    ir::Op& op = graph.ops[i];
    if (op.work == Work::kForward || op.recompute.valid()) continue;
    bool weight = false, input = false;
    for (const ValueId result : op.results) {
      if (users[result.index()].empty() && !updated[result.index()] && !output[result.index()])
        continue;
      (ends_in_updates(result, op.layer) ? weight : input) = true;
    }
    MW_CHECK(!(weight && input),
             "graph '{}': op {} ({} -> {}) makes an input gradient and a weight gradient",
             graph.name, i, ir::op_name(op.kind), graph.label(op.results[0]));
    op.work = weight ? Work::kWeightGrad : Work::kInputGrad;
  }
}

}  // namespace mw::transform
