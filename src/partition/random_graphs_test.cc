// Random graphs with random shardings given to some of their values: what is partitioned computes
// what the global graph computes, whatever else a memo has seen.
#include <doctest/doctest.h>

#include "base/error.h"
#include "ops/builder.h"
#include "ops/op_def.h"
#include "partition/partitioner.h"
#include "partition/test_ranks.h"

namespace mw::partition::random_graphs_test {
namespace {

using ir::OpKind;
using ir::Work;
using sharding::Sharding;

class Net {
 public:
  Net(uint64_t seed, const cluster::Mesh& mesh) : mesh_(mesh), seed_(seed) {
    size_ = std::vector<int64_t>{4, 5, 6, 7, 8}[static_cast<size_t>(below(5))];
    for (int i = 0; i < 4; ++i) add_input(i, below(2) == 0);
    for (int64_t n = 3 + below(5); n > 0; --n) add_op();
    const size_t forward = graph_.ops.size();
    builder_.work = Work::kInputGrad;
    if (below(2) == 0) clone(forward);
    for (int64_t n = 2 + below(3); n > 0; --n) add_op();
    builder_.work = Work::kWeightGrad;
    for (int64_t n = below(3); n > 0; --n) accumulate();
    for (int64_t n = 1 + below(2); n > 0; --n) graph_.outputs.push_back(some());
    graph_.name = "random";
    ir::verify(graph_, &module_);
    give();
  }

  const std::vector<std::optional<Sharding>>& given() const { return given_; }
  Partitioned partitioned(Memo* memo) const {
    return partition({graph_, module_, mesh_, given_, memo});
  }
  std::string difference(const Partitioned& parts) const {
    std::vector<test::Tensor> inputs;
    for (const ir::Input& input : graph_.inputs) {
      inputs.push_back(
          test::random_tensor(graph_.type(input.value), graph_.label(input.value), seed_));
    }
    return test::difference(graph_, inputs, parts, mesh_, {.tail = 1e3, .relative = 1});
  }

 private:
  int64_t below(int64_t n) {
    return static_cast<int64_t>(random_uniform(RngKey{seed_, 0, 1}, next_++) *
                                static_cast<double>(n));
  }
  ir::TensorType matrix() const { return ir::make_type(DType::kF32, {size_, size_}); }
  ValueId some() {
    return values_[static_cast<size_t>(below(static_cast<int64_t>(values_.size())))];
  }

  ValueId state_input(const std::string& name, ir::StateKind kind) {
    ir::State state;
    state.name = name;
    state.type = matrix();
    state.kind = kind;
    return graph_.add_input(state.type, name, module_.add_state(state));
  }
  void add_input(int i, bool is_weight) {
    const std::string name = fmt::format("{}{}", is_weight ? "w" : "x", i);
    values_.push_back(is_weight ? state_input(name, ir::StateKind::kWeight)
                                : graph_.add_input(matrix(), name));
  }

  // Of matrices of one size, so that any op fits; every one makes some again.
  void add_op() {
    ops::Builder& b = builder_;
    const ValueId x = some(), y = some();
    const auto over = [&](ir::Reduction reduction) {
      return b.broadcast(b.reduce(x, reduction, {static_cast<int>(below(2))}), {size_, size_},
                         {static_cast<int>(below(2))});
    };
    const auto made = [&] {
      switch (below(13)) {
        case 0: return b.unary(OpKind::kNeg, x);
        case 1: return b.scale(x, 0.5);
        case 2: return b.unary(OpKind::kTanh, x);
        case 3: return b.transpose(x, {1, 0});
        case 4: return b.add(x, y);
        case 5: return b.mul(x, y);
        case 6: return b.dot(x, y, "ab,bc->ac");
        case 7: return b.dot(x, y, "ab,cb->ac");
        case 8: return b.dot(x, y, "ab,ac->bc");
        case 9: return over(ir::Reduction::kSum);
        case 10: return over(ir::Reduction::kMax);
        case 11: return over(ir::Reduction::kMin);
        default: return b.unary(OpKind::kExp, b.unary(OpKind::kTanh, x));
      }
    };
    values_.push_back(made());
  }

