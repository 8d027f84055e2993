// Text form, one op a line:
//
//   graph microbatch {
//     in %tokens : i32[8,256] <batch, attn_seq>
//     in %tbl.weight : f32[256,320] <vocab, embed> state tbl.weight
//     %h, %5 = rms_norm{epsilon=1e-05}(%3, %w) : f32[8,256,320] <batch, seq, embed>, f32[8,256]
//     @h.0 F out %loss_sum, %logits update tbl.weight.grad = %12
//   }
//
// A value without a name is its number. Layers, states and called graphs are names where the module
// is known and numbers where it is not. After the layer tag stand the work letter and, where they
// hold, "recompute N", "accumulates" and "calls [a, b]".
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"
#include "ir/cursor.h"
#include "ir/graph.h"

namespace mw::ir {
namespace {

constexpr std::string_view kWorkLetters = "FIWU";
constexpr std::array<std::string_view, 7> kStateKinds = {
    "weight", "gradient", "moment", "master", "rng", "data_position", "metric"};
constexpr std::array<std::string_view, 4> kInits = {"zeros", "ones", "normal", "uniform"};

std::string value_ref(const Graph& graph, ValueId id) {
  const std::string& name = graph.value(id).name;
  return name.empty() ? fmt::format("%{}", id.value) : "%" + written_name(name);
}

template <typename IdType, typename Items>
std::string item_ref(IdType id, const Items* items) {
  return items && id.index() < items->size() ? written_name((*items)[id.index()].name)
                                             : fmt::format("{}", id.value);
}

std::string logical_text(const LogicalAxes& logical) {
  if (logical.empty()) return "";
  std::vector<std::string> names;
  for (const std::string& name : logical) names.push_back(name.empty() ? "_" : written_name(name));
  return fmt::format(" <{}>", join(names, ", "));
}

std::string type_text(const Graph& graph, const TensorType& type) {
  std::string text = fmt::format("{}[", dtype_name(type.dtype));
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const Dim& dim = type.dims[i];
    if (i > 0) text += ',';
    text += dim.is_static() ? fmt::format("{}", dim.size)
                            : fmt::format("<={}:{}", dim.size, value_ref(graph, dim.size_value));
  }
  return text + "]";
}

std::string typed(const Graph& graph, ValueId id) {
  return type_text(graph, graph.type(id)) + logical_text(graph.value(id).logical);
}

class Writer {
 public:
  Writer(const Graph& graph, const Module* module) : graph_(graph), module_(module) {}

  std::string run() const {
    std::string text = fmt::format("graph {} {{\n", written_name(graph_.name));
    for (const Input& input : graph_.inputs) {
      text += fmt::format("  in {} : {}{}\n", value_ref(graph_, input.value),
                          typed(graph_, input.value),
                          input.state.valid() ? " state " + state(input.state) : "");
    }
    for (const Op& op : graph_.ops) text += "  " + op_line(op) + "\n";
    if (!graph_.outputs.empty()) text += fmt::format("  out {}\n", values(graph_.outputs));
    for (const StateUpdate& update : graph_.updates) {
      text +=
          fmt::format("  update {} = {}\n", state(update.state), value_ref(graph_, update.value));
    }
    return text + "}\n";
  }

 private:
  std::string state(StateId id) const { return item_ref(id, module_ ? &module_->states : nullptr); }

  std::string values(const ValueIds& ids) const {
    std::vector<std::string> refs;
    for (const ValueId id : ids) refs.push_back(value_ref(graph_, id));
    return join(refs, ", ");
  }

  std::string op_line(const Op& op) const {
    std::string text = op.results.empty() ? "" : values(op.results) + " = ";
    text += op_name(op.kind);
    if (op.attrs.index() != usual_attributes(op.kind).index())
      text += fmt::format(":{}", family(op.attrs));
    text += fmt::format("{}({})", to_string(op.attrs), values(op.operands));
    for (size_t i = 0; i < op.results.size(); ++i) {
      text += fmt::format("{}{}", i == 0 ? " : " : ", ", typed(graph_, op.results[i]));
    }
    if (op.layer.valid()) text += " @" + item_ref(op.layer, module_ ? &module_->layers : nullptr);
    text += fmt::format(" {}", kWorkLetters[static_cast<size_t>(op.work)]);
    if (op.recompute.valid()) text += fmt::format(" recompute {}", op.recompute.value);
    if (op.accumulates) text += " accumulates";
    if (!op.called.empty()) {
      std::vector<std::string> called;
      for (const GraphId id : op.called)
        called.push_back(item_ref(id, module_ ? &module_->graphs : nullptr));
      text += fmt::format(" calls [{}]", join(called, ", "));
    }
    return text;
  }

