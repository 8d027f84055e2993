#include "ir/graph.h"

#include <utility>

#include <fmt/core.h>

#include "base/error.h"

namespace mw::ir {

std::string Graph::label(ValueId id) const {
  const bool named = id.valid() && id.index() < values.size() && !values[id.index()].name.empty();
  return named ? values[id.index()].name : fmt::format("%{}", id.value);
}

void Graph::reserve(size_t some_values, size_t some_ops) {
  values.reserve(some_values);
  ops.reserve(some_ops);
}

ValueId Graph::add_value(TensorType type, std::string name) {
  values.push_back(Value{std::move(type), std::move(name), OpId(), 0, {}});
  return ValueId(static_cast<int64_t>(values.size()) - 1);
}

ValueId Graph::add_input(TensorType type, std::string name, StateId state) {
  const ValueId value = add_value(std::move(type), std::move(name));
  inputs.push_back({value, state});
  return value;
}

OpId Graph::add_op(Op op, std::vector<TensorType> result_types) {
  const OpId id(static_cast<int64_t>(ops.size()));
  op.results.clear();
  for (size_t i = 0; i < result_types.size(); ++i) {
    const ValueId result = add_value(std::move(result_types[i]));
    values.back().producer = id;
    values.back().result = static_cast<int>(i);
    op.results.push_back(result);
  }
  ops.push_back(std::move(op));
  return id;
}

OpId Graph::add_copy(Op op, const Graph& from) {
  const OpId id(static_cast<int64_t>(ops.size()));
  for (size_t i = 0; i < op.results.size(); ++i) {
    const Value& like = from.value(op.results[i]);
    op.results[i] = add_value(like.type, like.name);
    values.back().producer = id;
    values.back().result = static_cast<int>(i);
  }
  ops.push_back(std::move(op));
  return id;
}

std::vector<OpIds> Graph::users() const {
  std::vector<OpIds> users(values.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    for (const ValueId operand : ops[i].operands) {
      OpIds& readers = users[operand.index()];
      if (readers.empty() || readers.back() != id) readers.push_back(id);
    }
  }
  return users;
}

std::vector<int32_t> Graph::read_counts() const {
  std::vector<int32_t> counts(values.size(), 0);
  for (const Op& op : ops) {
    for (const ValueId operand : op.operands) ++counts[operand.index()];
  }
  for (const ValueId output : outputs) ++counts[output.index()];
  return counts;
}

StateId Module::add_state(State state) {
  const StateId id(static_cast<int64_t>(states.size()));
  const bool is_new = state_ids_.emplace(state.name, id).second;
  MW_CHECK(is_new, "state '{}' exists already", state.name);
  states.push_back(std::move(state));
  return id;
}

void Module::rename_state(StateId id, const std::string& name) {
  const bool is_new = state_ids_.emplace(name, id).second;
  MW_CHECK(is_new, "state '{}' exists already", name);
  state_ids_.erase(states[id.index()].name);
  states[id.index()].name = name;
}

std::optional<StateId> Module::find_state(const std::string& name) const {
  const auto it = state_ids_.find(name);
  return it == state_ids_.end() ? std::nullopt : std::optional<StateId>(it->second);
}

Graph* Module::find_graph(const std::string& name) {
  return const_cast<Graph*>(std::as_const(*this).find_graph(name));
}

const Graph* Module::find_graph(const std::string& name) const {
  for (const Graph& graph : graphs) {
    if (graph.name == name) return &graph;
  }
  return nullptr;
}

std::vector<StateId> Module::parameters() const {
  std::vector<StateId> parameters;
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].kind == StateKind::kWeight) parameters.emplace_back(static_cast<int64_t>(i));
  }
  return parameters;
}

ValueIds drop_dead(Graph& graph) {
  std::vector<bool> live(graph.values.size(), false);
  std::vector<bool> keep(graph.ops.size(), false);
  const auto read = [&](ValueId value) {
    live[value.index()] = true;
    for (const Dim& dim : graph.type(value).dims) {
      if (!dim.is_static()) live[dim.size_value.index()] = true;
    }
  };
  for (const Input& input : graph.inputs) read(input.value);
  for (const ValueId output : graph.outputs) read(output);
  for (const StateUpdate& update : graph.updates) read(update.value);
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    bool wanted = op.accumulates || op.kept || op.results.empty();
    for (const ValueId result : op.results) wanted = wanted || live[result.index()];
    if (!wanted) continue;
    keep[i] = true;
    for (const ValueId operand : op.operands) read(operand);
    for (const ValueId result : op.results) read(result);
  }

  ValueIds new_values(graph.values.size());
  std::vector<OpId> new_ops(graph.ops.size());
  int64_t next_value = 0, next_op = 0;
  for (size_t i = 0; i < keep.size(); ++i) {
    if (keep[i]) new_ops[i] = OpId(next_op++);
  }
  for (size_t i = 0; i < live.size(); ++i) {
    if (live[i]) new_values[i] = ValueId(next_value++);
  }
  if (new_values.size() == static_cast<size_t>(next_value) &&
      new_ops.size() == static_cast<size_t>(next_op))
    return new_values;
  for (size_t i = 0; i < live.size(); ++i) {
    if (!live[i]) continue;
    Value& value = graph.values[new_values[i].index()];
    if (&value != &graph.values[i]) value = std::move(graph.values[i]);
    if (value.producer.valid()) value.producer = new_ops[value.producer.index()];
    for (Dim& dim : value.type.dims) {
      if (!dim.is_static()) dim.size_value = new_values[dim.size_value.index()];
    }
  }
  const auto renumber = [&](ValueId& value) { value = new_values[value.index()]; };
  for (size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) continue;
    Op& op = graph.ops[new_ops[i].index()];
    if (&op != &graph.ops[i]) op = std::move(graph.ops[i]);
    for (ValueId& operand : op.operands) renumber(operand);
    for (ValueId& result : op.results) renumber(result);
  }
  graph.values.resize(static_cast<size_t>(next_value));
  graph.ops.resize(static_cast<size_t>(next_op));
  for (Input& input : graph.inputs) renumber(input.value);
  for (ValueId& output : graph.outputs) renumber(output);
  for (StateUpdate& update : graph.updates) renumber(update.value);
  return new_values;
}

}  // namespace mw::ir
