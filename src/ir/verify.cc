#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

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
      if (!defined_[i])
        fail("value {} is neither an input nor a result", label(ValueId(static_cast<int64_t>(i))));
    }
    where_ = [] { return std::string("outputs"); };
    for (const ValueId output : graph_.outputs) reads(output);
    updates();
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string where = where_ ? where_() + ": " : "";
    throw CheckFailure(fmt::format("graph '{}': {}{}", graph_.name, where,
                                   fmt::format(format, std::forward<Args>(args)...)));
  }
  // Where the arguments are there anyhow: a text is made only to fail with.
  template <typename... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) fail(format, std::forward<Args>(args)...);
  }
  std::string label(ValueId id) const { return graph_.label(id); }

  bool in_range(ValueId id) const { return id.valid() && id.index() < graph_.values.size(); }

  void reads(ValueId id) const {
    check(in_range(id), "value id {} is out of range, there are {}", id.value,
          graph_.values.size());
    if (!defined_[id.index()]) fail("reads {} before it is defined", label(id));
  }

  void defines(ValueId id) {
    check(in_range(id), "value id {} is out of range, there are {}", id.value,
          graph_.values.size());
    if (defined_[id.index()]) fail("{} is defined twice", label(id));
    const Value& value = graph_.value(id);
    if (!value.logical.empty() && static_cast<int>(value.logical.size()) != value.type.rank()) {
      fail("{} has {} logical axes but rank {}", label(id), value.logical.size(),
           value.type.rank());
    }
    for (const Dim& dim : value.type.dims) {
      if (dim.size < 0) fail("{} has a negative dimension: {}", label(id), to_string(value.type));
      if (dim.is_static()) continue;
      reads(dim.size_value);
      const TensorType& size = graph_.type(dim.size_value);
      if (size != TensorType(DType::kI64, {})) {
        fail("the bounded dimension of {} has a size value of type {}, not i64[]", label(id),
             to_string(size));
      }
    }
    defined_[id.index()] = true;
  }

  void names() const {
    std::unordered_set<std::string_view> seen;
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
    where_ = [this, value = input.value] { return fmt::format("input {}", label(value)); };
    defines(input.value);
    check(!graph_.value(input.value).producer.valid(), "an input has a producer");
    if (!input.state.valid()) return;
    state(input.state);
    const TensorType& type = graph_.type(input.value);
    if (module_ && module_->state(input.state).type != type) {
      fail("type {}, but state '{}' has {}", to_string(type), state_name(input.state),
           to_string(module_->state(input.state).type));
    }
    if (!state_inputs_.insert(input.state).second)
      fail("state '{}' is an input twice", state_name(input.state));
  }

  void op(OpId id) {
    const Op& op = graph_.op(id);
    where_ = [this, id] {
      const Op& here = graph_.op(id);
      const bool makes = !here.results.empty() && in_range(here.results[0]);
      return fmt::format("op {} ({}{})", id.value, op_name(here.kind),
                         makes ? " -> " + label(here.results[0]) : "");
    };
    for (const ValueId operand : op.operands) reads(operand);
    for (size_t i = 0; i < op.results.size(); ++i) {
      defines(op.results[i]);
      const Value& value = graph_.value(op.results[i]);
      if (value.producer != id || value.result != static_cast<int>(i)) {
        fail("result {} says that op {}, result {} makes it", label(op.results[i]),
             value.producer.value, value.result);
      }
    }
    if (op.accumulates) {
      check(!op.operands.empty() && op.results.size() == 1,
            "accumulates, but has {} operands and {} results", op.operands.size(),
            op.results.size());
      const TensorType& accumulator = graph_.type(op.operands.back());
      const TensorType& sum = graph_.type(op.results[0]);
      if (accumulator != sum)
        fail("accumulates {} into {}", to_string(sum), to_string(accumulator));
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
      where_ = [] { return std::string("updates"); };
      state(update.state);
      where_ = [this, id = update.state] {
        return fmt::format("update of state '{}'", state_name(id));
      };
      reads(update.value);
      check(updated.insert(update.state).second, "updated twice");
      const TensorType& type = graph_.type(update.value);
      if (module_) {
        const TensorType& wanted = module_->state(update.state).type;
        if (type != wanted) {
          fail("{} has type {}, but the state has {}", label(update.value), to_string(type),
               to_string(wanted));
        }
        continue;
      }
      for (const Input& input : graph_.inputs) {
        if (input.state != update.state || type == graph_.type(input.value)) continue;
        fail("{} has type {}, but the state's input has {}", label(update.value), to_string(type),
             to_string(graph_.type(input.value)));
      }
    }
  }

  const Graph& graph_;
  const Module* module_;
  std::vector<bool> defined_;
  std::set<StateId> state_inputs_;
  std::function<std::string()> where_;  // what is looked at, for messages
};

}  // namespace

void verify(const Graph& graph, const Module* module) { Verifier(graph, module).run(); }

}  // namespace mw::ir
