#include <doctest/doctest.h>

#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/builder.h"
#include "pipeline/fragment_bytes.h"
#include "pipeline/memory_plan.h"

using namespace mw;
using namespace mw::pipeline;
using ir::OpKind;

namespace {

ir::TensorType f32(const std::vector<int64_t>& sizes) { return ir::make_type(DType::kF32, sizes); }

struct Maker {
  Fragment fragment;
  ops::Builder b{fragment.graph};
  int32_t states = 0;

  ValueId input(const std::string& name, ir::TensorType type, PortKind kind = PortKind::kBoundary) {
    const StateId state = kind == PortKind::kState ? StateId(states++) : StateId();
    const ValueId v = fragment.graph.add_input(std::move(type), name, state);
    fragment.inputs.push_back({kind, v, name});
    return v;
  }
  void output(ValueId v) {
    fragment.graph.outputs.push_back(v);
    fragment.outputs.push_back({PortKind::kBoundary, v, "out"});
  }
  void update(int32_t state, ValueId v) { fragment.graph.updates.push_back({StateId(state), v}); }
  void plan() {
    fragment.launches.resize(fragment.graph.ops.size());
    for (Launch& launch : fragment.launches) {
      if (!launch.stream.valid()) launch.stream = StreamId(0);
    }
    plan_fragment(fragment);
  }
  ValueId alias(ValueId v) const { return fragment.alias_of[v.index()]; }
  int64_t alias_offset(ValueId v) const { return fragment.alias_offset[v.index()]; }
  int64_t workspace(ValueId v) const { return fragment.workspace_offset[v.index()]; }
  ValueId view(ValueId flat, int64_t offset, ir::TensorType type) {
    return b.emit1(OpKind::kView, ir::ViewAttrs{offset}, {flat}, {std::move(type)});
  }
  ValueId all_reduce(ValueId x) {
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{{"dp"}};
    return b.emit1(OpKind::kAllReduce, attrs, {x});
  }
  ValueId reduce_scatter(ValueId x, ir::TensorType part, int dim = 0) {
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{{"dp"}};
    attrs.dim = dim;
    return b.emit1(OpKind::kReduceScatter, attrs, {x}, {std::move(part)});
  }
  ValueId zero(ValueId x) { return b.emit1(OpKind::kZero, {}, {x}); }
};

}  // namespace

TEST_CASE("values have workspace from producer to last use and share it afterwards") {
  Maker m;
  const ValueId x = m.input("x", f32({64}));
  const ValueId w = m.input("w", f32({64, 64}));
  ValueId h = x;
  ValueIds chain;
  for (int i = 0; i < 6; ++i) chain.push_back(h = m.b.dot(h, w, "k,kn->n"));
  m.output(h);
  m.plan();
  CHECK(m.fragment.workspace.value == 2 * 256);
  CHECK(m.workspace(x) == Fragment::kNotPlanned);
  CHECK(m.workspace(h) == Fragment::kNotPlanned);
  CHECK_FALSE(m.alias(h).valid());
  for (size_t i = 1; i + 1 < chain.size(); ++i)
    CHECK(m.workspace(chain[i]) != m.workspace(chain[i - 1]));
}

TEST_CASE(
    "a result goes over its operand only if that is workspace memory that nothing reads later") {
  Maker m;
  const ValueId x = m.input("x", f32({64}));
  const ValueId a = m.b.relu(x);    // x is a port
  const ValueId b = m.b.relu(a);    // a is read below
  const ValueId c = m.b.relu(b);    // over b
  const ValueId d = m.b.add(a, c);  // over a
  const ValueId e = m.b.add(d, d);  // d twice: own memory
  m.output(e);
  m.plan();
  CHECK_FALSE(m.alias(a).valid());
  CHECK_FALSE(m.alias(b).valid());
  CHECK(m.alias(c) == b);
  CHECK(m.alias(d) == a);
  CHECK_FALSE(m.alias(e).valid());
}

TEST_CASE("a consumed port may be written over, others not") {
  Maker m;
  const ValueId x = m.input("x", f32({64}), PortKind::kSaved);
  const ValueId y = m.input("y", f32({64}), PortKind::kSaved);
  m.fragment.inputs[1].consumed = true;
  const ValueId a = m.b.relu(x), b = m.b.relu(y);
  const ValueId c = m.b.dot(a, b, "k,k->");
  m.output(c);
  m.plan();
  CHECK_FALSE(m.alias(a).valid());
  CHECK(m.alias(b) == y);
}

