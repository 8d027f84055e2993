#include "predict/torch_memory.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "base/test_close_to.h"
#include "models/config.h"
#include "predict/predict.h"
#include "predict/test_torch.h"
#include "predict/torch_fragments.h"
#include "predict/torch_tensors.h"

using namespace mw;
using namespace mw::predict;
using namespace mw::predict::test;
using pipeline::Category;

namespace {

constexpr int64_t kEnds = 256 * 64 + 64 * 64 + 2 * 64;  // of the two ends
constexpr int64_t kAll = 4 * kBlockElements + kEnds;

int64_t bytes_of(const simulate::Held& held, Category category) {
  return held.lives.fixed[static_cast<size_t>(category)];
}

// What is alive of a category behind each command, from the step's begin.
std::vector<int64_t> curve(const simulate::Held& held, Category category) {
  std::vector<int64_t> alive;
  size_t born = 0, died = 0;
  int64_t now = bytes_of(held, category);
  for (size_t c = 0; c < held.workspace.size(); ++c) {
    for (;
         born < held.lives.born.size() && held.lives.born[born].command == static_cast<int32_t>(c);
         ++born)
      now += held.lives.born[born].category == category ? held.lives.born[born].bytes : 0;
    for (;
         died < held.lives.died.size() && held.lives.died[died].command == static_cast<int32_t>(c);
         ++died)
      now -= held.lives.died[died].category == category ? held.lives.died[died].bytes : 0;
    alive.push_back(now);
  }
  CHECK(born == held.lives.born.size());
  CHECK(died == held.lives.died.size());
  return alive;
}

}  // namespace

TEST_CASE("between steps a device has its part of weights and moments in f32") {
  struct Case {
    const char* plan;
    int64_t share;  // a device has one part of so many
  };
  for (const Case& c : {Case{"dp=4,zero=3", 4}, Case{"dp=2,zero=2", 2}, Case{"dp=8,zero=1", 8},
                        Case{"dp=2,zero=0", 1}, Case{"dp=1", 1}}) {
    CAPTURE(std::string(c.plan));
    const simulate::Held held = held_of(torch_request(c.plan))[0];
    // The program aligns weights.
    const double part = static_cast<double>(kAll * 4) / static_cast<double>(c.share);
    CHECK(static_cast<double>(bytes_of(held, Category::kWeights)) ==
          mw::test::close_to(part).epsilon(0.03));
    CHECK(static_cast<double>(bytes_of(held, Category::kOptimizer)) ==
          mw::test::close_to(2 * part).epsilon(0.03));
    CHECK(bytes_of(held, Category::kActivations) == 0);
    CHECK(bytes_of(held, Category::kGradients) == 0);
  }
}

TEST_CASE("with post-validation a device keeps copies of what its step took") {
  for (const char* plan : {"pp=2,microbatches=4", "dp=2,pp=2,microbatches=2,zero=3"}) {
    CAPTURE(plan);
    const std::vector<simulate::Held> without = held_of(torch_request(plan)),
                                      with = held_of(
                                          torch_request(std::string(plan) + ",post_validation"));
    for (size_t r = 0; r < 2; ++r) {
      // Two moments, and beside them two copies of them, of the weights and the gradients.
      CHECK(bytes_of(with[r], Category::kOptimizer) ==
            3 * bytes_of(without[r], Category::kOptimizer));
      for (const Category other : {Category::kWeights, Category::kGradients})
        CHECK(bytes_of(with[r], other) == bytes_of(without[r], other));
    }
  }
}

TEST_CASE("ZeRO 3 keeps the ends and the last block gathered from forward to backward") {
  const auto behind_forward = [](const char* plan, const char* precision = "bf16") {
    const Request request = torch_request(plan, precision);
    const pipeline::Program program = program_of(request);
    const simulate::Held held = held_of(request)[0];
    const std::vector<int64_t> weights = curve(held, Category::kWeights);
    for (size_t c = 0; c < weights.size(); ++c) {
      const pipeline::Command& command = program.ranks[0].commands[c];
      if (command.kind == pipeline::Command::Kind::kCall)  // born before the next command
        return weights[c + 1] - bytes_of(held, Category::kWeights);
    }
    return int64_t{0};
  };
  CHECK(behind_forward("dp=4,zero=3") == 2 * (kEnds + kBlockElements));
  CHECK(behind_forward("dp=4,zero=1") == 2 * kAll);
  CHECK(behind_forward("dp=4,zero=0") == 2 * kAll);  // cast
  CHECK(behind_forward("dp=4,zero=1", "f32") == 4 * kAll);
  CHECK(behind_forward("dp=4,zero=0", "f32") == 0);
  CHECK(behind_forward("dp=1", "f32") == 0);
}

