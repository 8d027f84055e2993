// Stages and flat groups that differ in one thing each are no twins.
#include "compile/twin.h"

#include <doctest/doctest.h>

#include <functional>

namespace mw::compile {
namespace {

// `text` with `to` in place of `from`: everywhere, or where it stands first.
std::string replaced(std::string text, const std::string& from, const std::string& to,
                     bool everywhere = true) {
  size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  do {
    text.replace(at, from.size(), to);
    at = text.find(from, at + to.size());
  } while (everywhere && at != std::string::npos);
  return text;
}

const std::string kModule = R"(module two {
  layer h.0
  layer h.1
  state h.0.a : f32[4] <embed> weight @h.0
  state h.0.b : f32[4] <embed> weight @h.0
  state h.0.a.grad : f32[4] <embed> gradient of h.0.a @h.0 use @h.0
  state h.0.b.grad : f32[4] <embed> gradient of h.0.b @h.0 use @h.0
  state h.1.a : f32[4] <embed> weight @h.1
  state h.1.b : f32[4] <embed> weight @h.1
  state h.1.a.grad : f32[4] <embed> gradient of h.1.a @h.1 use @h.1
  state h.1.b.grad : f32[4] <embed> gradient of h.1.b @h.1 use @h.1
})";

// Inputs 0 and 1 are received; a dropout runs again in the backward pass.
const std::string kStage = R"(graph stage {
  in %h.0.x : f32[2,4] <batch, embed>
  in %h.0.dy : f32[2,4] <batch, embed>
  in %ids : i64[2]
  in %h.0.a : f32[4] <embed> state h.0.a
  in %h.0.b : f32[4] <embed> state h.0.b
  in %h.0.a.grad : f32[4] <embed> state h.0.a.grad
  in %h.0.b.grad : f32[4] <embed> state h.0.b.grad
  %h.0.drop = dropout{rate=0.1, site=h.0.drop, features=4}(%h.0.x, %ids) : f32[2,4] <batch, embed> @h.0 F
  %h.0.resid = dropout{rate=0.1, site=h.0.resid, features=4}(%h.0.drop, %ids) : f32[2,4] <batch, embed> @h.0 F
  %h.0.y = scale{factor=2.0}(%h.0.resid) : f32[2,4] <batch, embed> @h.0 F
  %h.0.again = dropout{rate=0.1, site=h.0.drop, features=4}(%h.0.x, %ids) : f32[2,4] <batch, embed> @h.0 I recompute 1
  %h.0.dx = mul(%h.0.again, %h.0.dy) : f32[2,4] <batch, embed> @h.0 I recompute 1
  %h.0.da = reduce{op=sum, dims=[0]}(%h.0.dx, %h.0.a.grad) : f32[4] <embed> @h.0 W accumulates
  %h.0.db = reduce{op=sum, dims=[0]}(%h.0.dy, %h.0.b.grad) : f32[4] <embed> @h.0 W accumulates
  %h.0.loss = reduce{op=sum, dims=[0, 1]}(%h.0.y) : f32[] F
  out %h.0.loss
  update h.0.a.grad = %h.0.da
  update h.0.b.grad = %h.0.db
})";

struct Pair {
  std::string module = kModule, first = kStage, other = replaced(kStage, "h.0", "h.1");
};

StageGraph stage_of(const std::string& text, const ir::Module& module) {
  StageGraph stage;
  stage.graph = ir::parse_graph(text, &module);
  const auto add = [](std::vector<Crossing>& crossings, ValueId value, bool backward) {
    Crossing& crossing = crossings.emplace_back();
    crossing.value = value;
    crossing.backward = backward;
  };
  add(stage.receives, ValueId(0), false);
  add(stage.receives, ValueId(1), true);
  const auto named = [&](const std::string& suffix) {
    for (size_t v = 0; v < stage.graph.values.size(); ++v) {
      if (stage.graph.values[v].name.ends_with(suffix)) return ValueId(static_cast<int64_t>(v));
    }
    return ValueId();
  };
  add(stage.sends, named(".y"), false);
  add(stage.sends, named(".dx"), true);
  stage.results = stage.graph.outputs;
  return stage;
}

std::optional<Twin> twin_of(const Pair& pair) {
  const ir::Module module = ir::parse_module(pair.module);
  const StageGraph first = stage_of(pair.first, module), other = stage_of(pair.other, module);
  const std::optional<Twin> twin = find_twin(first, other, module);
  if (twin) CHECK(structure_hash(first) == structure_hash(other));
  return twin;
}

