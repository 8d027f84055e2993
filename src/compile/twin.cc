#include "compile/twin.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "base/rng.h"

namespace mw::compile {
namespace {

// Notes a -> b; false if a goes elsewhere or something else goes to b.
template <typename Key>
bool pair_up(std::map<Key, Key>& there, std::map<Key, Key>& back, const Key& a, const Key& b) {
  const auto [forth, is_new] = there.try_emplace(a, b);
  const auto [and_back, is_new_back] = back.try_emplace(b, a);
  return forth->second == b && and_back->second == a;
}

// The site of an op that draws random numbers; null: it draws none.
std::string* site_of(ir::Attributes& attrs) {
  if (auto* dropout = std::get_if<ir::DropoutAttrs>(&attrs)) return &dropout->site;
  if (auto* attention = std::get_if<ir::AttentionAttrs>(&attrs)) return &attention->site;
  if (auto* random = std::get_if<ir::RandomAttrs>(&attrs)) return &random->site;
  return nullptr;
}

class Matcher {
 public:
  Matcher(const StageGraph& first, const StageGraph& other, const ir::Module& module)
      : first_(first), other_(other), a_(first.graph), b_(other.graph), module_(module) {}

  std::optional<Twin> run() {
    const bool same = same_crossings(first_.receives, other_.receives) &&
                      same_crossings(first_.sends, other_.sends) &&
                      first_.results == other_.results && a_.outputs == b_.outputs &&
                      same_values() && same_inputs() && same_updates() && same_ops();
    if (!same) return std::nullopt;
    return std::move(twin_);
  }

 private:
  static bool same_crossings(const std::vector<Crossing>& a, const std::vector<Crossing>& b) {
    return std::equal(
        a.begin(), a.end(), b.begin(), b.end(), [](const Crossing& x, const Crossing& y) {
          return x.value == y.value && x.backward == y.backward && x.carried == y.carried;
        });
  }

  bool same_values() {
    if (a_.values.size() != b_.values.size()) return false;
    for (size_t v = 0; v < a_.values.size(); ++v) {
      const ir::Value &x = a_.values[v], &y = b_.values[v];
      if (!(x.type == y.type) || x.producer != y.producer || x.result != y.result ||
          x.logical != y.logical || x.name.empty() != y.name.empty())
        return false;
      if (!x.name.empty()) twin_.names[x.name] = y.name;
    }
    return true;
  }

  bool same_inputs() {
    if (a_.inputs.size() != b_.inputs.size()) return false;
    for (size_t i = 0; i < a_.inputs.size(); ++i) {
      const ir::Input &x = a_.inputs[i], &y = b_.inputs[i];
      if (x.value != y.value || x.state.valid() != y.state.valid()) return false;
      if (x.state.valid()) {
        if (!same_state(x.state, y.state)) return false;
      } else if (!is_received(x.value) && a_.value(x.value).name != b_.value(y.value).name) {
        return false;  // data of another name
      }
    }
    return true;
  }
  bool is_received(ValueId v) const {
    return std::any_of(first_.receives.begin(), first_.receives.end(),
                       [&](const Crossing& crossing) { return crossing.value == v; });
  }

  bool same_state(StateId x, StateId y) {
    const ir::State &a = module_.state(x), &b = module_.state(y);
    if (!(a.type == b.type) || a.kind != b.kind || a.logical != b.logical ||
        a.parameter.valid() != b.parameter.valid())
      return false;
    if (a.parameter.valid() && !pair_up(twin_.states, states_back_, a.parameter, b.parameter))
      return false;
    return pair_up(twin_.states, states_back_, x, y);
  }

  bool same_updates() {
    return std::equal(a_.updates.begin(), a_.updates.end(), b_.updates.begin(), b_.updates.end(),
                      [&](const ir::StateUpdate& x, const ir::StateUpdate& y) {
                        return x.value == y.value &&
                               pair_up(twin_.states, states_back_, x.state, y.state);
                      });
  }