  const Graph& graph_;
  const Module* module_;
};

// Reads a name or a number: an id, or an item of `items` by name.
template <typename IdType, typename Items>
IdType read_item(Cursor& cursor, const Items* items, std::string_view what) {
  const size_t start = cursor.mark();
  if (cursor.number_next()) {
    const int64_t number = cursor.integer();
    if (number < 0 || (items && number >= static_cast<int64_t>(items->size()))) {
      cursor.fail_at(start, fmt::format("a {} that exists", what));
    }
    return IdType(number);
  }
  const std::string name = cursor.name();
  if (!items) cursor.fail_at(start, fmt::format("a {} number, for there is no module", what));
  std::vector<std::string> names;
  for (size_t i = 0; i < items->size(); ++i) {
    if ((*items)[i].name == name) return IdType(static_cast<int64_t>(i));
    names.push_back((*items)[i].name);
  }
  cursor.fail_at(start, fmt::format("a {} that exists", what), did_you_mean(name, names));
}

DType read_dtype(Cursor& cursor) {
  const size_t start = cursor.mark();
  const auto dtype = parse_dtype(cursor.word());
  if (!dtype) cursor.fail_at(start, "a dtype");
  return *dtype;
}

LogicalAxes read_logical(Cursor& cursor) {
  LogicalAxes logical;
  if (!cursor.accept("<")) return logical;
  do {
    logical.push_back(cursor.accept("_") ? "" : cursor.name());
  } while (cursor.accept(","));
  cursor.expect(">");
  return logical;
}

// Values are known by what is written: "5" or "loss". Numbered values get their numbers; the named
// ones get those that are left over, in order.
class GraphReader {
 public:
  GraphReader(Cursor& cursor, const Module* module) : cursor_(cursor), module_(module) {}

  Graph run() {
    cursor_.expect("graph");
    graph_.name = cursor_.name();
    cursor_.expect("{");
    while (!cursor_.accept("}")) statement();
    renumber();
    return std::move(graph_);
  }

 private:
  void statement() {
    if (cursor_.accept("in")) {
      input();
    } else if (cursor_.accept("out")) {
      do graph_.outputs.push_back(use());
      while (cursor_.accept(","));
    } else if (cursor_.accept("update")) {
      const StateId state =
          read_item<StateId>(cursor_, module_ ? &module_->states : nullptr, "state");
      cursor_.expect("=");
      graph_.updates.push_back({state, use()});
    } else {
      op();
    }
  }

  std::string reference() {
    cursor_.expect("%");
    return cursor_.number_next() ? fmt::format("{}", cursor_.integer()) : "\"" + cursor_.name();
  }
  ValueId use() {
    const size_t start = cursor_.mark();
    const auto known = known_.find(reference());
    if (known == known_.end()) cursor_.fail_at(start, "a value that is defined before");
    return known->second;
  }
  std::string new_reference() {
    const size_t start = cursor_.mark();
    const std::string name = reference();
    if (known_.count(name) > 0) cursor_.fail_at(start, "a value that is not defined before");
    return name;
  }
  void define(const std::string& name, ValueId id) {
    known_.emplace(name, id);
    number_.resize(graph_.values.size(), -1);
    if (name.front() == '"') {
      graph_.value(id).name = name.substr(1);
    } else {
      number_[id.index()] = *parse_int64(name);
    }
  }

  TensorType type() {
    TensorType type;
    type.dtype = read_dtype(cursor_);
    cursor_.expect("[");
    if (cursor_.accept("]")) return type;
    do {
      Dim dim;
      const bool bounded = cursor_.accept("<=");
      dim.size = cursor_.integer();
      if (bounded) {
        cursor_.expect(":");
        dim.size_value = use();
      }
      type.dims.push_back(dim);
    } while (cursor_.accept(","));
    cursor_.expect("]");
    return type;
  }

  void input() {
    const std::string name = new_reference();
    cursor_.expect(":");
    const ValueId id = graph_.add_input(type(), "");
    graph_.value(id).logical = read_logical(cursor_);
    define(name, id);
    if (cursor_.accept("state")) {
      graph_.inputs.back().state =
          read_item<StateId>(cursor_, module_ ? &module_->states : nullptr, "state");
    }
  }