TEST_CASE("stages that are the same but for names are twins, both ways one to one") {
  const std::optional<Twin> twin = twin_of({});
  REQUIRE(twin.has_value());
  CHECK(twin->states == std::map<StateId, StateId>{{StateId(0), StateId(4)},
                                                   {StateId(1), StateId(5)},
                                                   {StateId(2), StateId(6)},
                                                   {StateId(3), StateId(7)}});
  CHECK(twin->layers == std::map<LayerId, LayerId>{{LayerId(0), LayerId(1)}});
  CHECK(twin->regions == std::map<RegionId, RegionId>{{RegionId(1), RegionId(1)}});
  CHECK(twin->sites ==
        std::map<std::string, std::string>{{"h.0.drop", "h.1.drop"}, {"h.0.resid", "h.1.resid"}});
  CHECK(twin->names.at("h.0.again") == "h.1.again");
  CHECK(twin->names.at("ids") == "ids");
}

TEST_CASE("stages draw alike where all their sites are the same") {
  CHECK(!twin_of({})->draws_alike());
  Pair pair;
  pair.other = replaced(pair.other, "site=h.1.drop", "site=h.0.drop");
  CHECK(!twin_of(pair)->draws_alike());
  pair.other = replaced(pair.other, "site=h.1.resid", "site=h.0.resid");
  CHECK(twin_of(pair)->draws_alike());
}

TEST_CASE("stages whose graphs differ in one thing are no twins") {
  struct Edit {
    const char* what;
    const char *from, *to;  // of the other stage, once
  };
  const Edit edits[] = {
      {"what is drawn again", "%h.1.again = dropout{rate=0.1, site=h.1.drop",
       "%h.1.again = dropout{rate=0.1, site=h.1.resid"},
      {"two sites in one", "site=h.1.resid", "site=h.1.drop"},
      {"an op that draws nothing", "site=h.1.resid", "site=\"\""},
      {"an attribute", "rate=0.1", "rate=0.2"},
      {"the kind of an op", "mul(", "div("},
      {"an operand", "mul(%h.1.again, %h.1.dy)", "mul(%h.1.dy, %h.1.again)"},
      {"an accumulator", "(%h.1.dx, %h.1.a.grad) : f32[4] <embed> @h.1 W accumulates",
       "(%h.1.dx, %h.1.a.grad) : f32[4] <embed> @h.1 W"},
      {"the work", "(%h.1.dy, %h.1.b.grad) : f32[4] <embed> @h.1 W",
       "(%h.1.dy, %h.1.b.grad) : f32[4] <embed> @h.1 I"},
      {"a layer", "(%h.1.resid) : f32[2,4] <batch, embed> @h.1",
       "(%h.1.resid) : f32[2,4] <batch, embed> @h.0"},
      {"an op without a layer", "(%h.1.resid) : f32[2,4] <batch, embed> @h.1",
       "(%h.1.resid) : f32[2,4] <batch, embed>"},
      {"an op that is not recomputed", "@h.1 I recompute 1", "@h.1 I"},
      {"a region of its own", "(%h.1.again, %h.1.dy) : f32[2,4] <batch, embed> @h.1 I recompute 1",
       "(%h.1.again, %h.1.dy) : f32[2,4] <batch, embed> @h.1 I recompute 2"},
      {"a type", "%h.1.y = scale{factor=2.0}(%h.1.resid) : f32[2,4]",
       "%h.1.y = scale{factor=2.0}(%h.1.resid) : bf16[2,4]"},
      {"logical axes", "%h.1.y = scale{factor=2.0}(%h.1.resid) : f32[2,4] <batch, embed>",
       "%h.1.y = scale{factor=2.0}(%h.1.resid) : f32[2,4] <batch, ffn>"},
      {"a value without a name", "in %h.1.b : f32[4] <embed> state h.1.b",
       "in %4 : f32[4] <embed> state h.1.b"},
      {"data of another name", "in %ids : i64[2]\n", "in %tokens : i64[2]\n"},
      {"a state in place of data", "in %h.1.b : f32[4] <embed> state h.1.b",
       "in %h.1.b : f32[4] <embed>"},
      {"a state of the first stage", "state h.1.b\n", "state h.0.b\n"},
      {"a state that is used twice", "state h.1.b\n", "state h.1.a\n"},
      {"states the other way round", "<embed> state h.1.a.grad", "<embed> state h.1.b.grad"},
      {"an output", "out %h.1.loss", "out %h.1.y"},
      {"an output less", "  out %h.1.loss\n", ""},
      {"an update", "update h.1.a.grad = %h.1.da", "update h.1.a.grad = %h.1.db"},
      {"a state that is updated", "update h.1.a.grad", "update h.0.a.grad"},
      {"an update less", "  update h.1.a.grad = %h.1.da\n", ""},
  };
  for (const Edit& edit : edits) {
    CAPTURE(std::string(edit.what));
    Pair pair;
    pair.other = replaced(pair.other, edit.from, edit.to, false);
    if (std::string(edit.what) == "data of another name")
      pair.other = replaced(pair.other, "%ids", "%tokens");
    CHECK(!twin_of(pair).has_value());
  }
}