  bool same_ops() {
    if (a_.ops.size() != b_.ops.size()) return false;
    for (size_t o = 0; o < a_.ops.size(); ++o) {
      if (!same_op(a_.ops[o], b_.ops[o])) return false;
    }
    return true;
  }
  bool same_op(const ir::Op& x, const ir::Op& y) {
    if (x.kind != y.kind || x.operands != y.operands || x.results != y.results ||
        x.work != y.work || x.accumulates != y.accumulates || !x.called.empty() ||
        !y.called.empty() || x.layer.valid() != y.layer.valid() ||
        x.recompute.valid() != y.recompute.valid())
      return false;
    if (x.layer.valid() && !pair_up(twin_.layers, layers_back_, x.layer, y.layer)) return false;
    if (x.recompute.valid() && !pair_up(twin_.regions, regions_back_, x.recompute, y.recompute))
      return false;
    ir::Attributes a = x.attrs, b = y.attrs;
    std::string *site = site_of(a), *other = site_of(b);
    if (site != nullptr && other != nullptr) {
      if (site->empty() != other->empty()) return false;
      if (!site->empty() && !pair_up(twin_.sites, sites_back_, *site, *other)) return false;
      *other = *site;
    }
    return a == b;
  }

  const StageGraph &first_, &other_;
  const ir::Graph &a_, &b_;
  const ir::Module& module_;
  Twin twin_;
  std::map<StateId, StateId> states_back_;
  std::map<LayerId, LayerId> layers_back_;
  std::map<RegionId, RegionId> regions_back_;
  std::map<std::string, std::string> sites_back_;
};

// Where a weight or accumulator lies in the groups.
struct Spot {
  size_t group = 0;
  int32_t use = -1;  // of an accumulator
  size_t member = 0;
};

std::map<StateId, Spot> spots_in(const std::vector<FlatGroup>& groups) {
  std::map<StateId, Spot> spots;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t m = 0; m < groups[g].members.size(); ++m)
      spots[groups[g].members[m].parameter] = {g, -1, m};
    for (size_t u = 0; u < groups[g].uses.size(); ++u) {
      const std::vector<StateId>& accumulators = groups[g].uses[u].accumulators;
      for (size_t m = 0; m < accumulators.size(); ++m)
        spots[accumulators[m]] = {g, static_cast<int32_t>(u), m};
    }
  }
  return spots;
}

// A graph of `first` as the twin's.
void rename(ir::Graph& graph, const Twin& twin) {
  for (ir::Value& value : graph.values) {
    const auto it = twin.names.find(value.name);
    if (it != twin.names.end()) value.name = it->second;
  }
  for (ir::Input& input : graph.inputs) {
    if (input.state.valid()) input.state = twin.states.at(input.state);
  }
  for (ir::StateUpdate& update : graph.updates) update.state = twin.states.at(update.state);
  for (ir::Op& op : graph.ops) {
    if (op.layer.valid()) op.layer = twin.layers.at(op.layer);
    if (op.recompute.valid()) op.recompute = twin.regions.at(op.recompute);
    std::string* site = site_of(op.attrs);
    if (site != nullptr && !site->empty()) *site = twin.sites.at(*site);
  }
}

bool same_layout(const FlatGroup& a, const FlatGroup& b) {
  return a.elements == b.elements && a.data_axes == b.data_axes &&
         a.model_partial == b.model_partial && a.dp_partial == b.dp_partial &&
         a.shared == b.shared && a.uses.size() == b.uses.size() &&
         std::equal(a.members.begin(), a.members.end(), b.members.begin(), b.members.end(),
                    [](const GroupMember& x, const GroupMember& y) {
                      return x.global == y.global && x.local == y.local &&
                             x.sharding == y.sharding && x.offset == y.offset;
                    });
}

}  // namespace

bool Twin::draws_alike() const {
  return std::all_of(sites.begin(), sites.end(),
                     [](const auto& site) { return site.first == site.second; });
}

