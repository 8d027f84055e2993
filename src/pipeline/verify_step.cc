// The scalars of a step: what adamw is told beside its tensors, what the norm and the loss that a
// call reports are made of, and that all steps of a program are of one optimizer.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "pipeline/metric_names.h"
#include "pipeline/verify.h"

namespace mw::pipeline {
namespace {

using ir::OpKind;

// One call that is no stage's work.
class StepCall {
 public:
  StepCall(const Checked& checked, int32_t rank, size_t command, Diagnostics& out)
      : checked_(checked),
        rank_(rank),
        at_(command),
        command_(checked.rank(rank).commands[command]),
        fragment_(checked.fragment(command_)),
        graph_(fragment_.graph),
        out_(out) {}

  void run() {
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      const ir::Op& op = graph_.ops[o];
      if (op.kind == OpKind::kAdamW) {
        check_data(o, 5, kLearningRate);
        check_data(o, 6, kStepNumber);
        check_decay(o);
      }
      if (op.kind == OpKind::kClip) check_clip(o);
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i) check_output(i);
    check_losses();
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_.add("{} {}", place_text(checked_.program, rank_, at_),
             fmt::format(format, std::forward<Args>(args)...));
  }
  std::string op_text(size_t o) const {
    return fmt::format("op {} ({})", o, ir::op_name(graph_.ops[o].kind));
  }
  const Buffer& buffer(size_t port) const {
    return checked_.rank(rank_).buffers[command_.buffers[port].index()];
  }
  const ir::Op* producer(ValueId v) const {
    const OpId by = graph_.value(v).producer;
    return by.valid() ? &graph_.op(by) : nullptr;
  }
  std::optional<size_t> input(ValueId v) const {
    for (size_t p = 0; p < fragment_.inputs.size(); ++p)
      if (fragment_.inputs[p].value == v) return p;
    return std::nullopt;
  }
  bool is_data(ValueId v, const std::string& name) const {
    const std::optional<size_t> p = input(v);
    return p && fragment_.inputs[*p].kind == PortKind::kData && fragment_.inputs[*p].name == name;
  }
  // Result `i` of an op of the kind.
  bool is_result(ValueId v, OpKind kind, size_t i) const {
    const ir::Op* op = producer(v);
    return op != nullptr && op->kind == kind && op->results[i] == v;
  }

  void check_data(size_t o, size_t operand, const char* name) {
    const ValueId v = graph_.ops[o].operands[operand];
    if (!is_data(v, name)) add("{} takes {} for '{}'", op_text(o), graph_.label(v), name);
  }

  void check_decay(size_t o) {
    const ir::Module* module = checked_.options.module;
    if (module == nullptr) return;
    const std::vector<StateId> parameters = module->parameters();
    for (const auto& group : graph_.ops[o].as<ir::FlatAttrs>().groups) {
      for (const ir::Segment& segment : group) {
        const auto index = static_cast<size_t>(segment.parameter);
        if (index >= parameters.size()) continue;
        const ir::State& state = module->state(parameters[index]);
        if (segment.decay == state.decay) continue;
        add("{} {} '{}', which {}", op_text(o), segment.decay ? "decays" : "does not decay",
            state.name, state.decay ? "decays" : "does not");
      }
    }
  }

  static bool sums_over_pipeline(const ir::Op& op) {
    if (op.kind != OpKind::kAllReduce) return false;
    const auto* group = std::get_if<ir::AxisGroup>(&op.as<ir::CollectiveAttrs>().group);
    return group != nullptr &&
           std::find(group->axes.begin(), group->axes.end(), "pp") != group->axes.end();
  }

  // Adds the norm_parameters that a value is the sum of; false: it is of something else, too, or
  // summed over pipeline ranks more than once (`summed`: by who reads it).
  bool count_norms(ValueId v, std::map<const ir::Op*, int>& counts, bool summed = false) const {
    const ir::Op* op = producer(v);
    if (op == nullptr) return false;
    switch (op->kind) {
      case OpKind::kNormParameters: ++counts[op]; return true;
      case OpKind::kConstant: return op->as<ir::ConstantAttrs>().value == 0;
      case OpKind::kAllReduce:
      case OpKind::kCopy: {
        const bool sums = sums_over_pipeline(*op);
        if (sums && summed) return false;
        return count_norms(op->operands[index_of(*op, v)], counts, summed || sums);
      }
      case OpKind::kAdd:
      case OpKind::kAccumulate:
        return count_norms(op->operands[0], counts, summed) &&
               count_norms(op->operands[1], counts, summed);
      default: return false;
    }
  }
  static size_t index_of(const ir::Op& op, ValueId result) {
    return static_cast<size_t>(std::find(op.results.begin(), op.results.end(), result) -
                               op.results.begin());
  }

  // Its sums are all of the fragment's, once each; of squares that a step before has left,
  // check_validation says whose.
  void check_clip(size_t o) {
    const ValueId sums = graph_.ops[o].operands[0];
    if (input(sums)) return;
    std::map<const ir::Op*, int> counts;
    if (!count_norms(sums, counts))
      return add("{} takes {}, which is no sum of norms", op_text(o), graph_.label(sums));
    for (size_t n = 0; n < graph_.ops.size(); ++n) {
      if (graph_.ops[n].kind != OpKind::kNormParameters) continue;
      const int times = counts[&graph_.ops[n]];
      if (times != 1) add("{} takes the norms of op {} {} times", op_text(o), n, times);
    }
  }