TEST_CASE("stages whose states differ in one thing are no twins") {
  const std::pair<const char*, const char*> edits[] = {
      {"state h.1.b : f32[4] <embed>", "state h.1.b : f32[4] <ffn>"},
      {"state h.1.b : f32[4] <embed>", "state h.1.b : bf16[4] <embed>"},
      {"state h.1.b : f32[4] <embed> weight", "state h.1.b : f32[4] <embed> metric"},
      {"gradient of h.1.b", "gradient of h.1.a"},
      {"gradient of h.1.b", "gradient"},
  };
  for (const auto& [from, to] : edits) {
    CAPTURE(std::string(to));
    Pair pair;
    pair.module = replaced(pair.module, from, to);
    CHECK(!twin_of(pair).has_value());
  }
}

TEST_CASE("stages with other crossings are no twins") {
  const ir::Module module = ir::parse_module(kModule);
  const StageGraph first = stage_of(kStage, module), same = stage_of(Pair().other, module);
  REQUIRE(find_twin(first, same, module).has_value());
  const std::pair<const char*, std::function<void(StageGraph&)>> edits[] = {
      {"the order of what is received", [](auto& s) { std::swap(s.receives[0], s.receives[1]); }},
      {"the order of what is sent", [](auto& s) { std::swap(s.sends[0], s.sends[1]); }},
      {"something is not sent", [](auto& s) { s.sends.pop_back(); }},
      {"something is sent twice", [](auto& s) { s.sends.push_back(s.sends[0]); }},
      {"backward", [](auto& s) { s.sends[0].backward = true; }},
      {"carried", [](auto& s) { s.receives[0].carried = true; }},
      {"no result", [](auto& s) { s.results.clear(); }}};
  for (const auto& [what, edit] : edits) {
    CAPTURE(std::string(what));
    StageGraph other = same;
    edit(other);
    CHECK(!find_twin(first, other, module).has_value());
  }
}

TEST_CASE("a twin shares the fragment where it draws alike, else has its own with its sites") {
  const ir::Module module = ir::parse_module(kModule);
  pipeline::Fragment fragment;
  fragment.graph = ir::parse_graph(kStage, &module);
  StageFragment first;
  for (const ir::Input& input : fragment.graph.inputs) {
    PortSource source;
    if (input.state.valid()) source.kind = PortSource::Kind::kState, source.state = input.state;
    first.inputs.push_back(source);
    first.names.push_back(fragment.graph.value(input.value).name);
    fragment.inputs.push_back({pipeline::PortKind::kState, input.value, first.names.back()});
  }
  first.outputs.resize(1);
  first.names.push_back("h.0.loss");
  fragment.outputs.push_back(
      {pipeline::PortKind::kSaved, fragment.graph.outputs[0], first.names.back()});
  for (const ir::StateUpdate& update : fragment.graph.updates) {
    fragment.outputs.push_back(
        {pipeline::PortKind::kState, update.value, module.state(update.state).name});
  }
  first.fragment = std::make_shared<const pipeline::Fragment>(fragment);

  Pair pair;
  const StageFragment own = twin_fragment(first, *twin_of(pair), module, "stage 1");
  CHECK(own.inputs[3].state == StateId(4));
  CHECK(own.names[3] == "h.1.a");
  CHECK(own.names.back() == "h.1.loss");
  REQUIRE(own.fragment != first.fragment);
  CHECK(own.fragment->graph.ops[0].as<ir::DropoutAttrs>().site == "h.1.drop");
  CHECK(own.fragment->graph.ops[1].as<ir::DropoutAttrs>().site == "h.1.resid");
  CHECK(own.fragment->graph.inputs[3].state == StateId(4));
  CHECK(own.fragment->outputs.back().name == "h.1.b.grad");

  pair.other = replaced(pair.other, "site=h.1", "site=h.0");
  const StageFragment shared = twin_fragment(first, *twin_of(pair), module, "stage 1");
  CHECK(shared.fragment == first.fragment);
  CHECK(shared.names[3] == "h.1.a");
}

// A group of two weights and their gradients, and one of a weight with two uses.
class Groups {
 public:
  std::vector<FlatGroup> first, other;
  ir::Module module;
  Twin twin;