TEST_CASE("gradients are reduced into f32 parts, or summed undivided where microbatches are") {
  const auto most = [](const char* plan, const char* precision = "bf16") {
    const simulate::Held held = held_of(torch_request(plan, precision))[0];
    const std::vector<int64_t> gradients = curve(held, Category::kGradients);
    return *std::max_element(gradients.begin(), gradients.end());
  };
  CHECK(static_cast<double>(most("dp=4,zero=3")) == mw::test::close_to(kAll).epsilon(0.03));
  CHECK(most("dp=4,zero=1,microbatches=2") == 4 * kAll);
  CHECK(most("dp=4,zero=1,microbatches=2", "f32") == 4 * kAll);
  CHECK(most("dp=1,microbatches=2") == 4 * kAll);
}

TEST_CASE("a pipeline has buffers for all microbatches, in 2.6 it keeps what it sent and logits") {
  Request request = torch_request("dp=2,pp=2,microbatches=8,zero=1");
  const int64_t value = 1 * 64 * 64 * 2;  // a sequence in bf16
  const auto most = [&](const simulate::Held& held) {
    const std::vector<int64_t> bytes = curve(held, Category::kBoundary);
    CHECK(bytes_of(held, Category::kBoundary) == 8 * value);
    CHECK(bytes.back() == 8 * value);
    return *std::max_element(bytes.begin(), bytes.end());
  };
  for (const bool old : {false, true}) {
    request.cluster.stack.torch_2_6 = old;
    const std::vector<simulate::Held> held = held_of(request);
    // Results of two microbatches on their way, or of all; and the second rank has the gradients of
    // what it received until the next step.
    CHECK(most(held[0]) == (old ? 16 : 10) * value);
    CHECK(most(held[1]) == (old ? 16 : 8) * value);
    const std::vector<int64_t> last = curve(held[1], Category::kActivations);
    CHECK((*std::max_element(last.begin(), last.end()) >= 7 * 64 * 256 * 2) == old);
    CHECK(last.back() == 0);
  }
}

TEST_CASE(
    "gradients of inputs stay until those of weights, which are summed behind the next ones") {
  const Request request = torch_request("dp=2,pp=4,microbatches=8,zero=1,schedule=zb-h1");
  const int64_t value = 1 * 64 * 64 * 2;
  // The second rank has two microbatches between the two passes at the most, four results, and what
  // it receives.
  const simulate::Held held = held_of(request)[1];
  const std::vector<int64_t> sent = curve(held, Category::kBoundary);
  CHECK(*std::max_element(sent.begin(), sent.end()) == (16 + 2 + 2) * value);
  const std::vector<int64_t> gradients = curve(held, Category::kGradients);
  CHECK(static_cast<double>(*std::max_element(gradients.begin(), gradients.end())) ==
        mw::test::close_to((4.0 + 2) * kBlockElements).epsilon(0.002));
  // The first has both passes in one.
  const std::vector<int64_t> first = curve(held_of(request)[0], Category::kGradients);
  CHECK(*std::max_element(first.begin(), first.end()) == 4 * (kBlockElements + 256 * 64 + 64 * 64));
}

TEST_CASE("a pipeline's stage scatters its gradients behind its last backward pass") {
  // Two stages of two blocks, or four of one block on two ranks: the first rank's first chunk
  // begins its backward passes when those of its second one have ended.
  const auto most = [](const char* plan) {
    const simulate::Held held = held_of(torch_request(plan))[0];
    const std::vector<int64_t> gradients = curve(held, Category::kGradients);
    return *std::max_element(gradients.begin(), gradients.end());
  };
  const int64_t embedding = 256 * 64 + 64 * 64;
  CHECK(most("dp=2,zero=1,pp=2,microbatches=2") == 4 * (2 * kBlockElements + embedding));
  // Of the second chunk the device's half alone.
  CHECK(static_cast<double>(
            most("dp=2,zero=1,pp=2,chunks=2,microbatches=2,schedule=interleaved-1f1b")) ==
        mw::test::close_to(4 * (1.5 * kBlockElements + embedding)).epsilon(0.01));
  // What was scattered last stays for the next step in 2.6.
  Request request = torch_request("dp=2,zero=1,pp=2,microbatches=2");
  CHECK(bytes_of(held_of(request)[0], Category::kWorkspace) == 0);
  request.cluster.stack.torch_2_6 = true;
  CHECK(bytes_of(held_of(request)[0], Category::kWorkspace) == 4 * kBlockElements);
  CHECK(bytes_of(held_of(torch_request("dp=2,zero=1"))[0], Category::kWorkspace) == 0);
}