TEST_CASE("an output takes its operands along into its buffer") {
  Maker m;
  const ValueId x = m.input("x", f32({8, 8}));
  const ValueId h = m.b.relu(x);
  const ValueId g = m.b.relu(h);
  const ValueId y = m.b.reshape(g, {64});
  const ValueId z = m.b.reshape(x, {64});  // a copy: x has its own buffer
  m.output(y);
  m.output(z);
  m.plan();
  CHECK_FALSE(m.alias(y).valid());
  CHECK(m.alias(g) == y);
  CHECK(m.alias(h) == y);
  CHECK_FALSE(m.alias(z).valid());
  CHECK(m.fragment.workspace.value == 0);
}

TEST_CASE("gradients accumulate in the views of their flat state") {
  Maker m;
  const ValueId x = m.input("x", f32({4, 8}), PortKind::kSaved);
  const ValueId dy = m.input("dy", f32({4, 16}));
  const ValueId flat = m.input("grad", f32({256}), PortKind::kState);
  const ValueId gw = m.view(flat, 64, f32({8, 16}));
  ir::Op op;
  op.kind = OpKind::kDot;
  op.attrs = ir::DotAttrs{"bk", "bn", "kn"};
  op.operands = {x, dy, gw};
  op.accumulates = true;
  const ValueId sum = m.fragment.graph.op(m.fragment.graph.add_op(op, {f32({8, 16})})).results[0];
  const ValueId bias = m.view(flat, 192, f32({16}));
  const ValueId bias_sum =
      m.b.emit1(OpKind::kAccumulate, {}, {bias, m.b.reduce(dy, ir::Reduction::kSum, {0})});
  const ValueId after =
      m.b.emit1(OpKind::kAssemble, ir::AssembleAttrs{{64, 192}}, {flat, sum, bias_sum});
  m.update(0, after);
  m.plan();
  CHECK(m.alias(gw) == flat);
  CHECK(m.alias(sum) == flat);
  CHECK(m.alias_offset(sum) == 256);
  CHECK(m.alias(bias_sum) == flat);
  CHECK(m.alias_offset(bias_sum) == 768);
  CHECK(m.alias(after) == flat);
}

TEST_CASE("what a state takes and the parts of an assemble are made in place") {
  Maker m;
  const ValueId weights = m.input("weights", f32({256}), PortKind::kState);
  const ValueId grad = m.input("grad", f32({256}), PortKind::kState);
  const ValueId r = m.b.constant(1, f32({8, 16})), s = m.b.constant(2, f32({128}));
  const ValueId all = m.b.emit1(OpKind::kAssemble, ir::AssembleAttrs{{0, 128}}, {weights, r, s});
  const ValueId sum = m.all_reduce(grad);
  const ValueId zero = m.b.emit1(OpKind::kZero, {}, {sum});
  m.update(0, all);
  m.update(1, zero);
  m.plan();
  CHECK(m.alias(r) == weights);
  CHECK(m.alias(s) == weights);
  CHECK(m.alias_offset(s) == 512);
  CHECK(m.alias(all) == weights);
  CHECK(m.alias(sum) == grad);
  CHECK(m.alias(zero) == grad);
  CHECK(m.fragment.workspace.value == 0);
}

TEST_CASE("what is left of a scattered state lies in the rank's own part of it") {
  Maker m;
  const ValueId step = m.input("step", f32({64}), PortKind::kState);
  const ValueId grad = m.input("grad", f32({256}), PortKind::kState);
  const ValueId sum = m.all_reduce(grad);
  const ValueId part = m.reduce_scatter(sum, f32({64}));
  m.update(0, m.b.emit1(OpKind::kAccumulate, {}, {step, part}));
  const ValueId zero = m.zero(sum);
  m.update(1, zero);
  m.plan();
  CHECK(m.alias(part) == grad);
  CHECK(m.alias_offset(part) == 0);
  CHECK(m.alias(zero) == grad);
  CHECK(m.fragment.workspace.value == 0);
  CHECK(lies_in_own_part(m.fragment, part));
  for (const ValueId v : {step, grad, sum, zero}) CHECK_FALSE(lies_in_own_part(m.fragment, v));
}

