// The whole way from a model to one rank's graphs of every stage, on interpreted ranks, against the
// global graph.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "compile/cut.h"
#include "ops/op_def.h"
#include "partition/partitioner.h"
#include "partition/test_nets.h"
#include "partition/test_ranks.h"
#include "transform/autodiff.h"

namespace mw::compile {
namespace {

using partition::Partitioned;
using partition::test::NetSizes;
using partition::test::PerRank;
using partition::test::Tensor;
using sharding::Sharding;

struct Case {
  NetSizes sizes;
  cluster::Mesh mesh;
  bool sp = false;
};

Tensor input_of(const ir::Graph& graph, const ir::Input& input, const NetSizes& n) {
  const std::string& name = graph.value(input.value).name;
  Tensor tensor = partition::test::random_tensor(graph.type(input.value), name);
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    double& x = tensor.values[i];
    if (name == "tokens" || name == "targets")
      x = std::floor((x + 1) / 2 * static_cast<double>(n.V));
    if (name == "positions") x = static_cast<double>(static_cast<int64_t>(i) % n.S);
    if (name == "loss_scale") x = 0.25;
  }
  return tensor;
}

// Runs a stage after the stages whose values it receives. A boundary value goes between ranks as it
// is, garbage in its padded tail included.
class StagesRun {
 public:
  StagesRun(const ir::Module& module, const ir::Graph& whole, std::vector<StageGraph> stages,
            const Case& c)
      : c_(c), whole_(whole), stages_(std::move(stages)) {
    const sharding::Strategy strategy = partition::test::strategy(c.sp);
    const auto of = [&](LayerId) -> const sharding::Strategy& { return strategy; };
    const auto given = partition::given_shardings(whole, module, c.mesh, of);
    for (const StageGraph& stage : stages_) {
      std::vector<std::optional<Sharding>> mine;
      for (const ValueId v : stage.whole) mine.push_back(given[v.index()]);
      parts_.push_back(partition::partition({stage.graph, module, c.mesh, mine}));
      ops::verify_types(parts_.back().graph);
    }
    for (const ir::Input& input : whole.inputs) inputs_.push_back(input_of(whole, input, c.sizes));
  }

  // Empty, or what of the updates differs from the global graph.
  std::string difference() {
    const std::vector<Tensor> expected = ops::interpret(whole_, inputs_);
    for (size_t s = 0; s < stages_.size(); ++s) forward(s);
    for (size_t s = stages_.size(); s-- > 0;) {
      const std::vector<PerRank>& values = run(s);
      const Partitioned& part = parts_[s];
      for (size_t u = 0; u < part.graph.updates.size(); ++u) {
        const ValueId local = part.graph.updates[u].value;
        const ValueId global = stages_[s].whole[part.global_value[local.index()].index()];
        const std::string problem =
            compare(values[local.index()], expected[global.index()], part.shardings[local.index()]);
        if (!problem.empty())
          return fmt::format("stage {}: {}: {}", s, whole_.label(global), problem);
      }
    }
    return "";
  }

 private:
  std::string compare(const PerRank& shards, const Tensor& want, const Sharding& sharding) const {
    std::string problem;
    const auto got = partition::test::unshard(shards, want.type, sharding, c_.mesh, problem);
    if (!got) return problem;
    for (size_t i = 0; i < want.values.size(); ++i) {
      if (!(std::abs(got->values[i] - want.values[i]) <= 1e-9 * (1 + std::abs(want.values[i])))) {
        return fmt::format("[{}] is {}, must be {}", i, got->values[i], want.values[i]);
      }
    }
    // Shards of gradients go into flat buffers as they are: the tails have to be zeros.
    const ir::TensorType local = sharding::local_type(want.type, sharding, c_.mesh);
    for (int64_t r = 0; r < c_.mesh.size(); ++r) {
      if (tail_sum(shards[static_cast<size_t>(r)], local, want.type, sharding, RankId(r)) != 0)
        return "garbage in the tail";
    }
    return "";
  }
  double tail_sum(const Tensor& shard, const ir::TensorType& local, const ir::TensorType& global,
                  const Sharding& sharding, RankId rank) const {
    double sum = 0;
    for (size_t i = 0; i < shard.values.size(); ++i) {
      int64_t rest = static_cast<int64_t>(i);
      bool tail = false;
      for (size_t d = local.dims.size(); d-- > 0;) {
        const int64_t at = rest % local.dims[d].size;
        rest /= local.dims[d].size;
        tail = tail || c_.mesh.index(rank, sharding.dims[d]) * local.dims[d].size + at >=
                           global.dims[d].size;
      }
      if (tail) sum += std::abs(shard.values[i]);
    }
    return sum;
  }