TEST_CASE("an update makes the roots of a stage's second moments, stage by stage") {
  const auto roots = [](const char* plan, int64_t weights, int64_t share) {
    CAPTURE(std::string(plan));
    // The program aligns weights.
    CHECK(static_cast<double>(held_of(torch_request(plan))[0].workspace.back()) ==
          mw::test::close_to(static_cast<double>(4 * weights / share)).epsilon(0.03));
  };
  const int64_t embedding = 256 * 64 + 64 * 64;
  roots("pp=2,microbatches=2", 2 * kBlockElements + embedding, 1);
  roots("pp=2,dp=2,zero=1,microbatches=2", 2 * kBlockElements + embedding, 2);
  roots("pp=2,chunks=2,microbatches=2,schedule=interleaved-1f1b", kBlockElements + embedding, 1);
}

TEST_CASE("in 2.6 a pipeline's last stage puts the logits of all microbatches together") {
  Request request = torch_request("pp=2,microbatches=8");
  request.model.vocab_size = 65536;
  const std::vector<simulate::Held> later = held_of(request);
  request.cluster.stack.torch_2_6 = true;
  const std::vector<simulate::Held> held = held_of(request);
  const int64_t logits = 8 * 2 * 64 * request.model.vocab_size * 2;  // of 16 sequences in bf16
  const int64_t roots = 4 * 64 * request.model.vocab_size;
  REQUIRE(logits > 2 * roots);
  CHECK(held[1].workspace.back() == logits);
  CHECK(held[0].workspace.back() < 2 * roots);
  CHECK(later[1].workspace.back() < 2 * roots);
}

TEST_CASE("what forward saves stays until the gradients of weights, in passes of their own, too") {
  const auto behind = [](const char* plan, pipeline::ActionKind kind, size_t rank = 1) {
    const Request request = torch_request(plan);
    const pipeline::Program program = program_of(request);
    const simulate::Held held = held_of(request)[rank];
    int32_t call = 0;
    const auto is_call = [&](const pipeline::Command& command) {
      return command.kind == pipeline::Command::Kind::kCall &&
             program.fragments[command.fragment.index()].kind == kind;
    };
    while (!is_call(program.ranks[rank].commands[static_cast<size_t>(call)])) ++call;
    int64_t alive = 0;
    for (const pipeline::LiveBytes& born : held.lives.born) {  // by a call: before the next command
      if (born.category == Category::kActivations && born.command <= call + 1) alive += born.bytes;
    }
    for (const pipeline::LiveBytes& died : held.lives.died) {
      if (died.category == Category::kActivations && died.command <= call) alive -= died.bytes;
    }
    return alive;
  };
  using pipeline::ActionKind;
  const char* const split = "pp=4,microbatches=1,schedule=zb-h1";
  const int64_t saved = behind(split, ActionKind::kF);
  CHECK(saved == behind("pp=4,microbatches=1,schedule=1f1b", ActionKind::kF));
  // And gradients of what the block's products and two norms make, in bf16; the last product's is
  // what was received.
  const int64_t tokens = 16 * 64;
  CHECK(behind(split, ActionKind::kI) == saved + tokens * 2 * (3 + 1 + 4 + 2) * 64);
  CHECK(behind(split, ActionKind::kW) == 0);
  CHECK(behind("pp=4,microbatches=1,schedule=1f1b", ActionKind::kB) == 0);
  // The first stage has no pass for inputs alone.
  CHECK(behind(split, ActionKind::kI, 0) == behind(split, ActionKind::kF, 0));
  CHECK(behind(split, ActionKind::kW, 0) == 0);
}