  Groups() {
    for (std::vector<FlatGroup>* groups : {&first, &other}) {
      const std::string of = groups == &first ? "h.0" : "h.1";
      groups->resize(2);
      FlatGroup &pair = (*groups)[0], &tied = (*groups)[1];
      pair.members = {member(of + ".a", 0), member(of + ".b", 256)};
      pair.elements = 512;
      pair.uses = {{{state(of + ".a.grad"), state(of + ".b.grad")}, state("grad/" + of)}};
      pair.weight = state("weight/" + of);
      tied.members = {member(of + ".tied", 0)};
      tied.elements = 256;
      tied.shared = true;
      tied.uses = {{{state(of + ".tied.grad")}, state("grad/" + of + ".tied@0")},
                   {{state(of + ".tied.grad2")}, state("grad/" + of + ".tied@1")}};
      tied.weight = state("weight/" + of + ".tied");
    }
    for (const char* name : {"a", "b", "a.grad", "b.grad", "tied", "tied.grad", "tied.grad2"})
      twin.states[found("h.0." + std::string(name))] = found("h.1." + std::string(name));
  }
  StateId found(const std::string& name) const { return module.find_state(name).value(); }
  bool match() {
    Twin matched = twin;
    const bool matches = match_groups(first, other, module, matched);
    if (matches) twin = matched;
    return matches;
  }

 private:
  StateId state(const std::string& name) {
    ir::State made;
    made.name = name;
    made.type = ir::make_type(DType::kF32, {256});
    return module.add_state(made);
  }
  GroupMember member(const std::string& name, int64_t offset) {
    const StateId id = state(name);
    const ir::TensorType& type = module.state(id).type;
    return {id, type, type, sharding::replicated(1), offset};
  }
};

TEST_CASE("groups that are laid out alike are a twin's") {
  Groups groups;
  REQUIRE(groups.match());
  for (const std::string name : {"weight/h.", "grad/h."}) {
    CHECK(groups.twin.states.at(groups.found(name + "0")) == groups.found(name + "1"));
    CHECK(groups.twin.names.at(name + "0") == name + "1");
  }
  for (const std::string use : {"@0", "@1"}) {
    CHECK(groups.twin.states.at(groups.found("grad/h.0.tied" + use)) ==
          groups.found("grad/h.1.tied" + use));
  }
}

TEST_CASE("groups that differ in one thing are no twin's") {
  const std::pair<const char*, std::function<void(std::vector<FlatGroup>&)>> edits[] = {
      {"elements", [](auto& g) { g[0].elements = 768; }},
      {"data axes", [](auto& g) { g[0].data_axes = {"dp"}; }},
      {"pending over other axes", [](auto& g) { g[0].model_partial = {"tp"}; }},
      {"pending over the data axes", [](auto& g) { g[0].dp_partial = true; }},
      {"shared", [](auto& g) { g[0].shared = true; }},
      {"a use less", [](auto& g) { g[1].uses.pop_back(); }},
      {"a use more", [](auto& g) { g[0].uses.push_back({}); }},
      {"a member more", [](auto& g) { g[0].members.push_back(g[0].members[0]); }},
      {"an offset", [](auto& g) { g[0].members[1].offset = 512; }},
      {"a sharding",
       [](auto& g) { g[0].members[1].sharding = sharding::parse_sharding("[{\"tp\"}]"); }},
      {"a local type", [](auto& g) { g[0].members[1].local = ir::make_type(DType::kF32, {128}); }},
      {"a global type",
       [](auto& g) { g[0].members[1].global = ir::make_type(DType::kF32, {128}); }},
      {"the order of weights",
       [](auto& g) { std::swap(g[0].members[0].parameter, g[0].members[1].parameter); }},
      {"the order of gradients",
       [](auto& g) { std::swap(g[0].uses[0].accumulators[0], g[0].uses[0].accumulators[1]); }},
      {"the order of uses",
       [](auto& g) { std::swap(g[1].uses[0].accumulators, g[1].uses[1].accumulators); }},
      {"no group", [](auto& g) { g.pop_back(); }}};
  for (const auto& [what, edit] : edits) {
    CAPTURE(std::string(what));
    Groups groups;
    edit(groups.other);
    CHECK(!groups.match());
  }
}

TEST_CASE("names of alike values have one name with a star for what differs") {
  CHECK(common_name({"h.0.x", "h.1.x"}) == "h.*.x");
  CHECK(common_name({"h.0.x", "h.10.x", "h.2.x"}) == "h.*.x");
  CHECK(common_name({"same", "same"}) == "same");
  CHECK(common_name({"aa", "aaa"}) == "aa*");
  CHECK(common_name({"aaa", "aa"}) == "aa*");
  CHECK(common_name({"x", "y"}) == "*");
}

}  // namespace
}  // namespace mw::compile
