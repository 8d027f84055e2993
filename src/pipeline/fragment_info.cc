#include "pipeline/fragment_info.h"

#include <algorithm>

#include "base/error.h"
#include "ops/op_def.h"
#include "pipeline/sharing.h"
#include "pipeline/streams.h"

namespace mw::pipeline {
namespace {

void check_ports(const Fragment& fragment, Diagnostics& out) {
  const ir::Graph& graph = fragment.graph;
  const auto label = [&](ValueId v) {
    return v.valid() && v.index() < graph.values.size() ? graph.label(v) : "?";
  };
  if (fragment.inputs.size() != graph.inputs.size()) {
    out.add("has {} input ports, the graph has {} inputs", fragment.inputs.size(),
            graph.inputs.size());
  } else {
    for (size_t i = 0; i < fragment.inputs.size(); ++i) {
      const Port& port = fragment.inputs[i];
      if (port.value != graph.inputs[i].value) {
        out.add("input port {} ({}) is {}, the graph's input is {}", i, port.name,
                label(port.value), label(graph.inputs[i].value));
      }
      if ((port.kind == PortKind::kState) != graph.inputs[i].state.valid()) {
        out.add("input port {} ({}) is {}a state, the graph says otherwise", i, port.name,
                port.kind == PortKind::kState ? "" : "not ");
      }
    }
  }
  ValueIds wanted = graph.outputs;
  for (const ir::StateUpdate& update : graph.updates) wanted.push_back(update.value);
  if (fragment.outputs.size() != wanted.size()) {
    out.add("has {} output ports, the graph has {} outputs and updates", fragment.outputs.size(),
            wanted.size());
    return;
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Port& port = fragment.outputs[i];
    if (port.value != wanted[i]) {
      out.add("output port {} ({}) is {}, the graph's is {}", i, port.name, label(port.value),
              label(wanted[i]));
    }
    if ((port.kind == PortKind::kState) != (i >= graph.outputs.size())) {
      out.add("output port {} ({}): the outputs come first, then the states that are updated", i,
              port.name);
    }
  }
}

void check_plan(const Fragment& fragment, Diagnostics& out) {
  const size_t values = fragment.graph.values.size();
  const auto size = [&](const char* what, size_t n) {
    if (n != values) out.add("has {} {} for {} values", n, what, values);
    return n == values;
  };
  bool fits = size("shardings", fragment.shardings.size());
  fits = size("global types", fragment.global_types.size()) && fits;
  fits = size("workspace offsets", fragment.workspace_offset.size()) && fits;
  fits = size("aliases", fragment.alias_of.size()) && fits;
  fits = size("alias offsets", fragment.alias_offset.size()) && fits;
  if (!fits) return;
  std::vector<bool> has_buffer(values, false);
  for (const Port& port : fragment.inputs) has_buffer[port.value.index()] = true;
  for (const Port& port : fragment.outputs) {
    if (port.kind != PortKind::kState && !fragment.alias_of[port.value.index()].valid()) {
      has_buffer[port.value.index()] = true;
    }
  }
  for (size_t v = 0; v < values; ++v) {
    const std::string label = fragment.graph.label(ValueId(static_cast<int64_t>(v)));
    const int64_t bytes = fragment.graph.values[v].type.bytes().value;
    const ValueId root = fragment.alias_of[v];
    if (root.valid()) {
      if (root.index() >= values || fragment.alias_of[root.index()].valid()) {
        out.add("{} shares the memory of value {}, which has none of its own", label, root.value);
      } else if (fragment.alias_offset[v] < 0 ||
                 fragment.alias_offset[v] + bytes > fragment.graph.type(root).bytes().value) {
        out.add("{} lies at byte {} of {}, beyond its {} bytes", label, fragment.alias_offset[v],
                fragment.graph.label(root), fragment.graph.type(root).bytes().value);
      }
    } else if (!has_buffer[v] &&
               (fragment.workspace_offset[v] < 0 ||
                fragment.workspace_offset[v] + bytes > fragment.workspace.value)) {
      out.add("{} lies at byte {} of the workspace of {} bytes", label,
              fragment.workspace_offset[v], fragment.workspace.value);
    }
  }
}

}  // namespace

std::vector<std::string> fragment_structure_findings(const Fragment& fragment) {
  Diagnostics out;
  try {
    ir::verify(fragment.graph);
  } catch (const CheckFailure& failure) {
    out.add("{}", failure.what());
    return out.findings();
  }
  check_ports(fragment, out);
  for (const std::string& finding : launch_findings(fragment)) out.add("{}", finding);
  if (out.empty()) check_plan(fragment, out);
  return out.findings();
}

namespace {

class InfoMaker {
 public:
  explicit InfoMaker(const Fragment& fragment) : fragment_(fragment), graph_(fragment.graph) {}

