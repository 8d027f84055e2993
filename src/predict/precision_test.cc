#include "predict/precision.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "base/test_close_to.h"
#include "compile/passes.h"
#include "cost/attention_time.h"
#include "cost/op_time.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::kPlans;
using mw::predict::test::small;
using mw::predict::test::train_of;

namespace {

Request small_llama() {
  Request request = small();
  request.model = models::parse_config(
      R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 64,
          "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 2})",
      "llama.json");
  return request;
}

}  // namespace

TEST_CASE("fp8 makes a step faster, is told against its own peak, and needs a device that has it") {
  Request request = small();
  request.plan = compile::parse_plan("dp=2,tp=2,microbatches=2");
  REQUIRE(set_precision(request, "fp8"));
  try {
    mw::predict::predict(request);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.what() == std::string("box.toml: chip has no fp8 products (peak_TFLOPs.fp8); use "
                                      "--precision bf16"));
  }
  request.cluster.device.attained.launch = Seconds(0);
  request.cluster.device.peaks = {{"f32", cluster::FlopsPerSecond(10e12)},
                                  {"bf16", cluster::FlopsPerSecond(1e9)},
                                  {"fp8", cluster::FlopsPerSecond(2e9)}};
  const Prediction fp8 = mw::predict::predict(request);
  REQUIRE(set_precision(request, "bf16"));
  const Prediction half = mw::predict::predict(request);
  CHECK(fp8.step < half.step);
  CHECK(fp8.peak_format == "fp8");
  CHECK(fp8.peak.value == 2e9);
  CHECK(fp8.result.ranks[0].bytes_sent == half.result.ranks[0].bytes_sent);
  CHECK(precision_name(request) == "bf16");
  CHECK_FALSE(set_precision(request, "fp9"));
}

TEST_CASE("a stack that saves what it casts casts weights once for all microbatches of a step") {
  Request request = small();
  REQUIRE(set_precision(request, "fp8"));
  request.cluster.device.peaks = {{"f32", cluster::FlopsPerSecond(1e30)},
                                  {"bf16", cluster::FlopsPerSecond(1e30)},
                                  {"fp8", cluster::FlopsPerSecond(1e30)}};
  request.cluster.device.attained.launch = Seconds(0);
  const auto step = [&](bool saves, int64_t microbatches) {
    request.cluster.stack.narrow_saved = saves;
    request.plan = compile::parse_plan(fmt::format("microbatches={}", microbatches));
    request.global_batch = microbatches;  // of one sequence
    return mw::predict::predict(request).step.value;
  };
  // Four blocks of 12 d^2 weights, cast for forward and for backward: two bytes read twice and one
  // written; of all but one microbatch all of that is saved.
  const double cast = 2 * 4 * 12 * 64 * 64 * 5 / 1e12;
  const double always = step(false, 8) - step(false, 1), once = step(true, 8) - step(true, 1);
  CHECK(always - once > 7 * cast);
  // Beside what forward saved, which is not read again: less than it would be in a long batch.
  CHECK(always - once < 7 * (cast + 4 * 64 * 14 * 64 * 4 / 1e12));
}