  // Every metric is what its name says.
  void check_output(size_t i) {
    const Buffer& to = buffer(fragment_.inputs.size() + i);
    if (to.category != Category::kMetrics) return;
    const ValueId v = graph_.outputs[i];
    const bool fits = to.value == kGradNorm
                          ? is_result(v, OpKind::kClip, 0) || is_result(v, OpKind::kValidate, 0)
                      : to.value == kScale     ? is_result(v, OpKind::kValidate, 1)
                      : to.value == kAmended   ? is_result(v, OpKind::kValidate, 2)
                      : to.value == kUsedScale ? is_result(v, OpKind::kClip, 1)
                      : to.value == kLossValue ? is_loss(v, true) && (summed_ || !losses_.empty())
                      : to.value == kOwnLoss   ? is_loss(v, false)
                                               : true;
    if (!fits) add("reports {} as '{}'", graph_.label(v), to.name());
  }

  // Whether a value is the sum of what ranks hold of the loss; `scaled`: times the scale, once;
  // `summed`: over pipeline ranks by who reads it, which is once, too.
  bool is_loss(ValueId v, bool scaled, bool summed = false) {
    if (const std::optional<size_t> p = input(v)) {
      const bool is_accumulator = !scaled && is_loss_state(*p);
      if (is_accumulator) losses_.insert(*p);
      return is_accumulator;
    }
    const ir::Op& op = *producer(v);
    switch (op.kind) {
      case OpKind::kConstant: return op.as<ir::ConstantAttrs>().value == 0;
      case OpKind::kValidate: summed_ = true; return !scaled && op.results[3] == v;
      case OpKind::kAllReduce: {
        const bool sums = sums_over_pipeline(op);
        if (sums && summed) return false;
        summed_ = summed_ || sums;
        return is_loss(op.operands[index_of(op, v)], scaled, summed || sums);
      }
      case OpKind::kCopy: return is_loss(op.operands[index_of(op, v)], scaled, summed);
      case OpKind::kScale: return scaled && is_loss(op.operands[0], false, summed);
      case OpKind::kAdd:
      case OpKind::kAccumulate:
        return is_loss(op.operands[0], scaled, summed) && is_loss(op.operands[1], scaled, summed);
      case OpKind::kMul:
        return scaled && is_data(op.operands[1], kLossScale) &&
               is_loss(op.operands[0], false, summed);
      default: return false;
    }
  }
  bool is_loss_state(size_t port) const {
    const Buffer& of = buffer(port);
    if (of.category != Category::kMetrics || of.type().rank() != 0) return false;
    for (const char* other : {kLossValue, kGradNorm, kScale, kAmended, kUsedScale})
      if (of.value == other) return false;
    return true;
  }
  // A loss that is cleared was reported.
  void check_losses() {
    const auto& effects = checked_.accumulation[command_.fragment.index()].effects;
    for (size_t p = 0; p < fragment_.inputs.size(); ++p) {
      if (effects[p].kind == StateEffect::Kind::kCleared && is_loss_state(p) &&
          !losses_.contains(p))
        add("clears '{}', which it does not report", buffer(p).name());
    }
  }

  const Checked& checked_;
  const int32_t rank_;
  const size_t at_;
  const Command& command_;
  const Fragment& fragment_;
  const ir::Graph& graph_;
  Diagnostics& out_;
  std::set<size_t> losses_;  // ports that are reported
  bool summed_ = false;      // over the pipeline ranks: this one may have none
};

// What two ops of one optimizer have alike.
std::string optimizer_text(const ir::Op& op) {
  const auto& attrs = op.as<ir::FlatAttrs>();
  if (op.kind != OpKind::kAdamW) return fmt::format("max_norm={}", attrs.max_norm);
  return fmt::format("beta1={}, beta2={}, epsilon={}, weight_decay={}", attrs.beta1, attrs.beta2,
                     attrs.epsilon, attrs.weight_decay);
}

void check_one_optimizer(const Program& program, Diagnostics& out) {
  std::string step, clip;  // of the first
  for (const Fragment& fragment : program.fragments) {
    for (const ir::Op& op : fragment.graph.ops) {
      const bool clips = op.kind == OpKind::kClip || op.kind == OpKind::kValidate;
      if (!clips && op.kind != OpKind::kAdamW) continue;
      const std::string text = optimizer_text(op);
      std::string& wanted = clips ? clip : step;
      if (wanted.empty()) wanted = text;
      if (text == wanted) continue;
      return out.add("fragment '{}': {} has {}, others have {}", fragment.name,
                     ir::op_name(op.kind), text, wanted);
    }
  }
}

}  // namespace

void check_step(const Checked& checked, Diagnostics& out) {
  check_one_optimizer(checked.program, out);
  for (size_t r = 0; r < checked.program.ranks.size(); ++r) {
    const std::vector<Command>& commands = checked.program.ranks[r].commands;
    for (size_t c = 0; c < commands.size(); ++c) {
      const ActionKind kind = commands[c].action.kind;
      const bool of_step = kind == ActionKind::kUpdate || kind == ActionKind::kValidate ||
                           kind == ActionKind::kRollback;
      if (commands[c].kind == Command::Kind::kCall && of_step)
        StepCall(checked, static_cast<int32_t>(r), c, out).run();
    }
  }
}

}  // namespace mw::pipeline