  // Some of the forward ops again, on what their originals read or its clones.
  void clone(size_t forward) {
    std::vector<ValueId> again(graph_.values.size());
    for (size_t v = 0; v < again.size(); ++v) again[v] = ValueId(static_cast<int64_t>(v));
    for (size_t i = 0; i < forward; ++i) {
      if (below(3) == 0) continue;
      ir::Op op = graph_.ops[i];
      const ValueId result = op.results[0];
      for (ValueId& v : op.operands) v = again[v.index()];
      op.results.clear();
      op.work = Work::kInputGrad;
      op.recompute = RegionId(0);
      const ir::TensorType type = graph_.type(result);
      again[result.index()] = graph_.op(graph_.add_op(std::move(op), {type})).results[0];
      if (type == matrix()) values_.push_back(again[result.index()]);
    }
  }

  void accumulate() {
    const auto name = fmt::format("grad{}", module_.states.size());
    const ValueId acc = state_input(name, ir::StateKind::kGradient);
    const StateId state = graph_.inputs.back().state;
    const ValueId g = builder_.dot(some(), some(), "ab,ac->bc");
    graph_.updates.push_back({state, builder_.emit1(OpKind::kAccumulate, ir::NoAttrs{}, {acc, g})});
  }

  void give() {
    given_.resize(graph_.values.size());
    for (size_t v = 0; v < given_.size(); ++v) {
      if (below(3) > 0) continue;
      Sharding sharding = sharding::replicated(graph_.values[v].type.rank());
      for (const cluster::Axis& axis : mesh_.axes()) {
        const int64_t dim = below(sharding.dims.size() == 2 ? 4 : 3);
        if (dim < static_cast<int64_t>(sharding.dims.size()))
          sharding.dims[static_cast<size_t>(dim)].push_back(axis.name);
      }
      given_[v] = sharding;
    }
  }

  const cluster::Mesh& mesh_;
  uint64_t seed_, next_ = 0;
  int64_t size_ = 4;
  ir::Module module_;
  ir::Graph graph_;
  ops::Builder builder_{graph_};
  std::vector<ValueId> values_;  // matrices
  std::vector<std::optional<Sharding>> given_;
};

TEST_CASE("random graphs compute the same on all ranks, with a memo of their own or a shared one") {
  const cluster::Mesh meshes[] = {cluster::Mesh({{"dp", 2}, {"tp", 2}}), cluster::Mesh({{"tp", 4}}),
                                  cluster::Mesh({{"tp", 3}, {"dp", 2}})};
  for (const cluster::Mesh& mesh : meshes) {
    Memo memo(mesh);
    for (uint64_t seed = 0; seed < 200; ++seed) {
      CAPTURE(cluster::to_string(mesh));
      CAPTURE(seed);
      const Net net(seed, mesh);
      const Partitioned parts = net.partitioned(nullptr);
      ir::verify(parts.graph, nullptr);
      ops::verify_types(parts.graph);
      CHECK(net.difference(parts) == "");
      for (const ir::Op& op : parts.graph.ops) {
        // What the partitioner adds is an input gradient at most.
        if (ir::is_collective(op.kind) || op.kind == OpKind::kPadMask || op.kind == OpKind::kPad)
          CHECK(op.work != Work::kWeightGrad);
      }
      for (size_t v = 0; v < parts.origins.size(); ++v) {
        const sharding::Origin& origin = parts.origins[v];
        if (origin.kind != sharding::Origin::Kind::kCheaper) continue;
        CHECK(origin.propagated->dims != parts.shardings[parts.main_version[v].index()].dims);
        CHECK(!net.given()[v].has_value());
      }
      CHECK(ir::to_text(net.partitioned(&memo).graph) == ir::to_text(parts.graph));
    }
  }
}

}  // namespace
}  // namespace mw::partition::random_graphs_test