TEST_CASE(
    "what only products in fp8 read again is saved in a byte, what others read too in three") {
  // Without the pass that makes elementwise values again, so that they are saved.
  const pipeline::Program whole = train_of(small(), {std::string(compile::kRemake)});
  StackMemory memory;
  const pipeline::Program half = in_precision(whole, DType::kBF16, memory);
  memory.narrow = cost::Fp8::kTensor;
  const pipeline::Program narrow = in_precision(whole, DType::kBF16, memory);
  memory.narrow = cost::Fp8::kBlock;
  const pipeline::Program blocks = in_precision(whole, DType::kBF16, memory);
  const auto bytes = [](const pipeline::Program& program, const std::string& name) {
    for (const pipeline::Buffer& buffer : program.ranks[0].buffers) {
      if (buffer.microbatch >= 0 && buffer.value == name) return buffer.bytes().value;
    }
    return int64_t{0};
  };
  REQUIRE(bytes(half, "h.0.mlp.hidden") > 0);
  CHECK(bytes(narrow, "h.0.mlp.hidden") * 2 == bytes(half, "h.0.mlp.hidden"));
  CHECK(bytes(blocks, "h.0.mlp.hidden") * 64 == bytes(half, "h.0.mlp.hidden") * 33);
  REQUIRE(bytes(half, "h.0.attn.out") > 0);
  CHECK(bytes(narrow, "h.0.attn.out") * 2 == bytes(half, "h.0.attn.out") * 3);
  for (const char* other : {"h.0.attn.qkv", "h.1.attn.residual", "logits"}) {
    CAPTURE(other);
    REQUIRE(bytes(half, other) > 0);
    CHECK(bytes(narrow, other) == bytes(half, other));
  }
  CHECK(narrow.ranks[0].arena < half.ranks[0].arena);

  // Of a layer so are the results of both norms and of the activation: also where they are parts
  // that are gathered again for such products alone.
  memory.narrow = cost::Fp8::kTensor;
  for (const char* plan : {"", "tp=2,sp,regather"}) {
    CAPTURE(plan);
    Request parts = small();
    parts.plan = compile::parse_plan(plan);
    const pipeline::Program program = train_of(parts, {std::string(compile::kRemake)});
    const pipeline::Program cast = in_precision(program, DType::kBF16, memory);
    std::set<std::string> quarter;
    for (const pipeline::Buffer& buffer : program.ranks[0].buffers) {
      const std::string& name = buffer.value;
      if (name.starts_with("h.0.") && bytes(cast, name) * 4 == bytes(program, name))
        quarter.insert(name);
    }
    CHECK(quarter.size() == 3);
  }
}

TEST_CASE("where blocks alone are compiled, the norm before the loss saves its operand in f32") {
  Request request = small_llama();
  const pipeline::Program program = train_of(request);
  const auto saved = [&](const StackMemory& memory, DType dtype) {
    int64_t bytes = 0;
    const pipeline::Program cast = in_precision(program, dtype, memory);
    for (const pipeline::Buffer& buffer : cast.ranks[0].buffers) {
      if (buffer.category == pipeline::Category::kActivations) bytes += buffer.bytes().value;
    }
    return bytes;
  };
  StackMemory last, all;
  last.wide_last_norm = true;
  all.wide_norms = true;
  // In place of the operand in bf16: in f32, and the result before the weight.
  const int64_t more = 16 * 64 * 64 * 4;
  CHECK(saved(last, DType::kBF16) == saved({}, DType::kBF16) + more);
  CHECK(saved(all, DType::kBF16) == saved({}, DType::kBF16) + 9 * more);
  CHECK(saved(last, DType::kF32) == saved({}, DType::kF32));
  request.cluster.stack.f32_loss = true;
  CHECK(stack_memory(request.cluster, request.plan, cost::Fp8::kOff).wide_last_norm);
}

TEST_CASE("what a fragment reads has the precision in which another wrote it") {
  for (const Request& model : {small(), small_llama()}) {
    for (const char* plan : kPlans) {
      CAPTURE(std::string(plan));
      Request request = model;
      request.plan = compile::parse_plan(plan);
      const pipeline::Program cast = in_precision(train_of(request), DType::kBF16);
      std::set<std::string> in_f32;
      for (const pipeline::RankProgram& rank : cast.ranks) {
        for (const pipeline::Command& command : rank.commands) {
          if (command.kind != pipeline::Command::Kind::kCall) continue;
          const pipeline::Fragment& fragment = cast.fragments[command.fragment.index()];
          for (size_t b = 0; b < command.buffers.size(); ++b) {
            const pipeline::Buffer& buffer = rank.buffers[command.buffers[b].index()];
            if (buffer.storage.kind != pipeline::Storage::Kind::kArena) continue;
            const size_t inputs = fragment.inputs.size();
            const ValueId port =
                b < inputs ? fragment.inputs[b].value : fragment.graph.outputs[b - inputs];
            CHECK(fragment.graph.type(port).dtype == buffer.type().dtype);
          }
        }
      }
      // Of what an op makes beside its result only statistics stay in f32.
      for (const pipeline::Fragment& fragment : cast.fragments) {
        if (fragment.kind == pipeline::ActionKind::kUpdate) continue;
        for (const ir::Op& op : fragment.graph.ops) {
          for (const ValueId v : op.results) {
            const ir::TensorType& type = fragment.graph.type(v);
            const bool in_state = fragment.alias_of[v.index()].valid();  // a sum of gradients
            if (type.dtype == DType::kF32 && type.elements() > 1 && !in_state)
              in_f32.emplace(ir::op_name(op.kind));
          }
        }
      }
      for (const std::string& op : in_f32) {
        CAPTURE(op);
        const std::set<std::string> expected = {
            "attention",         "layer_norm",         "rms_norm",  "cross_entropy_max",
            "cross_entropy_sum", "cross_entropy_loss", "all_reduce"};
        CHECK(expected.contains(op));
      }
    }
  }
}