TEST_CASE("what the allocator keeps has settled by the step that is recorded") {
  for (const cluster::Allocator kind :
       {cluster::Allocator::kSegments, cluster::Allocator::kExpandable}) {
    for (const char* plan :
         {"dp=4,zero=3", "tp=2,sp,dp=2,zero=3,recompute=full",
          "pp=2,microbatches=4,dp=2,zero=1,recompute=full",
          "pp=2,chunks=2,microbatches=4,schedule=interleaved-1f1b,dp=2,zero=1,recompute=full"}) {
      CAPTURE(std::string(plan));
      Request request = torch_request(plan);
      request.model.vocab_size = 65536;  // blocks of 16 MiB and more
      request.cluster.stack.allocator = kind;
      const std::vector<simulate::Held> settled = held_of(request);
      const std::vector<simulate::Held> later = held_of(request, 3 * kSettled);
      const std::vector<simulate::Held> second = held_of(request, 2);
      for (size_t r = 0; r < settled.size(); ++r) {
        CHECK(settled[r].reserved == later[r].reserved);
        CHECK(settled[r].reserved >= second[r].reserved);
        CHECK(settled[r].workspace == second[r].workspace);
      }
    }
  }
}

TEST_CASE(
    "the gradient of the loss has three tensors in f32, four where the vocabulary is divided") {
  const auto loss = [](const char* plan, int64_t vocabulary) {
    std::map<std::string, int64_t> bytes;
    const simulate::Held held = held_of(torch_request(plan))[0];
    for (const simulate::LiveTensor& tensor : held.largest) bytes[tensor.name] = tensor.bytes.value;
    const int64_t logits = 16 * 64 * vocabulary * 4;
    CHECK(bytes["log-probabilities in f32"] == logits);
    CHECK(bytes["d.log-probabilities in f32"] == logits);
    return bytes["d.logits in f32"] / logits;
  };
  CHECK(loss("dp=1,recompute=full", 256) == 1);
  CHECK(loss("tp=2,recompute=full", 128) >= 1);
}

TEST_CASE("keys and values of grouped queries are repeated for every head") {
  const auto most = [](int64_t kv_heads, const char* plan) {
    Request request = torch_request(plan);
    request.model = models::parse_config(
        fmt::format(R"({{"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 64,
            "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": {}}})",
                    kv_heads),
        "llama.json");
    const pipeline::Program program = program_of(request);
    const StackMemory memory = stack_memory(request.cluster, request.plan, request.options.fp8);
    int64_t bytes = 0;  // of all temporaries that attention reads as keys and values
    const std::vector<FragmentMemory> fragments = read_fragments(program, memory);
    for (size_t f = 0; f < fragments.size(); ++f) {
      for (size_t v = 0; v < fragments[f].repeats.size(); ++v) {
        const int64_t repeats = fragments[f].repeats[v];
        if (repeats > 1)
          bytes = std::max(bytes, repeats * program.fragments[f].graph.values[v].type.elements());
      }
    }
    return bytes;
  };
  CHECK(most(4, "cp=2,dp=8") == 0);
  // Two sequences of 64 with all heads, whole sequences where they are gathered.
  CHECK(most(1, "cp=2,dp=8") == 2 * 64 * 64);
  CHECK(most(2, "cp=2,dp=8") == 2 * 64 * 64);
}

TEST_CASE("where the device has no room, what the allocator kept goes back") {
  Request request = torch_request("pp=2,dp=2,zero=1,microbatches=8,recompute=full");
  request.model.vocab_size = 65536;  // blocks of 16 MiB and more
  request.cluster.stack.allocator = cluster::Allocator::kSegments;
  request.cluster.device.memory = Bytes(int64_t{1} << 40);
  const Prediction roomy = mw::predict::predict(request);
  const StageMemory& last = roomy.memory[1];
  REQUIRE(last.peak > last.alive);
  request.cluster.device.memory = last.peak - Bytes(1);
  const Prediction tight = mw::predict::predict(request);
  CHECK(tight.memory[1].peak < last.peak);
  CHECK(tight.memory[1].alive == last.alive);
}