  // Only what other stages need early: the values that the forward pass sends.
  void forward(size_t s) { run(s); }

  // The interpretation of a stage with all boundary values that are there by now, zeros for the
  // others.
  const std::vector<PerRank>& run(size_t s) {
    const Partitioned& part = parts_[s];
    std::vector<PerRank> inputs;
    for (const ir::Input& input : part.graph.inputs) {
      const ValueId in_stage = part.global_value[input.value.index()];
      inputs.push_back(of_input(s, in_stage, part.shardings[input.value.index()]));
    }
    values_[s] = partition::test::run_ranks(part.graph, inputs, c_.mesh);
    for (const Crossing& send : stages_[s].sends) {
      sent_[send.whole] = values_[s][part.main_version[send.value.index()].index()];
    }
    return values_[s];
  }
  PerRank of_input(size_t s, ValueId in_stage, const Sharding& sharding) {
    const ValueId whole = stages_[s].whole[in_stage.index()];
    for (size_t i = 0; i < whole_.inputs.size(); ++i) {
      if (whole_.inputs[i].value == whole)
        return partition::test::shard(inputs_[i], sharding, c_.mesh, 0);
    }
    if (const auto it = sent_.find(whole); it != sent_.end()) return it->second;
    return partition::test::shard(ops::zeros(whole_.type(whole)), sharding, c_.mesh, 0);
  }

  const Case& c_;
  const ir::Graph& whole_;
  std::vector<StageGraph> stages_;
  std::vector<Partitioned> parts_;
  std::vector<Tensor> inputs_;
  std::map<size_t, std::vector<PerRank>> values_;
  std::map<ValueId, PerRank> sent_;
};

std::string difference(ir::Module module, const Case& c,
                       const std::vector<int32_t>& stage_of_layer) {
  transform::differentiate(module);
  ir::Graph whole = *module.find_graph("microbatch");
  whole.outputs.clear();
  ir::drop_dead(whole);
  std::vector<StageGraph> stages = cut(whole, stage_of_layer, stage_of_layer.back() + 1);
  for (const StageGraph& stage : stages) ir::verify(stage.graph, &module);
  return StagesRun(module, whole, std::move(stages), c).difference();
}

std::vector<Case> cases(const std::vector<NetSizes>& sizes) {
  std::vector<Case> list;
  for (const NetSizes& n : sizes) {
    for (const cluster::Mesh& mesh :
         {cluster::Mesh({{"tp", 2}}), cluster::Mesh({{"dp", 2}, {"tp", 2}}),
          cluster::Mesh({{"tp", 4}}), cluster::Mesh({{"tp", 2}, {"dp", 4}})}) {
      for (const bool sp : {false, true}) list.push_back({n, mesh, sp});
    }
  }
  return list;
}

TEST_CASE("the gradients of a GPT's stages on all ranks are those of the global graph") {
  for (const Case& c :
       cases({{}, {.S = 5, .F = 11, .V = 13}, {.S = 7, .F = 6, .V = 10, .blocks = 1}})) {
    CAPTURE(cluster::to_string(c.mesh));
    CAPTURE(c.sp);
    CAPTURE(c.sizes.S);
    const ir::Module module = partition::test::gpt_net(c.sizes);
    const auto one_stage = std::vector<int32_t>(module.layers.size(), 0);
    std::vector<int32_t> one_each;
    for (size_t i = 0; i < module.layers.size(); ++i) one_each.push_back(static_cast<int32_t>(i));
    CHECK(difference(module, c, one_stage) == "");
    CHECK(difference(module, c, one_each) == "");
  }
}

TEST_CASE("the gradients of an MLP's stages with a skip over them are those of the global graph") {
  for (const Case& c : cases({{}, {.B = 8, .S = 3, .D = 5, .F = 7}})) {
    CAPTURE(cluster::to_string(c.mesh));
    CAPTURE(c.sizes.F);
    const ir::Module module = partition::test::mlp_net(c.sizes);
    CHECK(difference(module, c, {0, 0, 0, 0}) == "");
    CHECK(difference(module, c, {0, 1, 2, 3}) == "");
    CHECK(difference(module, c, {0, 0, 1, 1}) == "");
  }
}

}  // namespace
}  // namespace mw::compile