TEST_CASE("in bf16 weights and activations halve, and a parameter takes 18 bytes") {
  for (const char* plan : kPlans) {
    CAPTURE(std::string(plan));
    Request request = small();
    request.plan = compile::parse_plan(plan);
    const pipeline::Program whole = train_of(request);
    const pipeline::Program half = in_precision(whole, DType::kBF16);
    const simulate::Result a = simulate::simulate(whole, request.cluster);
    const simulate::Result b = simulate::simulate(half, request.cluster);
    for (size_t r = 0; r < whole.ranks.size(); ++r) {
      using pipeline::Category;
      const auto &x = a.ranks[r].peak.by_category, &y = b.ranks[r].peak.by_category;
      CHECK(y.at(Category::kWeights).value * 2 == x.at(Category::kWeights).value);
      CHECK(y.at(Category::kGradients) == x.at(Category::kGradients));
      CHECK(y.at(Category::kOptimizer).value * 2 == x.at(Category::kOptimizer).value * 3);
      CHECK(b.ranks[r].instructions == a.ranks[r].instructions);
      CHECK(b.ranks[r].bytes_sent < a.ranks[r].bytes_sent + Bytes(1));
      CHECK(b.ranks[r].reserved < a.ranks[r].reserved * 2);
    }
    if (request.plan.ranks() == 1) {
      // The tied embedding's second accumulator.
      constexpr int64_t kSecondUse = 256 * 64 * 4;
      const auto& y = b.ranks[0].peak.by_category;
      const int64_t state =
          (y.at(pipeline::Category::kWeights) + y.at(pipeline::Category::kGradients) +
           y.at(pipeline::Category::kOptimizer))
              .value;
      CHECK(state == y.at(pipeline::Category::kWeights).value / 2 * 18 + kSecondUse);
    }
  }
  CHECK(pipeline::to_text(in_precision(train_of(small()), DType::kF32)) ==
        pipeline::to_text(train_of(small())));
}

TEST_CASE(
    "a loss in f32 holds three copies of the logits, four of divided ones; it takes as long") {
  for (const int64_t tp : {1, 2}) {
    CAPTURE(tp);
    Request request = small();
    request.plan.tp = tp;
    REQUIRE(set_precision(request, "bf16"));
    const Prediction fused = mw::predict::predict(request);
    request.cluster.stack.f32_loss = true;
    const Prediction eager = mw::predict::predict(request);
    CHECK(eager.step == fused.step);
    const int64_t copies = tp == 1 ? 3 : 4;
    const int64_t logits = request.global_batch / request.plan.units() * request.seq_len *
                           request.model.vocab_size / tp;
    const auto workspace = [](const Prediction& p) {
      return p.result.ranks[0].peak.by_category.at(pipeline::Category::kWorkspace).value;
    };
    CHECK(workspace(eager) >= copies * 4 * logits);
    CHECK(workspace(eager) <= workspace(fused) + copies * 4 * logits);
    const std::vector<simulate::LiveTensor>& alive = eager.result.ranks[0].peak.largest;
    CHECK(std::any_of(alive.begin(), alive.end(), [](const simulate::LiveTensor& tensor) {
      return tensor.name.ends_with("largest log-probabilities in f32");
    }));
  }
}

