#include "sharding/propagation.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include "ops/builder.h"

namespace mw::sharding {
namespace {

// A graph and its given shardings by name. B batch, S sequence, D model, F ffn
struct Net {
  ir::Module module;
  ir::Graph graph;
  ops::Builder b{graph};
  std::vector<std::pair<ValueId, std::string>> given;
  cluster::Mesh mesh{{{"dp", 2}, {"tp", 4}}};

  ValueId input(const std::string& name, const std::vector<int64_t>& sizes,
                const std::string& sharding = "") {
    const ValueId v = graph.add_input(ir::make_type(DType::kF32, sizes), name);
    return give(v, sharding);
  }
  ValueId weight(const std::string& name, const std::vector<int64_t>& sizes,
                 const std::string& sharding = "") {
    ir::State state;
    state.name = name;
    state.type = ir::make_type(DType::kF32, sizes);
    return give(graph.add_input(state.type, name, module.add_state(state)), sharding);
  }
  ValueId named(ValueId v, const std::string& name) {
    graph.value(v).name = name;
    return v;
  }
  ValueId give(ValueId v, const std::string& sharding) {
    if (!sharding.empty()) given.emplace_back(v, sharding);
    return v;
  }
  Propagation run() const {
    PropagationRequest request{graph, module, mesh, {}};
    request.given.resize(graph.values.size());
    for (const auto& [v, text] : given) request.given[v.index()] = parse_sharding(text);
    return propagate(request);
  }
  // "sharding <- origin".
  std::string of(const Propagation& found, ValueId v) const {
    return to_string(found.shardings[v.index()]) + " <- " +
           to_string(found.origins[v.index()], graph, v, module);
  }
};

TEST_CASE("a column and a row parallel product: the middle is split, the sum behind pends") {
  Net n;
  const ValueId x_BSD = n.input("x", {4, 8, 16}, R"([{"dp"}, {}, {}])");
  const ValueId w_FD = n.weight("up", {32, 16}, R"([{"tp"}, {}])");
  const ValueId b_F = n.weight("bias", {32});
  const ValueId w_DF = n.weight("down", {16, 32}, R"([{}, {"tp"}])");
  const ValueId u_BSF = n.named(n.b.dot(x_BSD, w_FD, "bsd,fd->bsf"), "u");
  const ValueId h_BSF = n.named(n.b.bias_gelu(u_BSF, b_F, true), "h");
  const ValueId y_BSD = n.named(n.b.dot(h_BSF, w_DF, "bsf,df->bsd"), "y");
  n.graph.outputs = {y_BSD};
  const Propagation found = n.run();
  CHECK(to_text(found, n.graph, n.module) == R"(x : [{"dp"}, {}, {}] <- annotation
up : [{"tp"}, {}] <- state up
bias : [{"tp"}] <- tp from u through bias_gelu h by factors
down : [{}, {"tp"}] <- state down
u : [{"dp"}, {}, {"tp"}] <- dp from x through dot u by factors; tp from up through dot u by factors
h : [{"dp"}, {}, {"tp"}] <- dp, tp from u through bias_gelu h by factors
y : [{"dp"}, {}, {}] partial{"tp"} <- dp from h through dot y by factors
)");
}

TEST_CASE("a sharding flows backward as it flows forward") {
  Net n;
  const ValueId x_BD = n.input("x", {8, 16});
  const ValueId t_DB = n.named(n.b.transpose(x_BD, {1, 0}), "t");
  const ValueId y_DB = n.named(n.b.scale(t_DB, 2), "y");
  n.give(y_DB, R"([{"tp"}, {"dp"}])");
  const Propagation found = n.run();
  CHECK(n.of(found, x_BD) ==
        R"([{"dp"}, {"tp"}] <- dp, tp from t through transpose t by pass-through)");
}

TEST_CASE("a pending sum passes linear ops and stops at the others") {
  Net n;
  const ValueId x_BF = n.input("x", {8, 16}, R"([{}, {"tp"}])");
  const ValueId w_DF = n.weight("w", {4, 16}, R"([{}, {"tp"}])");
  const ValueId y_BD = n.b.dot(x_BF, w_DF, "bf,df->bd");
  const ValueId scaled = n.b.scale(y_BD, 2);
  const ValueId both = n.b.add(scaled, y_BD);
  const ValueId mixed = n.b.add(both, n.input("z", {8, 4}));
  const ValueId power = n.b.unary(ir::OpKind::kExp, both);
  const Propagation found = n.run();
  const auto pending = [&](ValueId v) { return found.shardings[v.index()].partial; };
  CHECK(pending(y_BD) == Axes{"tp"});
  CHECK(pending(scaled) == Axes{"tp"});
  CHECK(pending(both) == Axes{"tp"});
  // One term pends, the other does not: rules let only all pass.
  CHECK(pending(mixed).empty());
  CHECK(pending(power).empty());
}

TEST_CASE("nothing is invented: without a given sharding all is whole") {
  Net n;
  const ValueId y = n.b.dot(n.input("x", {8, 16}), n.input("w", {4, 16}), "bf,df->bd");
  const Propagation found = n.run();
  CHECK(n.of(found, y) == "[{}, {}] <- nothing splits it");
}

TEST_CASE("where two factors claim one axis, the state's layout is followed and the text says so") {
  Net n;
  const ValueId x_BSD = n.input("x", {4, 8, 16}, R"([{}, {"tp"}, {}])");
  const ValueId w_FD = n.weight("up", {32, 16}, R"([{"tp"}, {}])");
  const ValueId u_BSF = n.named(n.b.dot(x_BSD, w_FD, "bsd,fd->bsf"), "u");
  const Propagation found = n.run();
  CHECK(n.of(found, u_BSF) == R"([{}, {}, {"tp"}] <- tp from up through dot u by resolve)");
  const std::string text = to_text(found, n.graph, n.module);
  CHECK(text.ends_with("decided at dot u: axis tp splits f of up, not s of x\n"));
}

TEST_CASE("among equals the claim of most bytes is kept") {
  Net n;
  const ValueId small = n.input("small", {4, 8}, R"([{"tp"}, {}])");
  const ValueId large = n.input("large", {64, 8}, R"([{"tp"}, {}])");
  const ValueId y = n.named(n.b.dot(small, large, "ad,bd->ab"), "y");
  const Propagation found = n.run();
  CHECK(n.of(found, y) == R"([{}, {"tp"}] <- tp from large through dot y by resolve)");
}

TEST_CASE("an axis goes where there are fewer elements than devices, or twice, never") {
  Net n;
  const ValueId x = n.input("x", {2, 8}, R"([{"dp"}, {}])");
  const ValueId w = n.weight("w", {3, 8}, R"([{}, {}])");
  const ValueId y = n.b.dot(x, w, "bd,nd->bn");
  const ValueId z = n.b.dot(y, n.weight("v", {16, 3}, R"([{"dp"}, {}])"), "bn,fn->bf");
  const Propagation found = n.run();
  CHECK(to_string(found.shardings[z.index()]) == R"([{}, {"dp"}])");
  CHECK(found.decisions.size() == 1);
}

TEST_CASE("queries that share a key head are split behind the key heads") {
  Net n;
  n.mesh = cluster::Mesh({{"tp_kv", 2}, {"tp_rep", 2}});
  const ValueId q = n.input("q", {2, 4, 8, 4}, R"([{}, {}, {"tp_kv", "tp_rep"}, {}])");
  const ValueId k = n.input("k", {2, 4, 2, 4}), v = n.input("v", {2, 4, 2, 4});
  const ValueId positions = n.graph.add_input(ir::make_type(DType::kI32, {2, 4}), "positions");
  const ValueId out = n.b.attention(q, k, v, positions, 1, true);
  const Propagation found = n.run();
  CHECK(to_string(found.shardings[out.index()]) == R"([{}, {}, {"tp_kv", "tp_rep"}, {}])");
  CHECK(to_string(found.shardings[k.index()]) == R"([{}, {}, {"tp_kv"}, {}])");
  CHECK(to_string(found.shardings[v.index()]) == R"([{}, {}, {"tp_kv"}, {}])");
}

TEST_CASE("propagation costs the same for 8 devices and for 8,192") {
  const auto visits = [](int64_t dp, int64_t tp) {
    Net n;
    n.mesh = cluster::Mesh({{"dp", dp}, {"tp", tp}});
    ValueId h_BD = n.input("x", {8192, 64}, R"([{"dp"}, {}])");
    for (int layer = 0; layer < 6; ++layer) {
      const ValueId u = n.b.dot(
          h_BD, n.weight(fmt::format("up.{}", layer), {8192, 64}, R"([{"tp"}, {}])"), "bd,fd->bf");
      const ValueId y = n.b.dot(
          n.b.relu(u), n.weight(fmt::format("down.{}", layer), {64, 8192}, R"([{}, {"tp"}])"),
          "bf,df->bd");
      h_BD = n.b.add(h_BD, y);
    }
    return n.run().visits;
  };
  CHECK(visits(2, 4) == visits(128, 64));
}

}  // namespace
}  // namespace mw::sharding