uint64_t structure_hash(const StageGraph& stage) {
  uint64_t hash = mix_bits(stage.graph.values.size());
  const auto add = [&](uint64_t n) { hash = mix_bits(hash ^ n); };
  for (const ir::Input& input : stage.graph.inputs)
    add(static_cast<uint64_t>(input.value.value) * 2 + (input.state.valid() ? 1 : 0));
  for (const ir::Op& op : stage.graph.ops) {
    add(static_cast<uint64_t>(op.kind) * 8 + static_cast<uint64_t>(op.work));
    for (const ValueId v : op.operands) add(static_cast<uint64_t>(v.value));
    for (const ValueId v : op.results)
      add(static_cast<uint64_t>(stage.graph.type(v).bytes().value));
  }
  return hash;
}

std::optional<Twin> find_twin(const StageGraph& first, const StageGraph& other,
                              const ir::Module& module) {
  return Matcher(first, other, module).run();
}

bool match_groups(const std::vector<FlatGroup>& of_first, const std::vector<FlatGroup>& of_other,
                  const ir::Module& module, Twin& twin) {
  const std::map<StateId, Spot> spots = spots_in(of_first), other_spots = spots_in(of_other);
  std::vector<std::pair<StateId, StateId>> added;
  for (const auto& [a, b] : twin.states) {
    const auto here = spots.find(a), there = other_spots.find(b);
    if ((here == spots.end()) != (there == other_spots.end())) return false;
    if (here == spots.end()) continue;
    const Spot &x = here->second, &y = there->second;
    const FlatGroup &g = of_first[x.group], &h = of_other[y.group];
    if (x.use != y.use || x.member != y.member || !same_layout(g, h)) return false;
    if (!added.empty() && added.back() == std::pair(g.weight, h.weight)) continue;  // seen
    for (size_t u = 0; u < g.uses.size(); ++u) added.emplace_back(g.uses[u].state, h.uses[u].state);
    added.emplace_back(g.weight, h.weight);
  }
  for (const auto& [a, b] : added) {
    twin.states[a] = b;
    twin.names[module.state(a).name] = module.state(b).name;
  }
  return true;
}

StageFragment twin_fragment(const StageFragment& first, const Twin& twin, const ir::Module& module,
                            const std::string& name) {
  StageFragment made = first;
  for (size_t i = 0; i < made.inputs.size(); ++i) {
    PortSource& source = made.inputs[i];
    if (source.kind == PortSource::Kind::kState) {
      source.state = twin.states.at(source.state);
      made.names[i] = module.state(source.state).name;
    }
  }
  for (std::string& name : made.names) {
    const auto it = twin.names.find(name);
    if (it != twin.names.end()) name = it->second;
  }
  if (twin.draws_alike()) return made;
  auto own = std::make_shared<pipeline::Fragment>(*first.fragment);
  own->name = own->graph.name = fmt::format("{} {}", pipeline::to_string(own->kind), name);
  rename(own->graph, twin);
  for (size_t i = 0; i < own->inputs.size(); ++i) own->inputs[i].name = made.names[i];
  for (size_t i = 0; i < made.outputs.size(); ++i) own->outputs[i].name = made.output_name(i);
  for (size_t u = 0; u < own->graph.updates.size(); ++u) {
    own->outputs[made.outputs.size() + u].name = module.state(own->graph.updates[u].state).name;
  }
  made.fragment = std::move(own);
  return made;
}

LocalGraph twin_graph(const LocalGraph& first, const Twin& twin) {
  LocalGraph made = first;
  rename(made.graph, twin);
  return made;
}