  void op() {
    std::vector<std::string> results;
    if (cursor_.peek() == '%') {
      do results.push_back(new_reference());
      while (cursor_.accept(","));
      cursor_.expect("=");
    }
    Op op;
    const size_t start = cursor_.mark();
    const std::string name = cursor_.word();
    const auto kind = parse_op(name);
    if (!kind) {
      std::vector<std::string_view> names;
      for (int i = 0; i < kOpKinds; ++i) names.push_back(op_name(static_cast<OpKind>(i)));
      cursor_.fail_at(start, "an op", did_you_mean(name, names));
    }
    op.kind = *kind;
    op.attrs = usual_attributes(*kind);
    if (cursor_.accept(":")) {
      const size_t family_start = cursor_.mark();
      const auto attrs = parse_family(cursor_.word());
      if (!attrs) cursor_.fail_at(family_start, "a family of attributes");
      op.attrs = *attrs;
    }
    op.attrs = read_attributes(cursor_, op.attrs);
    cursor_.expect("(");
    if (!cursor_.accept(")")) {
      do op.operands.push_back(use());
      while (cursor_.accept(","));
      cursor_.expect(")");
    }
    std::vector<TensorType> types;
    std::vector<LogicalAxes> logicals;
    for (size_t i = 0; i < results.size(); ++i) {
      cursor_.expect(i == 0 ? ":" : ",");
      types.push_back(type());
      logicals.push_back(read_logical(cursor_));
    }
    tags(op);
    const OpId id = graph_.add_op(std::move(op), types);
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId value = graph_.op(id).results[i];
      graph_.value(value).logical = logicals[i];
      define(results[i], value);
    }
  }

  void tags(Op& op) {
    if (cursor_.accept("@"))
      op.layer = read_item<LayerId>(cursor_, module_ ? &module_->layers : nullptr, "layer");
    const size_t start = cursor_.mark();
    const std::string letter = cursor_.word();
    const size_t work = kWorkLetters.find(letter);
    if (letter.size() != 1 || work == std::string_view::npos)
      cursor_.fail_at(start, "F, I, W or U");
    op.work = static_cast<Work>(work);
    if (cursor_.accept("recompute")) op.recompute = RegionId(cursor_.integer());
    op.accumulates = cursor_.accept("accumulates");
    if (!cursor_.accept("calls")) return;
    cursor_.expect("[");
    // Graphs may call graphs that come later, so a name is looked up only in a module that is
    // whole.
    do op.called.push_back(read_item<GraphId>(cursor_, called_graphs(), "graph"));
    while (cursor_.accept(","));
    cursor_.expect("]");
  }
  const std::vector<Graph>* called_graphs() const { return module_ ? &module_->graphs : nullptr; }

  void renumber() {
    const size_t count = graph_.values.size();
    std::vector<bool> taken(count, false);
    for (const int64_t number : number_) {
      if (number < 0) continue;
      if (number >= static_cast<int64_t>(count)) {
        throw_error("graph text: graph {}: %{} is too large, there are {} values", graph_.name,
                    number, count);
      }
      taken[static_cast<size_t>(number)] = true;
    }
    ValueIds to(count);
    size_t next = 0;
    for (size_t i = 0; i < count; ++i) {
      if (number_[i] < 0) {
        while (taken[next]) ++next;
        taken[next] = true;
      }
      to[i] = ValueId(number_[i] < 0 ? static_cast<int64_t>(next) : number_[i]);
    }
    const auto map = [&](ValueId& id) { id = to[id.index()]; };
    std::vector<Value> values(count);
    for (size_t i = 0; i < count; ++i) {
      for (Dim& dim : graph_.values[i].type.dims) {
        if (!dim.is_static()) map(dim.size_value);
      }
      values[to[i].index()] = std::move(graph_.values[i]);
    }
    graph_.values = std::move(values);
    for (Input& input : graph_.inputs) map(input.value);
    for (Op& op : graph_.ops) {
      for (ValueId& id : op.operands) map(id);
      for (ValueId& id : op.results) map(id);
    }
    for (ValueId& id : graph_.outputs) map(id);
    for (StateUpdate& update : graph_.updates) map(update.value);
  }