TEST_CASE("a scattered state that somebody wants afterwards keeps its bytes") {
  struct Case {
    const char* what;
    std::function<void(Maker&, ValueId grad, ValueId part)> then;
    std::vector<int64_t> whole = {256}, part = {64};
    int dim = 0;
  };
  // Into a state of its own: nothing else lies over the part.
  const auto sum = [](Maker& m, ValueId part) {
    const ValueId step = m.input("step", m.fragment.graph.type(part), PortKind::kState);
    m.update(m.states - 1, m.b.emit1(OpKind::kAccumulate, {}, {step, part}));
  };
  const std::vector<Case> cases = {
      {"is not zeroed",
       [&](Maker& m, ValueId grad, ValueId part) {
         sum(m, part);
         m.update(0, grad);
       }},
      {"is made anew while its part is wanted",
       [&](Maker& m, ValueId, ValueId part) {
         m.update(0, m.b.relu(m.input("x", f32({256}))));
         sum(m, part);
       }},
      {"is zeroed while its part is wanted",
       [&](Maker& m, ValueId grad, ValueId part) {
         m.update(0, m.zero(grad));
         sum(m, part);
       }},
      {"is read",
       [&](Maker& m, ValueId grad, ValueId part) {
         sum(m, part);
         m.output(m.b.relu(grad));
         m.update(0, m.zero(grad));
       }},
      {"is read in part",
       [&](Maker& m, ValueId grad, ValueId part) {
         sum(m, part);
         m.output(m.b.relu(m.view(grad, 64, f32({64}))));
         m.update(0, m.zero(grad));
       }},
      {"is scattered by columns",
       [&](Maker& m, ValueId grad, ValueId part) {
         sum(m, part);
         m.update(0, m.zero(grad));
       },
       {4, 64},
       {4, 16},
       1},
      {"has an output for its part",
       [&](Maker& m, ValueId grad, ValueId part) {
         m.output(part);
         m.update(0, m.zero(grad));
       }},
      {"has its part zeroed",
       [&](Maker& m, ValueId grad, ValueId part) {
         sum(m, m.zero(part));
         m.update(0, m.zero(grad));
       }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    Maker m;
    const ValueId grad = m.input("grad", f32(c.whole), PortKind::kState);
    const ValueId part = m.reduce_scatter(grad, f32(c.part), c.dim);
    c.then(m, grad, part);
    m.plan();
    CHECK(m.alias(part) != grad);
    CHECK_FALSE(lies_in_own_part(m.fragment, part));
  }
  // Nor does it where it is no state of this call's own, or what another stream reads or zeroes.
  for (const char* what : {"", "saved", "consumed", "made here", "zeroed beside", "read beside"}) {
    const std::string is = what;
    CAPTURE(is);
    Maker m;
    const bool state = is != "saved" && is != "consumed";
    const ValueId input = m.input("grad", f32({256}), state ? PortKind::kState : PortKind::kSaved);
    m.fragment.inputs[0].consumed = is == "consumed";
    const ValueId before = m.b.relu(input);
    m.output(before);
    const ValueId grad = is == "made here" ? m.all_reduce(m.b.relu(input)) : input;
    const ValueId part = m.reduce_scatter(grad, f32({64}));
    sum(m, part);
    const ValueId zero = m.zero(grad);
    if (state && is != "made here") m.update(0, zero);
    if (is == "made here") m.update(0, input);
    m.fragment.launches.resize(m.fragment.graph.ops.size());
    const auto launch = [&](ValueId v) -> Launch& {
      return m.fragment.launches[m.fragment.graph.value(v).producer.index()];
    };
    if (is == "zeroed beside") {
      launch(before).records = EventId(0);
      launch(zero) = {StreamId(1), {EventId(0)}, EventId()};
    } else if (is == "read beside") {
      launch(before) = {StreamId(1), {}, EventId(0)};
      launch(zero) = {StreamId(0), {EventId(0)}, EventId()};
    }
    if (is == "saved") {
      m.fragment.graph.ops.pop_back();
      m.fragment.graph.values.pop_back();
      m.fragment.launches.pop_back();
    }
    m.plan();
    CHECK(lies_in_own_part(m.fragment, part) == is.empty());
  }
}

TEST_CASE("of a list that is scattered each part lies in its own state, or apart where it is one") {
  for (const bool one : {false, true}) {
    CAPTURE(one);
    Maker m;
    const ValueId first = m.input("a", f32({128}), PortKind::kState),
                  second = m.input("b", f32({128}), PortKind::kState),
                  step = m.input("c", f32({32}), PortKind::kState);
    const ValueId other = one ? m.view(first, 64, f32({64})) : second;
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{{"dp"}};
    const ValueId whole = one ? m.view(first, 0, f32({64})) : first;
    const ir::TensorType part = f32({one ? 16 : 32});
    const ValueIds parts = m.b.emit(OpKind::kReduceScatter, attrs, {whole, other}, {part, part});
    ValueId sum = one ? m.view(step, 0, part) : step;
    for (const ValueId v : parts) sum = m.b.emit1(OpKind::kAccumulate, {}, {sum, v});
    m.update(0, m.zero(first));
    m.update(1, m.zero(second));
    m.update(2, step);
    m.plan();
    for (size_t i = 0; i < 2; ++i) {
      CHECK(lies_in_own_part(m.fragment, parts[i]) == !one);
      if (!one) CHECK(m.alias(parts[i]) == (i == 0 ? first : second));
    }
  }
}

TEST_CASE("a scattered state holds nothing but the rank's own part, which may be any") {
  Maker m;
  const ValueId grad = m.input("grad", f32({256}), PortKind::kState);
  const ValueId part = m.reduce_scatter(grad, f32({64}));
  m.output(m.b.relu(m.view(grad, 128, f32({64}))));
  m.output(m.b.scale(part, 2));
  m.update(0, m.zero(grad));
  m.plan();
  const auto findings = [&] {
    return fragment_memory_findings(m.fragment, make_fragment_info(m.fragment));
  };
  CHECK(findings().empty());
  REQUIRE(m.alias(part) != grad);
  m.fragment.alias_of[part.index()] = grad;
  m.fragment.workspace_offset[part.index()] = Fragment::kNotPlanned;
  REQUIRE(findings().size() == 1);
  CHECK(findings()[0].find(", but its byte 0 holds nothing") != std::string::npos);
}

TEST_CASE("a part that is read in its old form afterwards cannot be made in the flat buffer") {
  Maker m;
  const ValueId weights = m.input("weights", f32({128}), PortKind::kState);
  const ValueId old = m.view(weights, 0, f32({128}));
  const ValueId part = m.b.constant(1, f32({128}));
  const ValueId all = m.b.emit1(OpKind::kAssemble, ir::AssembleAttrs{{0}}, {weights, part});
  m.output(m.b.add(old, old));
  m.update(0, all);
  CHECK_THROWS_AS(m.plan(), CheckFailure);
}

TEST_CASE("an output that is an input, and an op that writes over a data input, are bugs") {
  Maker m;
  m.output(m.input("x", f32({64})));
  CHECK_THROWS_AS(m.plan(), CheckFailure);
  Maker n;
  const ValueId x = n.input("x", f32({64}), PortKind::kData);
  n.output(n.b.relu(n.b.emit1(OpKind::kZero, {}, {x})));
  CHECK_THROWS_AS(n.plan(), CheckFailure);
}

TEST_CASE("memory that another stream may still read is not given away") {
  // A value that only the other stream reads lives until the wait.
  Maker m;
  const ValueId x = m.input("x", f32({64}));
  const ValueId a = m.b.relu(x);
  const ValueId gathered = m.b.emit1(OpKind::kCopy, {}, {a});
  const ValueId b = m.b.dot(x, x, "i,i->");
  m.output(m.b.add(m.b.relu(gathered), m.b.broadcast(b, {64}, {})));
  m.fragment.launches.resize(m.fragment.graph.ops.size());
  m.fragment.launches[0].records = EventId(0);
  m.fragment.launches[1] = {StreamId(1), {EventId(0)}, EventId(1)};
  m.fragment.launches[3].waits = {EventId(1)};
  m.plan();
  CHECK(m.workspace(b) != m.workspace(a));
}