namespace {

// A value's name as the twin has it; null: as it is.
const std::string& name_of(const std::string& name, const Twin* twin) {
  if (twin == nullptr) return name;
  const auto it = twin->names.find(name);
  return it == twin->names.end() ? name : it->second;
}

// Values of the graph as the twin calls them.
std::vector<std::string> value_names(const ir::Graph& graph, const Twin* twin) {
  std::vector<std::string> names;
  names.reserve(graph.values.size());
  for (const ir::Value& value : graph.values) names.push_back(name_of(value.name, twin));
  return names;
}

// Values of the graph as all callers may call them; a name stays unique.
void neutral_values(ir::Graph& graph, const std::vector<const Twin*>& twins) {
  std::unordered_set<std::string> taken;
  std::vector<std::string_view> names;
  for (ir::Value& value : graph.values) {
    if (value.name.empty()) continue;
    names.assign(1, value.name);
    for (const Twin* twin : twins) names.push_back(name_of(value.name, twin));
    value.name = common_name(names);
    while (!taken.insert(value.name).second) value.name += "'";
  }
}

}  // namespace

void share_names(const std::vector<std::map<pipeline::ActionKind, StageFragment>*>& stages,
                 const std::vector<const Twin*>& twins) {
  std::map<const pipeline::Fragment*, std::vector<size_t>> callers;
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const auto& [kind, fragment] : *stages[s]) callers[fragment.fragment.get()].push_back(s);
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    for (auto& [kind, fragment] : *stages[s]) {
      const auto it = callers.find(fragment.fragment.get());
      if (it == callers.end() || it->second.size() == 1) continue;
      auto shared = std::make_shared<pipeline::Fragment>(*fragment.fragment);
      std::vector<const Twin*> others;
      std::string numbers;
      for (const size_t caller : it->second) {
        stages[caller]->at(kind).value_names = value_names(shared->graph, twins[caller]);
        if (twins[caller] != nullptr) others.push_back(twins[caller]);
        numbers += fmt::format("{}{}", numbers.empty() ? "" : ", ", caller);
      }
      shared->name = fmt::format("{} stages {}", pipeline::to_string(kind), numbers);
      shared->graph.name = shared->name;
      neutral_values(shared->graph, others);
      const auto neutral_port = [&](pipeline::Port& port, size_t i) {
        std::vector<std::string_view> names;
        for (const size_t caller : it->second) names.push_back(stages[caller]->at(kind).names[i]);
        port.name = common_name(names);
      };
      const size_t inputs = fragment.inputs.size();
      for (size_t i = 0; i < inputs; ++i) neutral_port(shared->inputs[i], i);
      for (size_t i = 0; i < fragment.outputs.size(); ++i)
        neutral_port(shared->outputs[i], inputs + i);
      // Updated states have the names of their inputs.
      for (size_t u = 0; u < shared->graph.updates.size(); ++u) {
        for (size_t i = 0; i < inputs; ++i) {
          if (shared->graph.inputs[i].state == shared->graph.updates[u].state)
            shared->outputs[fragment.outputs.size() + u].name = shared->inputs[i].name;
        }
      }
      const std::vector<size_t> all = std::move(it->second);
      callers.erase(it);
      for (const size_t caller : all) stages[caller]->at(kind).fragment = shared;
    }
  }
}

std::string common_name(const std::vector<std::string_view>& names) {
  size_t head = names.front().size(), tail = head;
  for (const std::string_view name : names) {
    const std::string_view like = names.front();
    size_t n = 0;
    while (n < std::min(head, name.size()) && name[n] == like[n]) ++n;
    head = n;
    n = 0;
    while (n < std::min(tail, name.size()) &&
           name[name.size() - 1 - n] == like[like.size() - 1 - n])
      ++n;
    tail = n;
  }
  size_t shortest = names.front().size();
  for (const std::string_view name : names) shortest = std::min(shortest, name.size());
  const bool equal = std::all_of(names.begin(), names.end(),
                                 [&](std::string_view name) { return name == names.front(); });
  if (equal) return std::string(names.front());
  tail = std::min(tail, shortest - std::min(shortest, head));
  std::string common(names.front().substr(0, head));
  return common.append("*").append(names.front().substr(names.front().size() - tail));
}

}  // namespace mw::compile