  FragmentInfo make() {
    find_ports();
    find_places();
    for (size_t o = 0; o < graph_.ops.size(); ++o) add_op(static_cast<int32_t>(o));
    return std::move(info_);
  }

 private:
  void find_ports() {
    info_.ports = fragment_.inputs;
    info_.inputs = info_.ports.size();
    for (const Port& port : fragment_.outputs) {
      if (port.kind != PortKind::kState) info_.ports.push_back(port);
    }
    info_.uses.resize(info_.ports.size());
    info_.update_of.assign(info_.ports.size(), -1);
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      if (!graph_.inputs[i].state.valid()) continue;
      for (size_t u = 0; u < graph_.updates.size(); ++u) {
        if (graph_.updates[u].state == graph_.inputs[i].state)
          info_.update_of[i] = static_cast<int32_t>(u);
      }
    }
  }

  void find_places() {
    const size_t values = graph_.values.size();
    std::vector<int32_t> port_of(values, -1);
    // An output that is an input as well keeps the input's buffer; the memory check tells.
    for (size_t p = info_.ports.size(); p-- > 0;)
      port_of[info_.ports[p].value.index()] = static_cast<int32_t>(p);
    info_.places.resize(values);
    for (size_t v = 0; v < values; ++v) {
      const ValueId alias = fragment_.alias_of[v];
      const size_t root = alias.valid() ? alias.index() : v;
      ValuePlace& place = info_.places[v];
      place.port = port_of[root];
      place.offset = alias.valid() ? fragment_.alias_offset[v] : 0;
      if (place.port < 0) place.offset += fragment_.workspace_offset[root];
    }
  }

  void touch(ValueId v) {
    const int32_t port = info_.places[v.index()].port;
    if (port >= 0) {
      info_.uses[static_cast<size_t>(port)].touched = true;
      return;
    }
    const ValueId alias = fragment_.alias_of[v.index()];
    const size_t root = alias.valid() ? alias.index() : v.index();
    const int64_t end = fragment_.workspace_offset[root] + graph_.values[root].type.bytes().value;
    info_.workspace_end = std::max(info_.workspace_end, end);
  }

  void add_op(int32_t o) {
    const ir::Op& op = graph_.ops[static_cast<size_t>(o)];
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const ValueId v = op.operands[i];
      touch(v);
      const int32_t port = info_.places[v.index()].port;
      if (port >= 0 && (reads_bytes(op, static_cast<int>(i)) || copies(op))) {
        info_.uses[static_cast<size_t>(port)].add_read(o);
      }
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      const ValueId v = op.results[i];
      touch(v);
      const int32_t port = info_.places[v.index()].port;
      if (port >= 0 && writes(op, i)) info_.uses[static_cast<size_t>(port)].add_write(o);
    }
    if (ir::is_collective(op.kind)) add_collective(o, op);
  }

  // A view that lies elsewhere than its operand is a copy.
  bool copies(const ir::Op& op) const {
    if (op.results.empty()) return false;
    const Sharing sharing = sharing_of(graph_, op, 0);
    if (sharing.kind != Sharing::Kind::kView) return false;
    const ValuePlace &from = info_.places[op.operands[0].index()],
                     &to = info_.places[op.results[0].index()];
    return from.port != to.port || from.offset + sharing.offset != to.offset;
  }
  bool writes(const ir::Op& op, size_t result) const {
    switch (sharing_of(graph_, op, static_cast<int>(result)).kind) {
      case Sharing::Kind::kView: return copies(op);
      case Sharing::Kind::kAssembly: return false;
      case Sharing::Kind::kNone:
      case Sharing::Kind::kOverwrite: return true;
    }
    return true;
  }

  void add_collective(int32_t o, const ir::Op& op) {
    const ir::CollectiveAttrs& attrs = op.as<ir::CollectiveAttrs>();
    CollectiveInfo info{.op = o,
                        .kind = op.kind,
                        .group = &attrs.group,
                        .signature = std::string(op_name(op.kind)),
                        .whole = {}};
    if (attrs.op != ir::Reduction::kSum)
      info.signature += attrs.op == ir::Reduction::kMax ? " max" : " min";
    for (const ir::Axes* axes : {&attrs.from, &attrs.to}) {
      for (const Name axis : *axes) info.signature += " " + axis.str();
      if (!axes->empty() && axes == &attrs.from) info.signature += " to";
    }
    const bool of_results = op.kind == ir::OpKind::kAllGather;
    for (const ValueId v : of_results ? op.results : op.operands) {
      const ir::TensorType& type = graph_.type(v);
      info.whole += type.bytes();
      info.signature += " " + ir::to_string(type);
    }
    info_.collectives.push_back(std::move(info));
  }

  const Fragment& fragment_;
  const ir::Graph& graph_;
  FragmentInfo info_;
};

}  // namespace

FragmentInfo make_fragment_info(const Fragment& fragment) { return InfoMaker(fragment).make(); }

}  // namespace mw::pipeline
