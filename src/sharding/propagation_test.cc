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

TEST_CASE(
    "which sums pass an op: alike in all terms, of one factor of a product, never a maximum") {
  Net n;
  n.mesh = cluster::Mesh({{"dp", 2}, {"tp", 2}});
  const auto pending_over = [&](const std::string& axis, ir::Reduction reduction) {
    const ValueId x_BF = n.input("x", {8, 16}, fmt::format(R"([{{}}, {{"{}"}}])", axis));
    if (reduction != ir::Reduction::kSum) return n.b.reduce(x_BF, reduction, {1});
    return n.b.dot(x_BF, n.input("w", {8, 16}), "bf,df->bd");
  };
  const ValueId over_tp = pending_over("tp", ir::Reduction::kSum),
                over_dp = pending_over("dp", ir::Reduction::kSum),
                most = pending_over("tp", ir::Reduction::kMax), whole = n.input("y", {8, 8}),
                split = n.weight("v", {8, 8}, R"([{"tp"}, {}])"),
                unsplit = n.b.reduce(n.input("z", {8, 16}), ir::Reduction::kMax, {1}),
                number = n.b.reduce(over_tp, ir::Reduction::kSum, {0, 1});
  struct Case {
    const char* name;
    ValueId made;
    std::string sharding;
  };
  for (const Case& c : std::vector<Case>{
           {"a maximum", most, R"([{}] partial<max>{"tp"})"},
           {"a maximum over what is whole", unsplit, "[{}]"},
           {"the double of a maximum", n.b.scale(most, 2), "[{}]"},
           {"two maxima", n.b.add(most, most), "[{}]"},
           {"unlike terms", n.b.add(over_tp, over_dp), "[{}, {}]"},
           {"a whole term first", n.b.add(whole, over_tp), "[{}, {}]"},
           {"the second operand of a product", n.b.dot(whole, over_tp, "ab,bc->ac"),
            R"([{}, {}] partial{"tp"})"},
           {"both operands", n.b.dot(over_dp, over_tp, "ab,bc->ac"), R"([{}, {}] partial{"dp"})"},
           {"a product over the axis", n.b.dot(over_tp, split, "ab,cb->ac"), R"([{}, {"tp"}])"},
           {"a number", n.b.scale(number, 2), R"([] partial{"tp"})"}}) {
    CAPTURE(c.name);
    const Sharding made = n.run().shardings[c.made.index()];
    CHECK(to_string(made) == c.sharding);
    CHECK(made == parse_sharding(c.sharding));
  }
}

TEST_CASE("a product that sums over two split dimensions pends over both, in order") {
  Net n;
  const ValueId x = n.input("x", {8, 16}, R"([{"tp"}, {"dp"}])");
  const ValueId y = n.b.dot(x, n.input("y", {8, 16}), "ab,ab->");
  CHECK(to_string(n.run().shardings[y.index()]) == R"([] partial{"dp", "tp"})");
}

