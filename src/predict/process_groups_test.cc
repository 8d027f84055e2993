// What collectives of experts, sequences and replicas are for, and in which order they go.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>

#include "pipeline/groups.h"
#include "pipeline/verifier.h"
#include "predict/predict.h"
#include "predict/test_request.h"

namespace mw::predict::process_groups_test {
namespace {

using test::mixture;
using test::small;

// What is accumulated in a buffer of its own, for a sum over ranks, is added to the gradients
// apart.
TEST_CASE("gradients of experts that one rank holds are added up in place") {
  for (const char* plan : {"dp=4,ep=4,zero=2,microbatches=2", "dp=4,ep=4,zero=3,microbatches=2",
                           "dp=4,ep=2,zero=2,microbatches=2"}) {
    CAPTURE(std::string(plan));
    Request request = mixture();
    request.precision = DType::kF32;
    request.plan = compile::parse_plan(plan);
    const pipeline::Program program = program_of(request);
    CHECK(pipeline::verify(program).sound());
    int64_t zeroed = 0, reduced = 0;  // elements
    for (const pipeline::Fragment& fragment : program.fragments) {
      if (fragment.kind != pipeline::ActionKind::kB) continue;
      for (const ir::Op& op : fragment.graph.ops) {
        if (op.work != ir::Work::kWeightGrad) continue;
        if (op.kind == ir::OpKind::kConstant)
          zeroed += fragment.graph.type(op.results[0]).elements();
        if (op.kind == ir::OpKind::kReduceScatter)
          reduced += fragment.graph.type(op.operands[0]).elements();
      }
    }
    CHECK(zeroed > 0);
    CHECK(zeroed == reduced);
  }
}

TEST_CASE("exposed communication says what it is for") {
  const auto entries = [](const char* plan) {
    Request request = mixture();
    request.precision = DType::kF32;
    request.plan = compile::parse_plan(plan);
    request.options.overlap.weights = false;
    const simulate::Result result =
        simulate::simulate(program_of(request), request.cluster, request.options);
    std::string all;
    for (const auto& [name, time] : result.ranks[0].exposed_comm)
      all += (all.empty() ? "" : "; ") + name;
    return all;
  };
  CHECK(entries("dp=4,ep=4,zero=0") == "dp; ep");
  CHECK(entries("dp=4,ep=2,zero=3") == "dp; dp of experts; ep");
  CHECK(entries("dp=4,ep=2,cp=2,zero=3") == "cp; dp; dp of experts; ep");
  CHECK(entries("tp=2,sp,cp=2,zero=3") == "cp; dp; tp");
}

TEST_CASE("a key head on several ranks: a layer's sums wait for no gathers of weights") {
  Request request = small();
  request.model = models::parse_config(
      R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 64,
          "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2})",
      "grouped.json");
  request.precision = DType::kF32;
  request.plan = compile::parse_plan("dp=2,cp=2,tp=4,zero=3");
  const pipeline::Program program = program_of(request);
  CHECK(pipeline::verify(program).sound());
  std::map<int32_t, std::set<std::string>> groups;  // by stream
  for (const pipeline::Fragment& fragment : program.fragments) {
    if (fragment.kind == pipeline::ActionKind::kUpdate) continue;
    for (size_t o = 0; o < fragment.graph.ops.size(); ++o) {
      const ir::Op& op = fragment.graph.ops[o];
      const int32_t stream = fragment.launches[o].stream.value;
      if (ir::is_collective(op.kind) && stream != 0)
        groups[stream].insert(pipeline::group_label(op.as<ir::CollectiveAttrs>().group));
    }
  }
  int tensor = 0;
  for (const auto& [stream, labels] : groups) {
    const bool of_layers = labels.contains("tp_kv,tp_rep");
    tensor += of_layers;
    if (of_layers) CHECK(labels == std::set<std::string>{"tp_kv,tp_rep"});
  }
  CHECK(tensor == 1);
}

}  // namespace
}  // namespace mw::predict::process_groups_test
