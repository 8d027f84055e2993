#include <set>
#include <string>

#include <fmt/core.h>

#include "base/error.h"
#include "ir/graph.h"

namespace mw::ir {
namespace {

class Verifier {
 public:
  Verifier(const Graph& graph, const Module* module)
      : graph_(graph), module_(module), defined_(graph.values.size(), false) {}

  void run() {
    names();
    for (size_t i = 0; i < graph_.inputs.size(); ++i) input(graph_.inputs[i]);
    for (size_t i = 0; i < graph_.ops.size(); ++i) op(OpId(static_cast<int64_t>(i)));
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      check(defined_[i], "value {} is neither an input nor a result",
            graph_.label(ValueId(static_cast<int64_t>(i))));
    }
    where_ = "outputs";
    for (const ValueId output : graph_.outputs) reads(output);
    updates();
  }

 private:
  template <typename... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    throw CheckFailure(fmt::format("graph '{}': {}{}{}", graph_.name, where_,
                                   where_.empty() ? "" : ": ",
                                   fmt::format(format, std::forward<Args>(args)...)));
  }

  bool in_range(ValueId id) const { return id.valid() && id.index() < graph_.values.size(); }

  void reads(ValueId id) const {
    check(in_range(id), "value id {} is out of range, there are {}", id.value,
          graph_.values.size());
    check(defined_[id.index()], "reads {} before it is defined", graph_.label(id));
  }

  void defines(ValueId id) {
    check(in_range(id), "value id {} is out of range, there are {}", id.value,
          graph_.values.size());
    check(!defined_[id.index()], "{} is defined twice", graph_.label(id));
    const Value& value = graph_.value(id);
    check(value.logical.empty() || static_cast<int>(value.logical.size()) == value.type.rank(),
          "{} has {} logical axes but rank {}", graph_.label(id), value.logical.size(),
          value.type.rank());
    for (const Dim& dim : value.type.dims) {
      check(dim.size >= 0, "{} has a negative dimension: {}", graph_.label(id),
            to_string(value.type));
      if (dim.is_static()) continue;
      reads(dim.size_value);
      check(graph_.type(dim.size_value) == TensorType(DType::kI64, {}),
            "the bounded dimension of {} has a size value of type {}, not i64[]", graph_.label(id),
            to_string(graph_.type(dim.size_value)));
    }
    defined_[id.index()] = true;
  }

  void names() const {
    std::set<std::string> seen;
    for (const Value& value : graph_.values) {
      check(value.name.empty() || seen.insert(value.name).second, "two values are named '{}'",
            value.name);
    }
  }

  void state(StateId id) const {
    check(id.valid(), "the state id is invalid");
    if (!module_) return;
    check(id.index() < module_->states.size(), "state id {} is out of range, there are {}",
          id.value, module_->states.size());
  }
  std::string state_name(StateId id) const {
    return module_ ? module_->state(id).name : fmt::format("#{}", id.value);
  }

  void input(const Input& input) {
    where_ = fmt::format("input {}", graph_.label(input.value));
    defines(input.value);
    check(!graph_.value(input.value).producer.valid(), "an input has a producer");
    if (!input.state.valid()) return;
    state(input.state);
    const TensorType& type = graph_.type(input.value);
    check(!module_ || module_->state(input.state).type == type, "type {}, but state '{}' has {}",
          to_string(type), state_name(input.state),
          module_ ? to_string(module_->state(input.state).type) : "");
    check(state_inputs_.insert(input.state).second, "state '{}' is an input twice",
          state_name(input.state));
  }

  void op(OpId id) {
    const Op& op = graph_.op(id);
    where_ = fmt::format(
        "op {} ({}{})", id.value, op_name(op.kind),
        op.results.empty() || !in_range(op.results[0]) ? "" : " -> " + graph_.label(op.results[0]));
    for (const ValueId operand : op.operands) reads(operand);
    for (size_t i = 0; i < op.results.size(); ++i) {
      defines(op.results[i]);
      const Value& value = graph_.value(op.results[i]);
      check(value.producer == id && value.result == static_cast<int>(i),
            "result {} says that op {}, result {} makes it", graph_.label(op.results[i]),
            value.producer.value, value.result);
    }
    if (op.accumulates) {
      check(!op.operands.empty() && op.results.size() == 1,
            "accumulates, but has {} operands and {} results", op.operands.size(),
            op.results.size());
      const TensorType& accumulator = graph_.type(op.operands.back());
      check(accumulator == graph_.type(op.results[0]), "accumulates {} into {}",
            to_string(graph_.type(op.results[0])), to_string(accumulator));
    }
    if (!module_) return;
    check(!op.layer.valid() || op.layer.index() < module_->layers.size(),
          "layer id {} is out of range, there are {}", op.layer.value, module_->layers.size());
    for (const GraphId called : op.called) {
      check(called.valid() && called.index() < module_->graphs.size(),
            "calls graph id {}, there are {}", called.value, module_->graphs.size());
    }
  }

  void updates() {
    std::set<StateId> updated;
    for (const StateUpdate& update : graph_.updates) {
      where_ = "updates";
      state(update.state);
      where_ = fmt::format("update of state '{}'", state_name(update.state));
      reads(update.value);
      check(updated.insert(update.state).second, "updated twice");
      const TensorType& type = graph_.type(update.value);
      if (module_) {
        const TensorType& wanted = module_->state(update.state).type;
        check(type == wanted, "{} has type {}, but the state has {}", graph_.label(update.value),
              to_string(type), to_string(wanted));
        continue;
      }
      for (const Input& input : graph_.inputs) {
        check(input.state != update.state || type == graph_.type(input.value),
              "{} has type {}, but the state's input has {}", graph_.label(update.value),
              to_string(type), to_string(graph_.type(input.value)));
      }
    }
  }

  const Graph& graph_;
  const Module* module_;
  std::vector<bool> defined_;
  std::set<StateId> state_inputs_;
  std::string where_;
};

}  // namespace

void verify(const Graph& graph, const Module* module) { Verifier(graph, module).run(); }

}  // namespace mw::ir
