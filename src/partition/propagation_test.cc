// Propagation on a whole GPT: what a handful of annotations gives to all other values.
#include "sharding/propagation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "base/text.h"
#include "ops/builder.h"
#include "partition/partitioner.h"
#include "partition/test_nets.h"
#include "partition/test_ranks.h"

namespace mw::partition {
namespace {

using ir::OpKind;
using sharding::Sharding;
using Given = std::vector<std::optional<Sharding>>;

const cluster::Mesh kMesh({{"dp", 2}, {"tp", 2}});

struct Annotated {
  ir::Module module;
  Given all;
  const ir::Graph& graph() const { return *module.find_graph("microbatch"); }
};

Annotated gpt(bool sp, const test::NetSizes& sizes = {}) {
  Annotated net{test::gpt_net(sizes), {}};
  const sharding::Strategy strategy = test::strategy(sp);
  const auto of = [&](LayerId) -> const sharding::Strategy& { return strategy; };
  net.all = given_shardings(net.graph(), net.module, kMesh, of);
  return net;
}

// Inputs, weight matrices and these activations.
Given handful(const Annotated& net, const std::set<std::string>& activations) {
  Given given(net.all.size());
  for (const ir::Input& input : net.graph().inputs) {
    const size_t v = input.value.index();
    if (!input.state.valid() || net.graph().values[v].type.rank() > 1) given[v] = net.all[v];
  }
  for (size_t v = 0; v < given.size(); ++v) {
    if (activations.count(net.graph().values[v].name) > 0) given[v] = net.all[v];
  }
  return given;
}

size_t annotations(const Annotated& net, const Given& given) {
  size_t count = 0;
  for (size_t v = 0; v < given.size(); ++v)
    count += given[v] && net.graph().values[v].producer.valid() ? 1 : 0;
  return count;
}

// Values whose dimensions lie otherwise than their annotation says.
std::vector<std::string> unlike_megatron(const Annotated& net, const Given& given) {
  const sharding::Propagation found = sharding::propagate({net.graph(), net.module, kMesh, given});
  std::vector<std::string> unlike;
  for (size_t v = 0; v < given.size(); ++v) {
    if (!net.all[v] || found.shardings[v].dims == net.all[v]->dims) continue;
    unlike.push_back(net.graph().label(ValueId(static_cast<int64_t>(v))) + " is " +
                     to_string(found.shardings[v]) + ", Megatron has " + to_string(*net.all[v]));
  }
  return unlike;
}

TEST_CASE("inputs and weight matrices give every value of a GPT Megatron's tensor parallelism") {
  const Annotated net = gpt(false);
  const Given given = handful(net, {});
  CHECK(annotations(net, given) == 0);
  CHECK(unlike_megatron(net, given) == std::vector<std::string>{});
}

TEST_CASE("one annotated activation more makes it sequence parallel") {
  const Annotated net = gpt(true);
  const Given given = handful(net, {"embed.sum"});
  CHECK(annotations(net, given) == 1);
  CHECK(unlike_megatron(net, given) == std::vector<std::string>{});
}

TEST_CASE("a GPT partitioned from a handful of annotations communicates as a fully annotated one") {
  for (const bool sp : {false, true}) {
    const Annotated net = gpt(sp);
    Given few = handful(net, {"embed.sum"});
    for (const ir::Input& input : net.graph().inputs)
      few[input.value.index()] = net.all[input.value.index()];
    const Partitioned all = partition({net.graph(), net.module, kMesh, net.all});
    const Partitioned some = partition({net.graph(), net.module, kMesh, few});
    CAPTURE(sp);
    // In another order: what nobody annotated is reduced where it is read, not where it is made.
    std::vector<std::string> few_moves = test::communication(some.graph),
                             all_moves = test::communication(all.graph);
    std::sort(few_moves.begin(), few_moves.end());
    std::sort(all_moves.begin(), all_moves.end());
    CHECK(join(few_moves, "\n") == join(all_moves, "\n"));
  }
}

TEST_CASE("where another layout moves fewer bytes than the propagated one, the origin says so") {
  ir::Module module;
  ir::Graph graph;
  ops::Builder b(graph);
  const auto input = [&](const std::string& name, int64_t rows) {
    return graph.add_input(ir::make_type(DType::kF32, {rows, 8}), name);
  };
  // The small one is annotated where it is read, the large one before it is worked on.
  const ValueId small = input("small", 4);
  const ValueId large = b.unary(OpKind::kExp, input("large", 64));
  const ValueId product = b.dot(small, large, "ad,bd->ab");
  graph.value(product).name = "product";
  graph.outputs = {b.unary(OpKind::kExp, product)};
  Given given(graph.values.size());
  given[small.index()] = given[graph.inputs[1].value.index()] =
      sharding::parse_sharding(R"([{"tp"}, {}])");
  const Partitioned found = partition({graph, module, kMesh, given});
  CHECK(to_string(found.origins[product.index()], graph, product, module) ==
        R"(moves fewer bytes than [{"tp"}, {}]: tp from small through dot product by resolve)");
  CHECK(to_string(found.shardings[found.main_version[product.index()].index()]) ==
        R"([{}, {"tp"}])");
  CHECK(test::communication(found.graph) == std::vector<std::string>{"all_gather{tp} dim 0"});
}

TEST_CASE("shardings and origins of a block read as in the golden file") {
  std::string actual;
  for (const bool sp : {false, true}) {
    const Annotated net = gpt(sp, {.blocks = 1});
    const Given given = sp ? handful(net, {"embed.sum"}) : handful(net, {});
    actual += sp ? "--- sequence parallel\n" : "--- tensor parallel\n";
    actual += to_text(sharding::propagate({net.graph(), net.module, kMesh, given}), net.graph(),
                      net.module);
  }
  const std::string path = MW_SOURCE_DIR "/src/partition/propagation.golden";
  if (std::getenv("MW_BLESS") != nullptr) std::ofstream(path) << actual;
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  CHECK(actual == expected.str());
}

}  // namespace
}  // namespace mw::partition