TEST_CASE("whatever the plan, a step ends with what it began with") {
  for (const char* plan :
       {"dp=1", "dp=4,zero=3,microbatches=2", "dp=2,zero=3,recompute=selective-op",
        "dp=2,zero=2,microbatches=4,recompute=full", "tp=2,sp,regather,dp=2,zero=3,recompute=full",
        "dp=2,cp=2,zero=3", "pp=4,microbatches=8", "pp=2,microbatches=4,schedule=zb-h1,dp=2,zero=1",
        "pp=2,chunks=2,microbatches=4,schedule=interleaved-1f1b,dp=2,zero=2",
        "pp=2,microbatches=4,schedule=dualpipe", "pp=2,microbatches=4,schedule=chimera",
        "pp=2,chunks=2,microbatches=4,schedule=zb-v,dp=2,zero=1",
        "pp=2,microbatches=2,schedule=seq-1f1b", "pp=2,microbatches=4,schedule=gpipe,tp=2,sp"}) {
    for (const cluster::Allocator kind :
         {cluster::Allocator::kSegments, cluster::Allocator::kExpandable}) {
      CAPTURE(std::string(plan));
      Request request = torch_request(plan);
      request.cluster.stack.allocator = kind;
      for (const simulate::Held& held : held_of(request)) {
        std::array<int64_t, pipeline::kCategories> sum = {};
        for (const pipeline::LiveBytes& change : held.lives.born)
          sum[static_cast<size_t>(change.category)] += change.bytes;
        for (const pipeline::LiveBytes& change : held.lives.died)
          sum[static_cast<size_t>(change.category)] -= change.bytes;
        for (const int64_t rest : sum) CHECK(rest == 0);
        for (const int64_t bytes : held.workspace) CHECK(bytes >= 0);
      }
      const Prediction p = mw::predict::predict(request);
      for (size_t r = 0; r < p.memory.size(); ++r) {
        CHECK(p.memory[r].peak >= p.memory[r].alive);
        Bytes sum;
        for (const auto& [category, bytes] : p.result.ranks[r].peak.by_category) sum += bytes;
        CHECK(sum == p.memory[r].alive);
      }
      // Memory is another, time is not.
      request.cluster.stack.allocator = cluster::Allocator::kPlan;
      CHECK(mw::predict::predict(request).step == p.step);
    }
  }
}

TEST_CASE("whether a step fits is told as its prediction tells it") {
  for (const char* plan : {"dp=1", "dp=4,zero=3,microbatches=2", "pp=4,microbatches=8",
                           "pp=2,microbatches=4,schedule=zb-h1,dp=2,zero=1",
                           "pp=2,microbatches=2,schedule=seq-1f1b"}) {
    for (const cluster::Allocator kind : {cluster::Allocator::kPlan, cluster::Allocator::kSegments,
                                          cluster::Allocator::kExpandable}) {
      CAPTURE(std::string(plan));
      Request request = torch_request(plan);
      request.cluster.stack.allocator = kind;
      const Step step = compile_step(request);
      const Bytes needed = mw::predict::predict(request, step).needed();
      for (const int64_t percent : {50, 80, 99, 100, 150}) {
        request.cluster.device.memory = Bytes(needed.value * percent / 100);
        const Prediction told = mw::predict::predict(request, step);
        const std::optional<Prediction> fits = predict_if_fits(request, step);
        REQUIRE(fits.has_value() == told.too_full().empty());
        if (!fits) continue;
        CHECK(fits->step == told.step);
        CHECK(fits->needed() == told.needed());
      }
      CHECK(predict_if_fits(request, step));
      request.cluster.device.memory = Bytes(1);
      CHECK(!predict_if_fits(request, step));
    }
  }
}

TEST_CASE("tensors lie as before if all of them do, whatever became of others") {
  using pipeline::Category;
  TorchTensors one(cluster::Allocator::kExpandable, Bytes(int64_t{1} << 40));
  constexpr int64_t kBytes = 24 << 20;
  TorchTensors::Handle first = one.add(kBytes, Category::kWeights, What::kWeights);
  const std::vector<int64_t> before = one.layout();
  TorchTensors::Handle more = one.add(kBytes, Category::kWorkspace, What::kTemporary);
  CHECK(one.layout() != before);
  one.drop(more);
  CHECK(one.layout() != before);  // what it had is kept
  const std::vector<int64_t> kept = one.layout();
  more = one.add(kBytes, Category::kWorkspace, What::kTemporary);
  one.drop(more);
  CHECK(one.layout() == kept);
  // The same bytes in another order.
  TorchTensors::Handle second = one.add(kBytes, Category::kWeights, What::kWeights);
  const std::vector<int64_t> two = one.layout();
  one.drop(first);
  first = one.add(kBytes, Category::kWeights, What::kWeights);
  CHECK(one.layout() != two);
  one.drop(second);
  second = one.add(kBytes, Category::kWeights, What::kWeights);
  CHECK(one.layout() == two);
}
