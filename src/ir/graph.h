// Graph: one function in SSA form. Ops are in topological order; values and ops have dense ids.
// Module: the graphs of a training program (init, microbatch, step) and the named state they share.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/name.h"
#include "ir/attributes.h"
#include "ir/op_kind.h"
#include "ir/types.h"

namespace mw::ir {

// What an op is for, after autodiff: forward, input gradient, weight gradient
// (torch.distributed.pipelining's letters), or part of the update.
enum class Work : uint8_t { kForward, kInputGrad, kWeightGrad, kUpdate };

// Names of what a model calls its dimensions ("batch", "seq", "embed", "heads", "ffn", "vocab", …),
// one a dimension, "" where it has no name. A plan's strategy maps them to mesh axes; a value that
// has them is held in exactly that sharding.
using LogicalAxes = absl::InlinedVector<Name, 4>;

using OpIds = absl::InlinedVector<OpId, 4>;

struct Value {
  TensorType type;
  std::string name;  // unique in the graph, or empty (printed as %id)
  OpId producer;     // invalid: an input of the graph
  int result = 0;    // which result of the producer
  LogicalAxes logical;
};

struct Op {
  OpKind kind = OpKind::kConstant;
  Attributes attrs;
  ValueIds operands;
  ValueIds results;
  Work work = Work::kForward;
  LayerId layer;       // invalid: cloned into every stage that uses it
  RegionId recompute;  // valid: a recomputed op of this region
  // The last operand is an accumulator that the result is added to in place.
  bool accumulates = false;
  bool kept = false;            // it runs though nothing may read its results
  std::vector<GraphId> called;  // graphs that it calls (while, conditional, reduce)

  template <typename Attrs>
  const Attrs& as() const {
    return std::get<Attrs>(attrs);
  }
};

// An input that is a state, or that the caller supplies anew for every call.
struct Input {
  ValueId value;
  StateId state;  // invalid: data (tokens, positions, a scalar)
};
// The state takes the value at the end of the graph; in place, since the value is made by ops that
// alias it.
struct StateUpdate {
  StateId state;
  ValueId value;
};

class Graph {
 public:
  std::string name;
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<Input> inputs;
  ValueIds outputs;
  std::vector<StateUpdate> updates;

  const Value& value(ValueId id) const { return values[id.index()]; }
  Value& value(ValueId id) { return values[id.index()]; }
  const Op& op(OpId id) const { return ops[id.index()]; }
  Op& op(OpId id) { return ops[id.index()]; }
  const TensorType& type(ValueId id) const { return values[id.index()].type; }
  // "%12" or the value's name.
  std::string label(ValueId id) const;

  // Room for so many in all, for who knows about how many will come.
  void reserve(size_t some_values, size_t some_ops);
  ValueId add_value(TensorType type, std::string name = "");
  ValueId add_input(TensorType type, std::string name, StateId state = StateId());
  // Appends the op and makes its result values.
  OpId add_op(Op op, std::vector<TensorType> result_types);
  // An op of the graph `from` whose operands are of this one already; its results have their types
  // and names.
  OpId add_copy(Op op, const Graph& from);
  // For every value the ops that read it, in order.
  std::vector<OpIds> users() const;
  // How often each is read, an op's operands and the graph's outputs each counting once more.
  std::vector<int32_t> read_counts() const;
};

// clang-format off
enum class StateKind : uint8_t { kWeight, kGradient, kMoment, kMaster, kMetric };
// clang-format on

// Initial value of a parameter; drawn by global index from the RNG site of the parameter's name.
struct Init {
  enum class Kind : uint8_t { kZeros, kOnes, kNormal, kUniform } kind = Kind::kZeros;
  double scale = 0;  // normal: standard deviation; uniform: half width
  friend bool operator==(const Init&, const Init&) = default;
};

// What outlives a microbatch.
struct State {
  std::string name;
  TensorType type;  // global
  StateKind kind = StateKind::kWeight;
  LogicalAxes logical;
  Init init;
  LayerId layer;      // the layer that owns it: of its first use
  bool decay = true;  // weight decay applies
  StateId parameter;  // gradient, moment: of which weight
  LayerId use;        // gradient: contributions of the uses in this layer
};

struct Layer {
  std::string name;   // "embed", "h.0", …, "head"
  bool block = true;  // counts when layers are dealt out to stages; others go with their neighbour
};

class Module {
 public:
  std::string name;
  std::vector<Layer> layers;
  std::vector<State> states;  // append by add_state, rename by rename_state
  std::vector<Graph> graphs;

  const State& state(StateId id) const { return states[id.index()]; }
  // REQUIRES: no state has the name.
  StateId add_state(State state);
  void rename_state(StateId id, const std::string& name);
  std::optional<StateId> find_state(const std::string& name) const;
  Graph& graph(GraphId id) { return graphs[id.index()]; }
  Graph* find_graph(const std::string& name);
  const Graph* find_graph(const std::string& name) const;
  std::vector<StateId> parameters() const;  // the weights, in order

 private:
  std::unordered_map<std::string, StateId> state_ids_;  // [name]
};

// Structure: ids in range, every operand defined before use, one producer a value, names unique,
// state types equal their inputs', every update comes from a value of the state's type. Throws
// CheckFailure that names the graph and the op. Shapes are checked by ops::verify_types.
void verify(const Graph& graph, const Module* module = nullptr);

// Text form, described in text.cc; parse_graph(to_text(g)) prints the same text, given the same
// module, and parse_module(to_text(m)) too. Throw Error "graph text, line 3: expected …, found …".
std::string to_text(const Graph& graph, const Module* module = nullptr);
std::string to_text(const Module& module);
Graph parse_graph(const std::string& text, const Module* module = nullptr);
Module parse_module(const std::string& text);

// Drops ops whose results nothing reads (outputs, updates and accumulating ops are kept),
// renumbering. Returns old value id -> new value id (invalid: dropped).
ValueIds drop_dead(Graph& graph);

}  // namespace mw::ir