TEST_CASE("a softmax in f32 is there beside the logits, in half precision alone") {
  for (const char* precision : {"bf16", "f32"}) {
    CAPTURE(std::string(precision));
    Request request = small();
    request.model.vocab_size = 1 << 16;
    REQUIRE(set_precision(request, precision));
    const Prediction fused = mw::predict::predict(request);
    request.cluster.stack.f32_softmax = true;
    const Prediction apart = mw::predict::predict(request);
    CHECK(apart.step == fused.step);
    const int64_t logits =
        request.global_batch / request.plan.units() * request.seq_len * request.model.vocab_size;
    const int64_t more = apart.memory[0].alive.value - fused.memory[0].alive.value;
    if (request.precision == DType::kF32) {
      CHECK(more == 0);
    } else {  // without it the step may be fullest elsewhere
      CHECK(more <= 4 * logits);
      CHECK(more > 4 * logits * 98 / 100);
    }
  }
}

TEST_CASE("weights stay gathered but for those that the backward pass has gathered by then") {
  Request request = small();
  request.plan = compile::parse_plan("dp=2,zero=3");
  StackMemory memory;
  memory.gathered_ends = true;
  const auto held = [&](const pipeline::Program& program) {
    int64_t elements = 0;
    for (const pipeline::Fragment& fragment :
         in_precision(program, DType::kBF16, memory).fragments) {
      for (const ir::Value& value : fragment.graph.values) {
        if (value.name == "weights that stay gathered") elements += value.type.elements();
      }
    }
    return elements;
  };
  pipeline::Program program = train_of(request);
  // Tied embedding and positions, the last norm; a block: all but matrices in parts of 256.
  const int64_t all = held(program);
  CHECK(all == 256 * 64 + 64 * 64 + 2 * 256 + 12 * 64 * 64 + 8 * 256);

  // Gathered before the loss's gradient is taken, and read behind it.
  const auto backward =
      std::find_if(program.fragments.begin(), program.fragments.end(),
                   [](const pipeline::Fragment& f) { return f.kind == pipeline::ActionKind::kB; });
  ir::Graph& graph = backward->graph;
  const auto find = [&](ir::OpKind kind, auto from) {
    return std::find_if(from, graph.ops.end(), [&](const ir::Op& op) { return op.kind == kind; });
  };
  const auto loss = find(ir::OpKind::kCrossEntropyGrad, graph.ops.begin());
  const auto gather = find(ir::OpKind::kAllGather, loss);
  const int64_t elements = graph.type(gather->results[0]).elements();
  std::rotate(loss, gather, gather + 1);
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (const ValueId v : graph.ops[o].results)
      graph.value(v).producer = OpId(static_cast<int64_t>(o));
  }
  CHECK(held(program) == all - elements);
}

TEST_CASE("scores of more keys than unfused attention takes are not saved") {
  Request request = small();
  request.global_batch = 1;
  StackMemory memory;
  memory.scores = true;
  const auto more = [&](int64_t keys) {
    request.model = models::parse_config(
        fmt::format(R"({{"model_type": "gpt2", "vocab_size": 256, "n_positions": {}, "n_embd": 64,
            "n_layer": 1, "n_head": 4}})",
                    keys),
        "long.json");
    request.seq_len = keys;
    const pipeline::Program whole = train_of(request);
    return in_precision(whole, DType::kBF16, memory).ranks[0].arena.value -
           in_precision(whole, DType::kBF16).ranks[0].arena.value;
  };
  // Softmax, its dropout and a mask for each pair and head.
  CHECK(more(cost::kUnfusedKeys) > int64_t{5} * 4 * cost::kUnfusedKeys * cost::kUnfusedKeys);
  CHECK(more(cost::kUnfusedKeys + 64) == 0);
}