  Cursor& cursor_;
  const Module* module_;
  Graph graph_;
  std::map<std::string, ValueId> known_;  // a name has a '"' before it
  std::vector<int64_t> number_;           // of every value, -1: it has a name
};

std::string state_line(const Module& module, const State& state) {
  std::string text =
      fmt::format("state {} : {}{} {}", written_name(state.name), to_string(state.type),
                  logical_text(state.logical), kStateKinds[static_cast<size_t>(state.kind)]);
  if (state.parameter.valid()) text += " of " + item_ref(state.parameter, &module.states);
  if (!(state.init == Init{})) {
    text += fmt::format(" init {}", kInits[static_cast<size_t>(state.init.kind)]);
    if (state.init.scale != 0) text += " " + format_float(state.init.scale);
  }
  if (state.layer.valid()) text += " @" + item_ref(state.layer, &module.layers);
  if (state.use.valid()) text += " use @" + item_ref(state.use, &module.layers);
  if (!state.decay) text += " no_decay";
  return text;
}

template <typename Names>
size_t read_choice(Cursor& cursor, const Names& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (cursor.accept(names[i])) return i;
  }
  cursor.fail(fmt::format("one of {}", join(names, ", ")));
}

State read_state(Cursor& cursor, const Module& module) {
  State state;
  state.name = cursor.name();
  cursor.expect(":");
  state.type.dtype = read_dtype(cursor);
  cursor.expect("[");
  if (!cursor.accept("]")) {
    do state.type.dims.emplace_back(cursor.integer());
    while (cursor.accept(","));
    cursor.expect("]");
  }
  state.logical = read_logical(cursor);
  state.kind = static_cast<StateKind>(read_choice(cursor, kStateKinds));
  if (cursor.accept("of")) state.parameter = read_item<StateId>(cursor, &module.states, "state");
  if (cursor.accept("init")) {
    state.init.kind = static_cast<Init::Kind>(read_choice(cursor, kInits));
    if (cursor.number_next()) state.init.scale = cursor.number();
  }
  if (cursor.accept("@")) state.layer = read_item<LayerId>(cursor, &module.layers, "layer");
  if (cursor.accept("use")) {
    cursor.expect("@");
    state.use = read_item<LayerId>(cursor, &module.layers, "layer");
  }
  state.decay = !cursor.accept("no_decay");
  return state;
}

// The names of the graphs, so that a graph may call a later one.
std::vector<Graph> graph_names(const std::string& text) {
  std::vector<Graph> graphs;
  for (const std::string_view line : split_lines(text)) {
    if (!starts_with(trim(line), "graph ")) continue;
    Cursor cursor(trim(line).substr(6), "module text");
    graphs.emplace_back().name = cursor.name();
  }
  return graphs;
}

}  // namespace

std::string to_text(const Graph& graph, const Module* module) {
  return Writer(graph, module).run();
}

std::string to_text(const Module& module) {
  std::string text = fmt::format("module {} {{\n", written_name(module.name));
  for (const Layer& layer : module.layers) {
    text += fmt::format("  layer {}{}\n", written_name(layer.name), layer.block ? "" : " no_block");
  }
  for (const State& state : module.states) text += "  " + state_line(module, state) + "\n";
  for (const Graph& graph : module.graphs) {
    const std::string graph_text = to_text(graph, &module);
    for (const std::string_view line : split_lines(graph_text)) text += fmt::format("  {}\n", line);
  }
  return text + "}\n";
}

Graph parse_graph(const std::string& text, const Module* module) {
  Cursor cursor(text, "graph text");
  Graph graph = GraphReader(cursor, module).run();
  if (!cursor.at_end()) cursor.fail("the end");
  return graph;
}

Module parse_module(const std::string& text) {
  Cursor cursor(text, "module text");
  Module module;
  cursor.expect("module");
  module.name = cursor.name();
  cursor.expect("{");
  while (cursor.accept("layer")) {
    std::string name = cursor.name();
    module.layers.push_back({std::move(name), !cursor.accept("no_block")});
  }
  while (cursor.accept("state")) {
    State state = read_state(cursor, module);
    if (module.find_state(state.name))
      throw_error("module text: state {} is there already", state.name);
    module.add_state(std::move(state));
  }
  module.graphs = graph_names(text);
  for (Graph& graph : module.graphs) graph = GraphReader(cursor, &module).run();
  cursor.expect("}");
  if (!cursor.at_end()) cursor.fail("the end");
  return module;
}

}  // namespace mw::ir
