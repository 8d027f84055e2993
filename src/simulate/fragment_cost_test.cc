// What ops of a fragment are to the clock, of graphs that are made by hand.
#include "simulate/fragment_cost.h"

#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/test_programs.h"

namespace mw::simulate {
namespace {

using ir::OpKind;
using pipeline::ActionKind;
using pipeline::PortKind;

// A fragment of one pipeline rank, two devices along each axis of its mesh.
class HandFragment {
 public:
  explicit HandFragment(ActionKind kind) {
    fragment_.kind = kind;
    program.mesh = cluster::Mesh({{"pp", 1}, {"dp", 2}, {"cp", 2}, {"tp", 2}});
    program.ranks.resize(1);
    on.device.memory_bandwidth = cluster::BytesPerSecond(1e30);
  }

  ValueId input(std::vector<int64_t> sizes, PortKind kind = PortKind::kData,
                DType dtype = DType::kBF16) {
    const ValueId v = graph().add_input(ir::make_type(dtype, std::move(sizes)), "x");
    fragment_.inputs.push_back({kind, v, "x"});
    return v;
  }
  ValueId add(OpKind kind, ir::Attributes attrs, ValueIds operands, std::vector<int64_t> sizes,
              DType dtype = DType::kBF16) {
    return results(kind, std::move(attrs), std::move(operands),
                   {ir::make_type(dtype, std::move(sizes))})[0];
  }
  ValueIds results(OpKind kind, ir::Attributes attrs, ValueIds operands,
                   std::vector<ir::TensorType> types) {
    ir::Op op;
    op.kind = kind;
    op.attrs = std::move(attrs);
    op.operands = std::move(operands);
    op.work = work;
    op.accumulates = accumulates;
    if (again) op.recompute = RegionId(0);
    return graph().op(graph().add_op(std::move(op), std::move(types))).results;
  }
  ValueId relu(ValueId v) { return add(OpKind::kRelu, {}, {v}, sizes_of(v)); }
  ValueId dot(const char* lhs, const char* rhs, const char* out, ValueId a, ValueId b,
              std::vector<int64_t> sizes) {
    return add(OpKind::kDot, ir::DotAttrs{lhs, rhs, out}, {a, b}, std::move(sizes));
  }
  ValueId collective(OpKind kind, const char* axis, ValueId v, std::vector<int64_t> sizes = {}) {
    const DType dtype = graph().type(v).dtype;
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{{axis}};
    return add(kind, attrs, {v}, sizes.empty() ? sizes_of(v) : std::move(sizes), dtype);
  }
  ValueId view(ValueId v) {
    const ValueId made = add(OpKind::kView, ir::ViewAttrs{}, {v}, sizes_of(v));
    fragment_.alias_of.resize(graph().values.size());
    fragment_.alias_of[made.index()] = v;
    return made;
  }

  FragmentCost cost() {
    fragment_.alias_of.resize(graph().values.size());
    fragment_.workspace_offset.resize(graph().values.size(), pipeline::Fragment::kNotPlanned);
    fragment_.launches.resize(graph().ops.size());
    Labels labels;
    return FragmentCoster(program, on, options, labels).cost(fragment_, 0);
  }
  ir::Graph& graph() { return fragment_.graph; }

  pipeline::Program program;
  cluster::Cluster on = unit_cluster(1, 1);
  Options options;
  // Of the ops that are added: what they are of, and whether they are recomputed ones, and add to
  // their last operand.
  ir::Work work = ir::Work::kForward;
  bool again = false, accumulates = false;

