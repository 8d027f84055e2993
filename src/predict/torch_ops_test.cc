// What single ops do to the memory of a PyTorch process, where they are most of it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/test_close_to.h"
#include "models/config.h"
#include "predict/predict.h"
#include "predict/test_torch.h"
#include "predict/torch_fragments.h"
#include "predict/torch_memory.h"

using namespace mw;
using namespace mw::predict;
using namespace mw::predict::test;
using pipeline::ActionKind;
using pipeline::Category;

namespace {

models::ModelConfig llama(int64_t kv_heads, int64_t ffn = 64) {
  return models::parse_config(
      fmt::format(R"({{"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 64,
          "hidden_size": 64, "intermediate_size": {}, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": {}}})",
                  ffn, kv_heads),
      "llama.json");
}

// What a rank's calls of a kind work in, and what is alive of a category behind each.
struct Behind {
  std::vector<int64_t> workspace, alive;
};
Behind behind(const Request& request, size_t rank, ActionKind kind, Category category) {
  const pipeline::Program program = program_of(request);
  const simulate::Held held = held_of(request)[rank];
  const std::vector<pipeline::Command>& commands = program.ranks[rank].commands;
  Behind found;
  int64_t now = held.lives.fixed[static_cast<size_t>(category)];
  for (size_t c = 0; c < commands.size(); ++c) {
    const auto index = static_cast<int32_t>(c);
    // Born before the next command.
    for (const pipeline::LiveBytes& change : held.lives.born)
      now += change.category == category && change.command == index + 1 ? change.bytes : 0;
    for (const pipeline::LiveBytes& change : held.lives.died)
      now -= change.category == category && change.command == index ? change.bytes : 0;
    const pipeline::Command& command = commands[c];
    if (command.kind != pipeline::Command::Kind::kCall ||
        program.fragments[command.fragment.index()].kind != kind)
      continue;
    found.workspace.push_back(held.workspace[c]);
    found.alive.push_back(now);
  }
  return found;
}

}  // namespace

TEST_CASE("the loss computes with logits in f32, and as many more where they are divided") {
  struct Case {
    const char *plan, *precision;
    int64_t parts;             // of the logits
    double forward, backward;  // logits in f32, among them those of the last product
  };
  for (const Case& c :
       {Case{"dp=1", "bf16", 1, 1 + 1 + 0.5, 2}, Case{"dp=1", "f32", 1, 1 + 1, 2},
        Case{"tp=2", "bf16", 2, 1 + 2 + 0.5, 3}, Case{"tp=2", "f32", 2, 2 + 1, 3}}) {
    CAPTURE(std::string(c.plan));
    CAPTURE(std::string(c.precision));
    Request request = torch_request(c.plan, c.precision);
    request.model.vocab_size = 1 << 16;
    const double logits = 16.0 * 64 * 65536 * 4 / static_cast<double>(c.parts);
    const auto of = [&](ActionKind kind) {
      return static_cast<double>(behind(request, 0, kind, Category::kWorkspace).workspace.at(0));
    };
    CHECK(of(ActionKind::kF) == mw::test::close_to(c.forward * logits).epsilon(0.07));
    CHECK(of(ActionKind::kB) == mw::test::close_to(c.backward * logits).epsilon(0.05));
  }
}

TEST_CASE("behind a backward pass none of a stage's weights are gathered") {
  for (const char* plan : {"dp=2,pp=2,zero=3,microbatches=4", "dp=4,zero=3,microbatches=2",
                           "dp=2,pp=2,zero=3,microbatches=4,recompute=full"}) {
    CAPTURE(std::string(plan));
    const Request request = torch_request(plan);
    for (size_t rank = 0; rank < static_cast<size_t>(request.plan.pp); ++rank) {
      const int64_t fixed =
          held_of(request)[rank].lives.fixed[static_cast<size_t>(Category::kWeights)];
      for (const int64_t alive : behind(request, rank, ActionKind::kB, Category::kWeights).alive)
        CHECK(alive == fixed);
    }
  }
}

TEST_CASE("a backward pass gathers the block before the one that it is at") {
  Request request = torch_request("dp=4,zero=3");
  request.global_batch = 4;
  request.seq_len = 2;  // weights are most of it
  std::map<std::string, int64_t> bytes;
  const simulate::Held held = held_of(request)[0];
  for (const simulate::LiveTensor& tensor : held.largest) bytes[tensor.name] = tensor.bytes.value;
  CHECK(static_cast<double>(bytes["buffers of weight gathers"]) ==
        mw::test::close_to(2.0 * kBlockElements).epsilon(0.03));
}

TEST_CASE("products that selective-op keeps are there from forward to backward") {
  Request request = torch_request("dp=2,recompute=selective-op");
  request.model = llama(2);
  request.cluster.device.attained.fused_elementwise = false;
  // Of eight sequences: logarithms in f32, and a product as wide as the MLP of each block.
  const int64_t tokens = 8 * 64, logarithms = tokens * 256 * 4, kept = 4 * tokens * 64 * 2;
  CHECK(behind(request, 0, ActionKind::kF, Category::kWorkspace).alive ==
        std::vector<int64_t>{logarithms + kept});
  request.plan.recompute = compile::Recompute::kFull;
  CHECK(behind(request, 0, ActionKind::kF, Category::kWorkspace).alive ==
        std::vector<int64_t>{logarithms});
}