TEST_CASE("a given value is whole, but for one that is only accumulated or carried") {
  Net n;
  const ValueId x = n.input("x", {8, 16}, R"([{"dp"}, {"tp"}])");
  const ValueId dy = n.input("dy", {8, 4}, R"([{"dp"}, {}])");
  const ValueId y = n.give(n.b.dot(x, n.input("w", {4, 16}), "bf,df->bd"), R"([{"dp"}, {}])");
  n.b.work = ir::Work::kWeightGrad;
  const ValueId dw = n.give(n.b.dot(dy, x, "bd,bf->df"), R"([{}, {"tp"}])");
  const ValueId sum =
      n.b.emit1(ir::OpKind::kAccumulate, ir::NoAttrs{}, {n.input("acc", {4, 16}), dw});
  // Its dimension on tp is given and cannot pend as well.
  const ValueId all = n.give(n.b.dot(x, x, "bf,bf->b"), R"([{"tp"}])");
  const ValueId total =
      n.b.emit1(ir::OpKind::kAccumulate, ir::NoAttrs{}, {n.input("sum", {8}), all});
  n.b.work = ir::Work::kInputGrad;
  const ValueId dx =
      n.give(n.b.dot(n.input("a", {8, 16}, R"([{}, {"dp"}])"), n.input("b", {4, 16}), "bf,df->bd"),
             R"([{}, {"tp"}])");
  const ValueId next = n.b.dot(dx, n.input("c", {2, 4}), "bd,ed->be");
  n.graph.outputs = {y, sum, total, next};
  const Propagation found = n.run();
  const auto layout = [&](ValueId v) { return to_string(found.shardings[v.index()]); };
  CHECK(layout(y) == R"([{"dp"}, {}])");
  CHECK(layout(dw) == R"([{}, {"tp"}] partial{"dp"})");
  CHECK(layout(all) == R"([{"tp"}])");
  CHECK(layout(dx) == R"([{}, {"tp"}] partial{"dp"})");
}