 private:
  std::vector<int64_t> sizes_of(ValueId v) {
    std::vector<int64_t> sizes;
    for (const ir::Dim& dim : graph().type(v).dims) sizes.push_back(dim.size);
    return sizes;
  }
  pipeline::Fragment fragment_;
};

}  // namespace

TEST_CASE("what a collective is to computation beside it is its kind's and its axes'") {
  struct Case {
    ActionKind fragment;
    OpKind kind;
    const char* axis;
    Beside beside;
  };
  for (const Case& c : {Case{ActionKind::kF, OpKind::kAllReduce, "tp", Beside::kTensor},
                        {ActionKind::kF, OpKind::kAllToAll, "tp", Beside::kOther},
                        {ActionKind::kF, OpKind::kAllToAll, "dp", Beside::kOther},
                        {ActionKind::kF, OpKind::kPermute, "cp", Beside::kOther},
                        {ActionKind::kF, OpKind::kAllGather, "cp", Beside::kRing},
                        {ActionKind::kUpdate, OpKind::kAllGather, "cp", Beside::kParamGather},
                        {ActionKind::kF, OpKind::kAllGather, "dp", Beside::kParamGather},
                        {ActionKind::kB, OpKind::kReduceScatter, "dp", Beside::kGradReduce}}) {
    HandFragment hand(c.fragment);
    hand.collective(c.kind, c.axis, hand.input({8}));
    CHECK(hand.cost().ops[0].beside == c.beside);
  }
  // Over cp alone weights are gathered and their gradients reduced, too.
  HandFragment hand(ActionKind::kB);
  hand.collective(OpKind::kAllGather, "cp", hand.input({4}, PortKind::kState), {8});
  hand.work = ir::Work::kWeightGrad;
  hand.collective(OpKind::kReduceScatter, "cp", hand.input({8}), {4});
  CHECK(hand.cost().ops[0].beside == Beside::kParamGather);
  CHECK(hand.cost().ops[1].beside == Beside::kGradReduce);
}

TEST_CASE("gradients under weights in half precision are summed in the stack's format") {
  struct Case {
    ActionKind fragment;
    ir::Work work;
    const char* axis;
    DType weights, summed;
    int64_t gradients, bytes;
  };
  using ir::Work;
  for (const Case& c :
       {Case{ActionKind::kUpdate, Work::kForward, "dp", DType::kBF16, DType::kF32, 8, 16},
        {ActionKind::kUpdate, Work::kForward, "dp", DType::kBF16, DType::kF64, 0, 64},  // the norm
        {ActionKind::kUpdate, Work::kForward, "dp", DType::kF32, DType::kF32, 0, 32},
        {ActionKind::kB, Work::kWeightGrad, "dp", DType::kBF16, DType::kF32, 8, 16},
        {ActionKind::kB, Work::kWeightGrad, "cp", DType::kBF16, DType::kF32, 8, 16},
        {ActionKind::kB, Work::kWeightGrad, "tp", DType::kBF16, DType::kF32, 8, 16},
        {ActionKind::kB, Work::kInputGrad, "tp", DType::kBF16, DType::kF32, 0, 32},
        {ActionKind::kB, Work::kInputGrad, "cp", DType::kBF16, DType::kF32, 0, 32}}) {
    HandFragment hand(c.fragment);
    hand.on.device.attained.gradient_bytes = 2;
    hand.work = c.work;
    pipeline::Buffer weights;
    const ir::TensorType type = ir::make_type(c.weights, {8});
    weights.layout = {type, type, sharding::replicated(1)};
    weights.category = pipeline::Category::kWeights;
    hand.program.ranks[0].buffers = {weights};
    hand.collective(OpKind::kAllReduce, c.axis, hand.input({8}, PortKind::kState, c.summed));
    const FragmentCost cost = hand.cost();
    REQUIRE(cost.collectives_of.size() == 1);
    CHECK(cost.collectives_of[0].gradients == c.gradients);
    CHECK(cost.collectives_of[0].bytes == Bytes(c.bytes));
  }
}

TEST_CASE("a stack without global sums leaves out those of the norm and of the loss") {
  for (const bool sums : {true, false}) {
    HandFragment hand(ActionKind::kUpdate);
    hand.on.stack.global_sums = sums;
    hand.collective(OpKind::kAllReduce, "dp", hand.input({8}, PortKind::kState, DType::kF64));
    hand.collective(OpKind::kAllReduce, "dp", hand.input({1}, PortKind::kState, DType::kF32));
    hand.collective(OpKind::kAllReduce, "dp", hand.input({8}, PortKind::kState, DType::kF32));
    const FragmentCost cost = hand.cost();
    CHECK(cost.ops[0].alias == !sums);
    CHECK(cost.ops[1].alias == !sums);
    CHECK(!cost.ops[2].alias);
  }
}

TEST_CASE("weights that serve a recomputation are gathered again, in part") {
  enum class Reader { kRecomputed, kPlain, kView };
  for (const Reader reader : {Reader::kRecomputed, Reader::kPlain, Reader::kView}) {
    for (const PortKind kind : {PortKind::kState, PortKind::kSaved}) {
      HandFragment hand(ActionKind::kB);
      hand.on.stack.gathered_again = 0.5;
      const ValueId w = hand.collective(OpKind::kAllGather, "dp", hand.input({4}, kind), {8});
      hand.again = reader != Reader::kPlain;
      const ValueId part = hand.view(w);
      hand.again = reader == Reader::kRecomputed;
      hand.relu(part);
      const bool twice = reader == Reader::kRecomputed && kind == PortKind::kState;
      CHECK(hand.cost().collectives_of[0].times == (twice ? 1.5 : 1));
    }
  }
}

TEST_CASE("which collectives hold up computation, and which go by their data alone") {
  struct Case {
    ActionKind fragment;
    std::vector<const char*> words;
    bool in_order, holds;
  };
  for (const Case& c : {Case{ActionKind::kF, {}, true, true},
                        {ActionKind::kF, {"collectives"}, false, false},
                        {ActionKind::kF, {"collectives", "no-tensor"}, false, true},
                        {ActionKind::kF, {"serial"}, false, true},
                        {ActionKind::kUpdate, {"serial"}, true, true},
                        {ActionKind::kUpdate, {"serial", "grad_reduce"}, false, false},
                        {ActionKind::kUpdate, {"param_gather"}, false, false}}) {
    HandFragment hand(c.fragment);
    for (const char* word : c.words) REQUIRE(set_overlap(hand.options.overlap, word));
    hand.collective(OpKind::kAllReduce, "tp", hand.input({8}));
    const FragmentCost cost = hand.cost();
    CHECK(cost.in_order == c.in_order);
    CHECK((cost.ops[0].stream == 0) == c.holds);
  }
}

TEST_CASE("links are shared by collectives of several streams that cross them") {
  for (const char* second : {"tp", "dp"}) {
    HandFragment hand(ActionKind::kF);
    hand.options.overlap.collectives = true;
    const ValueId x = hand.input({8});
    hand.collective(OpKind::kAllReduce, "tp", x);
    hand.collective(OpKind::kAllReduce, second, x);
    const FragmentCost cost = hand.cost();
    const bool shared = std::string(second) == "dp";
    CHECK(cost.shared_levels == (shared ? 1 : 0));
    CHECK(cost.queues.size() == (shared ? 3 : 2));
  }
}

TEST_CASE("collectives along different sides of a torus share no links") {
  // Devices lie along the last side first: tp and cp of two are the inner side of four.
  for (const char* second : {"dp", "cp"}) {
    HandFragment hand(ActionKind::kF);
    hand.on.links[0].kind = cluster::LinkKind::kTorus;
    hand.on.links[0].torus = {2, 4};
    hand.on.links[0].devices = hand.on.devices = 8;
    hand.options.overlap.collectives = true;
    const ValueId x = hand.input({8});
    hand.collective(OpKind::kAllReduce, "tp", x);
    hand.collective(OpKind::kAllReduce, second, x);
    const FragmentCost cost = hand.cost();
    const bool shared = std::string(second) == "cp";
    CHECK((cost.shared_levels != 0) == shared);
    CHECK(cost.ops[0].levels == 1);
    CHECK(cost.ops[1].levels == 1);
    CHECK((cost.ops[0].links & cost.ops[1].links) == cost.shared_levels);
  }
}

TEST_CASE("a torus's sides have levels behind all links', and those of networks one port") {
  cluster::Cluster on = unit_cluster();
  on.links.resize(3);
  CHECK(side_level(on, {2, 1, 0}) == 3);
  CHECK(side_level(on, {2, 1, 2}) == 5);
  for (cluster::Link& link : on.links) link.kind = cluster::LinkKind::kNetwork;
  on.links[0].kind = cluster::LinkKind::kNvlink;
  CHECK(on.port_levels() == std::vector<size_t>{0, 1, 1});
}

TEST_CASE("an update's outputs that are gathered last, through views too, are weights made whole") {
  for (const ActionKind kind : {ActionKind::kUpdate, ActionKind::kB}) {
    HandFragment hand(kind);
    const ValueId x = hand.input({8}, PortKind::kState);
    const ValueId sum = hand.relu(x);
    const ValueId first = hand.collective(OpKind::kAllGather, "dp", x, {16});
    const ValueId read = hand.collective(OpKind::kAllGather, "dp", x, {16});
    const ValueId last = hand.collective(OpKind::kAllGather, "tp", x, {16});
    hand.relu(read);
    hand.graph().outputs = {sum, hand.view(last), read, first};
    const FragmentCost cost = hand.cost();
    CHECK(cost.gathers == std::vector<int32_t>{1, 3});
    REQUIRE(cost.gathered.size() == (kind == ActionKind::kUpdate ? 2 : 0));
    if (cost.gathered.empty()) continue;
    CHECK(cost.gathered[0].op == 3);
    CHECK(cost.gathered[0].output == 1);
    CHECK(cost.gathered[1].op == 1);
    CHECK(cost.gathered[1].output == 3);
  }
}

TEST_CASE("a stack that saves what it has cast reads weights once a step, what is saved never") {
  HandFragment hand(ActionKind::kI);
  hand.program.microbatches = 4;
  hand.options.fp8 = cost::Fp8::kTensor;
  const ValueId x = hand.input({64, 32}, PortKind::kSaved),
                w = hand.input({16, 32}, PortKind::kState);
  hand.dot("bd", "hd", "bh", x, w, {64, 16});
  CHECK(hand.cost().works[0].new_values == 64 * 32 + 16 * 32);
  hand.on.stack.narrow_saved = true;
  const cost::OpWork work = hand.cost().works[0];
  CHECK(work.new_values == 16 * 32 / 4.0);
  CHECK(work.new_layouts == 64 * 32 + 16 * 32 / 4.0);
}

TEST_CASE("products alone count as made again, and are not fused where kernels were measured") {
  for (const bool measured : {false, true}) {
    HandFragment hand(ActionKind::kB);
    if (measured) hand.on.device.kernel_rates = {{"dot", 1}};
    hand.again = true;
    const ValueId x = hand.input({64, 32}), bias = hand.input({32});
    const ValueId biased = hand.add(OpKind::kBiasAdd, {}, {x, bias}, {64, 32});
    const ValueId sum = hand.add(OpKind::kAdd, {}, {x, biased}, {64, 32});
    hand.dot("bd", "hd", "bh", sum, hand.input({16, 32}), {64, 16});
    const FragmentCost cost = hand.cost();
    CHECK(cost.recomputed_flops == 2 * 64 * 32 * 16);
    CHECK(cost.flops > cost.recomputed_flops);
    CHECK((cost.works[0].kind == cost::OpWork::Kind::kFused) == !measured);
  }
}

TEST_CASE("a state is read by the first op that does, and written by the last") {
  HandFragment hand(ActionKind::kB);
  const ValueId w = hand.input({8}, PortKind::kState);
  const ValueId part = hand.view(w);
  hand.relu(hand.input({8}));
  for (int i = 0; i < 2; ++i) hand.relu(part);
  const FragmentCost cost = hand.cost();
  REQUIRE(cost.state_uses.size() == 1);
  CHECK(cost.state_uses[0].first_read == 2);
  CHECK(cost.state_uses[0].last_write == -1);
}

TEST_CASE("products run in parts along what they gather or scatter") {
  HandFragment hand(ActionKind::kF);
  hand.options.overlap.async_tp = true;
  const ValueId x = hand.collective(OpKind::kAllGather, "tp", hand.input({4, 3}), {8, 3});  // op 0
  hand.dot("bk", "nk", "bn", x, hand.input({5, 3}), {8, 5});                    // of rows of x
  hand.dot("kn", "bk", "nb", hand.input({3, 5}), x, {5, 8});                    // the same, turned
  hand.dot("bn", "bk", "nk", hand.input({8, 5}), x, {5, 3});                    // sums over them
  const ValueId y = hand.dot("bk", "nk", "bn", x, hand.input({6, 3}), {8, 6});  // op 4
  hand.collective(OpKind::kReduceScatter, "tp", y, {4, 6});                     // op 5
  hand.collective(OpKind::kAllGather, "dp", hand.input({4, 3}), {8, 3});
  const FragmentCost cost = hand.cost();
  REQUIRE(cost.rings.size() == 2);
  CHECK(!cost.rings[0].attention);
  CHECK(cost.rings[0].size == 2);
  CHECK(cost.rings[0].collectives == std::vector<int32_t>{0});
  CHECK(cost.rings[0].computes == std::vector<int32_t>{1, 2, 4});
  CHECK(cost.rings[0].summed == Bytes(0));
  CHECK(cost.rings[1].collectives == std::vector<int32_t>{5});
  CHECK(cost.rings[1].computes == std::vector<int32_t>{4});
  CHECK(cost.rings[1].summed == Bytes(8 * 6 * 2));
}

TEST_CASE("attention over parts of a sequence rings with keys and values, and their gradients") {
  for (const bool backward : {false, true}) {
    HandFragment hand(backward ? ActionKind::kB : ActionKind::kF);
    const auto type = [](int64_t length) { return ir::make_type(DType::kBF16, {2, length, 4, 8}); };
    const auto gathered = [&] {
      return hand.collective(OpKind::kAllGather, "cp", hand.input({2, 4, 4, 8}), {2, 8, 4, 8});
    };
    const ValueId q = hand.input({2, 4, 4, 8}), k = gathered(), v = gathered();
    const ValueId positions = hand.input({2, 8}, PortKind::kData, DType::kI32);
    ir::AttentionAttrs attrs;
    attrs.queries.axes = {"cp"};
    const ir::TensorType lse = ir::make_type(DType::kF32, {2, 4, 4});
    if (!backward) {
      hand.results(OpKind::kAttention, attrs, {q, k, v, positions}, {type(4), lse});
    } else {
      const ValueId dy = hand.input({2, 4, 4, 8}), y = hand.input({2, 4, 4, 8}),
                    sums = hand.input({2, 4, 4}, PortKind::kData, DType::kF32);
      const ValueIds grads =
          hand.results(OpKind::kAttentionGrad, attrs, {dy, q, k, v, y, sums, positions},
                       {type(4), type(8), type(8)});
      for (const size_t i : {1, 2})
        hand.collective(OpKind::kReduceScatter, "cp", grads[i], {2, 4, 4, 8});
    }
    const FragmentCost cost = hand.cost();
    REQUIRE(cost.rings.size() == 1);
    CHECK(cost.rings[0].attention);
    CHECK(cost.rings[0].size == 2);
    CHECK(cost.rings[0].computes == std::vector<int32_t>{2});
    CHECK(cost.rings[0].collectives ==
          (backward ? std::vector<int32_t>{0, 1, 3, 4} : std::vector<int32_t>{0, 1}));
  }
}

TEST_CASE("products add gradients up, or kernels behind them, which autograd's first do not have") {
  using cluster::Accumulation;
  struct Case {
    Accumulation by;
    DType weights;
    int64_t kept;  // bytes of an element in which gradients are summed
    int32_t microbatches;
    PortKind into;       // ZeRO's temporary buffer of a microbatch is no state
    double adds, bytes;  // an element of the gradient
  };
  constexpr double kOperands = 2.0 * (4 * 8 + 4 * 16) / (8 * 16);  // bytes, of half precision
  for (const Case& c :
       {Case{Accumulation::kProducts, DType::kBF16, 4, 4, PortKind::kState, 0, kOperands + 8},
        {Accumulation::kBuffers, DType::kBF16, 4, 4, PortKind::kState, 10, kOperands + 2},
        {Accumulation::kBuffers, DType::kBF16, 2, 4, PortKind::kState, 6, kOperands + 2},
        {Accumulation::kBuffers, DType::kF32, 2, 1, PortKind::kState, 12, 2 * kOperands + 4},
        {Accumulation::kBuffers, DType::kBF16, 4, 4, PortKind::kData, 0, kOperands + 8},
        {Accumulation::kAutograd, DType::kBF16, 4, 1, PortKind::kState, 0, kOperands + 2},
        {Accumulation::kAutograd, DType::kBF16, 4, 4, PortKind::kState, (6 + 3 * 10) / 4.0,
         kOperands + 2},
        {Accumulation::kAutograd, DType::kBF16, 2, 4, PortKind::kState, 3 * 6 / 4.0, kOperands + 2},
        {Accumulation::kAutograd, DType::kF32, 4, 2, PortKind::kState, 12 / 2.0,
         2 * kOperands + 4}}) {
    HandFragment hand(ActionKind::kB);
    hand.on.stack.accumulation = c.by;
    hand.on.device.attained.gradient_bytes = c.kept;
    hand.program.microbatches = c.microbatches;
    pipeline::Buffer weights;
    weights.category = pipeline::Category::kWeights;
    const ir::TensorType type = ir::make_type(c.weights, {1});
    weights.layout = {type, type, sharding::replicated(1)};
    hand.program.ranks[0].buffers.push_back(weights);
    hand.work = ir::Work::kWeightGrad;
    const ValueId dy = hand.input({4, 8}, PortKind::kData, c.weights),
                  x = hand.input({4, 16}, PortKind::kData, c.weights),
                  sum = hand.input({8, 16}, c.into, DType::kF32);
    hand.accumulates = true;
    hand.add(OpKind::kDot, ir::DotAttrs{"bn", "bk", "nk"}, {dy, x, sum}, {8, 16}, DType::kF32);
    const FragmentCost cost = hand.cost();
    CHECK(cost.works[0].adds == c.adds * 8 * 16);
    CHECK(cost.works[0].bytes == c.bytes * 8 * 16);
    CHECK(cost.works[0].shape == cost::ProductShape{1, 8, 16, 4});
  }
}

TEST_CASE("an update sets gradients to zero where they have a buffer that stays") {
  for (const auto by : {cluster::Accumulation::kProducts, cluster::Accumulation::kBuffers,
                        cluster::Accumulation::kAutograd}) {
    for (const ActionKind kind : {ActionKind::kUpdate, ActionKind::kB}) {
      CAPTURE(static_cast<int>(by));
      HandFragment hand(kind);
      hand.on.stack.accumulation = by;
      hand.on.device.attained.update_traffic = 3;  // of the optimizer alone
      const ValueId sum = hand.input({8, 16}, PortKind::kState);
      hand.add(OpKind::kZero, ir::NoAttrs{}, {sum}, {8, 16});
      const FragmentCost cost = hand.cost();
      const bool goes = by == cluster::Accumulation::kAutograd && kind == ActionKind::kUpdate;
      CHECK((cost.works[0].kind == cost::OpWork::Kind::kFused) == goes);
      if (!goes) CHECK(cost.works[0].kind == cost::OpWork::Kind::kStream);
      CHECK((cost.ops[0].device == 0) == goes);
    }
  }
}

TEST_CASE("replicas share the microbatches whose gradients are added up, slices are runs of own") {
  struct Case {
    int32_t microbatches, replica, slice;  // of the last
    double runs;
  };
  for (const Case& c : {Case{8, 0, -1, 8},
                        {8, 1, -1, 4},
                        {8, 3, -1, 2},
                        {2, 1, -1, 1},
                        {1, 1, -1, 1},
                        {8, 0, 1, 16},
                        {1, 0, 3, 4}}) {
    CAPTURE(c.runs);
    HandFragment hand(ActionKind::kB);
    hand.on.stack.accumulation = cluster::Accumulation::kAutograd;
    hand.program.microbatches = c.microbatches;
    pipeline::Command call;
    call.action.replica = c.replica;
    hand.program.ranks[0].commands = {call, pipeline::Command()};
    hand.program.fragments.resize(2);
    hand.program.fragments[0].slice = c.slice;
    const ValueId dy = hand.input({4, 8}), x = hand.input({4, 16}),
                  sum = hand.input({8, 16}, PortKind::kState);
    hand.accumulates = true;
    hand.add(OpKind::kDot, ir::DotAttrs{"bn", "bk", "nk"}, {dy, x, sum}, {8, 16}, DType::kF32);
    CHECK(hand.cost().works[0].adds == (c.runs - 1) / c.runs * 12 * 8 * 16);
  }
}

TEST_CASE("shards are copied at the first op that reads them, behind the one that made them") {
  HandFragment hand(ActionKind::kB);
  hand.on.stack.copies_shards = true;
  const ValueId w =
      hand.collective(OpKind::kAllGather, "dp", hand.input({4}, PortKind::kState), {8});  // op 0
  const ValueId first = hand.relu(w);                                                     // op 1
  hand.relu(hand.view(w));                                                                // op 3
  hand.work = ir::Work::kWeightGrad;
  hand.collective(OpKind::kReduceScatter, "dp", hand.view(first), {4});  // op 5
  hand.collective(OpKind::kAllReduce, "dp", first);
  const FragmentCost cost = hand.cost();
  REQUIRE(cost.collectives_of.size() == 3);
  CHECK(cost.collectives_of[0].copied_at == 1);
  CHECK(cost.collectives_of[1].copied_at == 1);
  CHECK(cost.collectives_of[2].copied_at == -1);
}

TEST_CASE("tensor parallelism's gathers for linear layers alone carry fp8") {
  struct Case {
    ActionKind fragment;
    const char* axis;
    bool loss, narrow;
  };
  for (const Case& c : {Case{ActionKind::kF, "tp", false, true},
                        {ActionKind::kF, "tp", true, false},
                        {ActionKind::kF, "dp", false, false},
                        {ActionKind::kUpdate, "tp", false, false}}) {
    HandFragment hand(c.fragment);
    const ValueId x = hand.collective(OpKind::kAllGather, c.axis, hand.input({4, 3}), {8, 3});
    const ValueId y = hand.dot("bk", "nk", "bn", x, hand.input({5, 3}), {8, 5});
    if (c.loss) hand.add(OpKind::kCrossEntropyMax, ir::CrossEntropyAttrs{}, {y}, {8}, DType::kF32);
    const FragmentCost cost = hand.cost();
    CHECK(cost.works[0].gathers_narrow == c.narrow);
    CHECK((cost.works[1].kind == cost::OpWork::Kind::kLogits) == c.loss);
  }
}

}  // namespace mw::simulate