TEST_CASE("eager selective-op keeps the result of a layer's seventh product, which nobody reads") {
  Request request = small_llama();
  request.plan = compile::parse_plan("recompute=selective-op");
  REQUIRE(set_precision(request, "bf16"));
  const auto workspace = [&](bool fused) {
    request.cluster.device.attained.fused_elementwise = fused;
    request.cluster.stack.f32_loss = true;
    const Prediction p = mw::predict::predict(request);
    return p.result.ranks[0].peak.by_category.at(pipeline::Category::kWorkspace).value;
  };
  CHECK(workspace(false) - workspace(true) == int64_t{2} * 16 * 64 * 64 * 4);
}

TEST_CASE("what autograd saves of a layer are the bytes of Korthikanti et al. 2022, section 4") {
  // 34 s b h and, of the scores, 5 a s^2 b, of which tp divides all but 10 s b h, and with sequence
  // parallelism those, too. Statistics of rows are left out there: 24 bytes a row and layer.
  Request request = small();
  constexpr int64_t kSequence = 256, kHidden = 512, kHeads = 8, kRows = 4 * kSequence;
  const auto layer = [&](const std::string& plan) {
    std::vector<int64_t> activations;
    for (const int64_t blocks : {2, 4}) {
      request.model = models::parse_config(
          fmt::format(R"({{"model_type": "gpt2", "vocab_size": 256, "n_positions": {}, "n_embd": {},
              "n_layer": {}, "n_head": {}}})",
                      kSequence, kHidden, blocks, kHeads),
          "layers.json");
      request.plan = compile::parse_plan(plan);
      activations.push_back(mw::predict::predict(request)
                                .result.ranks[0]
                                .peak.by_category.at(pipeline::Category::kActivations)
                                .value);
    }
    return static_cast<double>(activations[1] - activations[0]) / 2;
  };
  request.seq_len = kSequence;
  request.global_batch = 4;
  REQUIRE(set_precision(request, "bf16"));
  request.cluster.stack.autograd = request.cluster.stack.dropout_masks = true;
  request.cluster.stack.whole_recompute = true;
  request.cluster.device.attained.fused_attention = false;
  constexpr double kUnit = kRows * kHidden, kScores = 5.0 * kHeads * kSequence / kHidden;
  const auto near = [&](double units) { return mw::test::close_to(kUnit * units).epsilon(0.005); };
  CHECK(layer("tp=1") == near(34 + kScores));
  CHECK(layer("tp=4") == near(10 + (24 + kScores) / 4));
  CHECK(layer("tp=4,sp,regather") == near((34 + kScores) / 4));
  CHECK(layer("tp=4,recompute=selective") == near(10 + 24.0 / 4));
  CHECK(layer("tp=4,sp,regather,recompute=selective") == near(34.0 / 4));
  CHECK(layer("tp=4,recompute=full") == near(2));
  // Where no softmax kernel takes two heads of one sample, softmax stays in f32.
  request.cluster.device.attained.blocked_softmax = true;
  CHECK(layer("tp=4") == near(10 + (24 + kScores) / 4));
  CHECK(layer("tp=4,microbatches=4") == near((10 + (24 + kScores * 7 / 5) / 4) / 4));
  CHECK(layer("tp=2,microbatches=4") == near((10 + (24 + kScores) / 2) / 4));
  request.cluster.device.attained.blocked_softmax = false;
  request.cluster.stack.attention_copies = true;  // keys and values once more
  CHECK(layer("tp=4,sp,regather") == near((38 + kScores) / 4));
  CHECK(layer("tp=4,recompute=selective") == near(10 + 24.0 / 4));
  request.cluster.device.attained.fused_attention = true;
  CHECK(layer("tp=4,sp,regather") == near(34.0 / 4));
  request.cluster.stack.dropout_masks = false;
  CHECK(layer("tp=4,sp,regather") == near(32.0 / 4));
  // Norms and activations made again: two norms' results and the hidden activation less.
  request.cluster.stack.autograd = false;
  CHECK(layer("tp=4,sp,regather") == near(20.0 / 4));
}