TEST_CASE("nothing is invented: without a given sharding all is whole") {
  Net n;
  const ValueId y = n.b.dot(n.input("x", {8, 16}), n.input("w", {4, 16}), "bf,df->bd");
  const ValueId v = n.weight("v", {4});
  const Propagation found = n.run();
  CHECK(n.of(found, y) == "[{}, {}] <- nothing splits it");
  CHECK(n.of(found, v) == "[{}] <- nothing splits it");
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

// x0 -> neg -> x, and what another op has x on.
struct Middle : Net {
  ValueId x0, x;
  explicit Middle(const std::vector<int64_t>& sizes, const std::string& sharding = "") {
    mesh = cluster::Mesh({{"dp", 2}, {"tp", 4}, {"cp", 2}});
    x0 = input("x0", sizes, sharding);
    x = named(b.unary(ir::OpKind::kNeg, x0), "x");
  }
};

TEST_CASE("what resolve decides flows on as the more certain strategies pass it on") {
  Middle n({8, 16});
  const ValueId w = n.weight("w", {4, 16}, R"([{}, {"tp"}])");
  n.give(n.named(n.b.dot(n.x, w, "ad,bd->ab"), "y"), R"([{"tp"}, {}])");
  const Propagation found = n.run();
  CHECK(n.of(found, n.x0) == R"([{}, {"tp"}] <- tp from x through neg x by pass-through)");
  CHECK(to_string(found.shardings[w.index()]) == R"([{}, {"tp"}])");
}

TEST_CASE("an annotation is followed though what is propagated has more bytes") {
  Middle n({64, 8}, R"([{"tp"}, {}])");
  const ValueId small = n.input("small", {4, 8}, R"([{"tp"}, {}])");
  const ValueId y = n.named(n.b.dot(small, n.x, "ad,bd->ab"), "y");
  CHECK(n.of(n.run(), y) == R"([{"tp"}, {}] <- tp from small through dot y by resolve)");
}

TEST_CASE("a tensor keeps the axes that it has, in their order, each once") {
  const auto sharding_of_x = [](const Middle& n) {
    return to_string(n.run().shardings[n.x.index()]);
  };
  {  // Other axes of the same dimension.
    Middle n({8, 16}, R"([{"dp"}, {}])");
    n.named(n.b.add(n.x, n.input("z", {8, 16}, R"([{"tp", "cp"}, {}])")), "z + x");
    CHECK(sharding_of_x(n) == R"([{"dp"}, {}])");
    CHECK(
        to_text(n.run(), n.graph, n.module)
            .ends_with("decided at add z + x: a is split as z has it, not over dp as x has it\n"));
  }
  {  // The same axis for another dimension.
    Middle n({8, 16}, R"([{}, {"tp"}])");
    n.give(n.b.reduce(n.x, ir::Reduction::kSum, {1}), R"([{"tp"}])");
    CHECK(sharding_of_x(n) == R"([{}, {"tp"}])");
  }
  {  // Axes that do not follow the borders of the op's factors.
    Middle n({8}, R"([{"tp"}])");
    n.give(n.b.reshape(n.x, {2, 4}), R"([{"dp"}, {}])");
    CHECK(sharding_of_x(n) == R"([{"tp"}])");
  }
  {  // The inner of two factors alone.
    Middle n({8});
    n.give(n.b.reshape(n.x, {2, 4}), R"([{}, {"tp"}])");
    CHECK(sharding_of_x(n) == "[{}]");
  }
  {  // Given.
    Middle n({8, 16});
    n.give(n.x, R"([{"dp"}, {}])");
    n.b.add(n.x, n.input("z", {8, 16}, R"([{"dp", "tp"}, {}])"));
    CHECK(sharding_of_x(n) == R"([{"dp"}, {}])");
  }
}

TEST_CASE("what an op needs whole claims no axis") {
  Net n;
  const ValueId y = n.input("y", {8, 16}, R"([{"tp"}, {}])");
  const ValueId dy = n.input("dy", {8, 16}, R"([{}, {"tp"}])");
  const ValueId dx = n.b.emit1(ir::OpKind::kSoftmaxGrad, ir::NoAttrs{}, {y, dy});
  const Propagation found = n.run();
  CHECK(to_string(found.shardings[dx.index()]) == R"([{"tp"}, {}])");
  CHECK(found.decisions.empty());
}

TEST_CASE("ops of one kind have one rule only where attributes and types are the same") {
  Net n;
  const ValueId x = n.input("x", {8, 8}, R"([{"tp"}, {}])"), w = n.input("w", {8, 8});
  const auto layout = [&](ValueId v) { return to_string(n.run().shardings[v.index()]); };
  const ValueId straight = n.b.dot(x, w, "ab,bc->ac"), across = n.b.dot(x, w, "ab,ac->bc");
  CHECK(layout(straight) == R"([{"tp"}, {}])");
  CHECK(layout(across) == R"([{}, {}] partial{"tp"})");
  n.b.unary(ir::OpKind::kNeg, n.input("few", {2, 8}));
  CHECK(layout(n.b.unary(ir::OpKind::kNeg, x)) == R"([{"tp"}, {}])");
  const ValueId row = n.input("row", {24}, R"([{"tp"}])");
  const ValueId of_six = n.b.reshape(row, {6, 4}), of_four = n.b.reshape(row, {4, 6});
  CHECK(layout(of_six) == "[{}, {}]");
  CHECK(layout(of_four) == R"([{"tp"}, {}])");
}

TEST_CASE("a sharding flows back over any number of ops") {
  Net n;
  const ValueId x = n.input("x", {8});
  ValueId y = x;
  for (int i = 0; i < 200; ++i) y = n.b.unary(ir::OpKind::kNeg, y);
  n.give(y, R"([{"tp"}])");
  CHECK(to_string(n.run().shardings[x.index()]) == R"([{"tp"}])");
}

TEST_CASE("every op has its decisions, one for each factor that lost") {
  Net n;
  const ValueId x = n.input("x", {8, 8}, R"([{"tp"}, {}])"),
                y = n.input("y", {8, 8}, R"([{}, {"tp"}])");
  for (const char* name : {"first", "second"})
    n.give(n.named(n.b.dot(x, y, "ad,bd->ab"), name), R"([{}, {"tp"}])");
  const std::string text = to_text(n.run(), n.graph, n.module);
  CHECK(text.substr(text.find("decided")) ==
        "decided at dot first: axis tp splits a of x, not b of first\n"
        "decided at dot first: axis tp splits a of x, not d of y\n"
        "decided at dot second: axis tp splits a of x, not b of second\n"
        "decided at dot second: axis tp splits a of x, not d of y\n");
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