TEST_CASE("keys and values are repeated where attention reads them, forward and backward") {
  for (const auto& [plan, kv_heads] : {std::pair("recompute=full", 1),
                                       {"recompute=full", 2},
                                       {"recompute=full", 4},
                                       {"cp=2", 1},
                                       {"cp=2", 4}}) {
    CAPTURE(std::string(plan));
    CAPTURE(kv_heads);
    Request request = torch_request(plan);
    request.model = llama(kv_heads);
    const pipeline::Program program = program_of(request);
    const std::vector<FragmentMemory> fragments =
        read_fragments(program, stack_memory(request.cluster, request.plan, request.options.fp8));
    for (size_t f = 0; f < fragments.size(); ++f) {
      const ActionKind kind = program.fragments[f].kind;
      if (kind != ActionKind::kF && kind != ActionKind::kB) continue;
      int64_t repeated = 0;
      for (const int64_t repeats : fragments[f].repeats) {
        if (repeats == 1) continue;
        CHECK(repeats == 4 / kv_heads);
        ++repeated;
      }
      CHECK(repeated == (kv_heads == 4 ? 0 : 2 * 4));  // of four blocks
    }
  }
}

namespace {

// What a step's forward passes save for its backward passes.
int64_t saved(const Request& request) {
  return behind(request, 0, ActionKind::kF, Category::kActivations).alive.at(0);
}

}  // namespace

TEST_CASE("an eager stack saves what kernels read, and every kernel's operands") {
  // Of four blocks: 16 sequences of 64 tokens, 64 values and an MLP of 64, two heads of four for
  // keys and values.
  const int64_t tokens = 16 * 64, value = 2 * tokens * 64, kv = value / 2;
  Request request = torch_request("dp=1");
  request.model = llama(2);
  request.cluster.device.attained.fused_elementwise = false;
  request.cluster.stack.autograd = true;
  const int64_t eager = saved(request);
  // As if every query had keys and values of its own.
  request.model = llama(4);
  CHECK(saved(request) == eager);
  // Fused, SwiGLU saves no output of its first half, and norms save no f32 and no second result;
  // attention repeats nothing.
  request.model = llama(2);
  request.cluster.device.attained.fused_elementwise = true;
  const int64_t wide_norms = 4 * 2 * 2 * value;
  CHECK(eager - saved(request) == 4 * (value + 2 * kv) + wide_norms);
}

TEST_CASE("an eager stack saves a mixture's rows in f32 besides") {
  const auto of = [](bool autograd) {
    Request request = torch_request("dp=1");
    request.model = models::parse_config(
        R"({"model_type": "mixtral", "vocab_size": 256, "max_position_embeddings": 64,
            "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 4,
            "num_experts_per_tok": 2})",
        "mixtral.json");
    request.cluster.device.attained.fused_elementwise = false;
    request.cluster.stack.autograd = autograd;
    const pipeline::Program program = program_of(request);
    int64_t bytes = 0;
    for (const FragmentMemory& fragment : read_fragments(
             program, stack_memory(request.cluster, request.plan, request.options.fp8))) {
      if (!fragment.forward) continue;
      CHECK(fragment.saves_repeats == autograd);
      for (const int64_t repeats : fragment.repeats) bytes += repeats - 1;
    }
    return bytes;
  };
  CHECK(of(true) == 4);  // of four blocks
  CHECK(of(false) == 0);
}

TEST_CASE("what is gathered along the sequence is put in order in a copy") {
  const auto copies = [](const char* plan) {
    Request request = torch_request(plan);
    const pipeline::Program program = program_of(request);
    std::map<int64_t, int64_t> count;  // [bytes]
    for (const FragmentMemory& fragment : read_fragments(
             program, stack_memory(request.cluster, request.plan, request.options.fp8))) {
      for (const OpMemory& op : fragment.ops) {
        if (op.copy > 0) ++count[op.copy];
      }
    }
    return count;
  };
  // Two a block and pass, whole; the same for gradients that are scattered; the ends.
  const int64_t value = 16 * 64 * 64 * 2;
  const std::map<int64_t, int64_t> sp = copies("tp=2,sp");
  REQUIRE(sp.size() == 1);
  CHECK(sp.begin()->first == value);
  CHECK(sp.begin()->second >= 4 * (2 + 2) * 2);
  CHECK(copies("tp=2").empty());
  CHECK(copies("dp=4,zero=3").empty());
  // Where the MLP is narrow a backward pass is fullest with one and its copy.
  Request request = torch_request("tp=2,sp");
  request.cluster.stack.f32_loss = false;
  request.model = llama(4, 8);
  const int64_t workspace =
      behind(request, 0, ActionKind::kB, Category::kWorkspace).workspace.at(0);
  CHECK(workspace > 2 * value);
  CHECK(workspace < 3 * value);
}
