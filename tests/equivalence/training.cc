#include "training.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "base/test_close_to.h"
#include "base/text.h"
#include "execute/executor.h"
#include "models/model.h"
#include "models/net_builder.h"
#include "pipeline/verifier.h"
#include "runtime/cpu_backend.h"
#include "train/parameter_io.h"

namespace mw::equivalence {
namespace {

// Made-up data: a number is a function of input, sample and element alone.
execute::Loader loader(const Net& net, const cluster::Mesh& mesh, int64_t step) {
  return [&net, &mesh, step](const std::string& name, int32_t microbatch, RankId rank,
                             const ir::TensorType& type, void* out) {
    const auto scalar = [&](auto value) {
      MW_CHECK(type.rank() == 0, "{} is {}", name, ir::to_string(type));
      std::memcpy(out, &value, sizeof value);
    };
    if (name == "seed") return scalar(int64_t{11});
    if (name == "step") return scalar(step);
    if (name == "lr") return scalar(3e-4F * static_cast<float>(step));
    if (name == "loss_scale") return scalar(1.0F / static_cast<float>(kBatch));
    const int64_t rows = type.dim(0), row_elements = type.elements() / rows;
    if (name == "positions") {
      for (int64_t i = 0; i < type.elements(); ++i)
        static_cast<int32_t*>(out)[i] = static_cast<int32_t>(i % row_elements);
      return;
    }
    if (name == "sample_ids") {
      for (int64_t i = 0; i < rows; ++i)
        static_cast<int64_t*>(out)[i] =
            (microbatch * mesh.axis_size("dp") + mesh.index(rank, {"dp"})) * rows + i;
      return;
    }
    // The same samples in every step, so that the loss falls; others for evaluation.
    const int64_t first = (step > kSteps ? kBatch : 0) +
                          (microbatch * mesh.axis_size("dp") + mesh.index(rank, {"dp"})) * rows;
    for (int64_t i = 0; i < type.elements(); ++i) {
      const auto at =
          static_cast<uint64_t>((first + i / row_elements) * row_elements + i % row_elements);
      const double x = random_uniform(RngKey{3, 0, rng_site(name)}, at);
      if (type.dtype == DType::kI32) {
        static_cast<int32_t*>(out)[i] = static_cast<int32_t>(x * static_cast<double>(net.classes));
      } else {
        static_cast<float*>(out)[i] = static_cast<float>(2 * x - 1);
      }
    }
  };
}

void check_measured(const execute::Executor& executor, const pipeline::Verification& proved,
                    const cluster::Mesh& mesh) {
  for (int64_t r = 0; r < mesh.size(); ++r) {
    const execute::Measured& ran = executor.measured()[static_cast<size_t>(r)];
    const pipeline::RankFigures& figures =
        proved.ranks[static_cast<size_t>(mesh.index(RankId(r), {"pp"}))];
    CHECK(ran.bytes_sent.value == figures.bytes_sent.value);
    CHECK(ran.instructions == figures.instructions);
    CHECK(ran.order_hash == figures.order_hash);
    CHECK(ran.arena_peak.value == figures.arena_peak.value);
  }
}

pipeline::Verification proved(const pipeline::Program& program, const compile::CompiledPlan& plan) {
  pipeline::VerifyOptions options;
  options.module = &plan.module;
  pipeline::Verification verification = pipeline::verify(program, options);
  if (!verification.sound()) throw_error("{}: {}", program.name, join(verification.findings, "\n"));
  return verification;
}

}  // namespace

Net small_gpt(double dropout, int64_t sequence) {
  Net net;
  net.name = dropout > 0 ? "gpt with dropout" : "gpt";
  net.build = [dropout, sequence](int64_t batch) {
    models::ModelConfig config;
    config.source = "small gpt";
    config.layers = 4;
    config.hidden_size = 32;
    config.heads = config.kv_heads = 4;
    config.head_dim = 8;
    config.ffn_size = 64;
    config.vocab_size = 50;
    config.max_positions = sequence;
    config.tie_word_embeddings = true;
    config.embedding_dropout = config.residual_dropout = config.attention_dropout = dropout;
    return models::build_model(config, {batch, sequence});
  };
  net.classes = 50;
  net.must_divide = {{"heads", 4}};
  return net;
}

// Layers "tower.0", "tower.1" … in a chain, each with the same weight, and "out".
static ir::Module build_shared(int uses, int64_t batch) {
  std::vector<ir::Layer> layers;
  for (int i = 0; i < uses; ++i) layers.push_back({fmt::format("tower.{}", i), true});
  layers.push_back({"out", true});
  models::NetBuilder net("shared weight", layers);
  ops::Builder& ops = net.ops();
  const ir::LogicalAxes hidden{"batch", ""};
  ValueId h_BD = net.input("x", DType::kF32, {batch, 12}, hidden);
  net.input("loss_scale", DType::kF32, {});
  net.enter("tower.0");
  const ir::Init init{ir::Init::Kind::kNormal, 0.4};
  const ValueId w_DD =
      net.parameter("shared.weight", {12, 12}, {"", ""}, init, models::NetBuilder::Decay::kYes);
  for (int i = 0; i < uses; ++i) {
    net.enter(fmt::format("tower.{}", i));
    h_BD = net.annotate(ops.relu(ops.dot(h_BD, w_DD, "bd,ed->be")), fmt::format("tower.{}.out", i),
                        hidden);
  }
  net.enter("out");
  const ValueId w_OD =
      net.parameter("out.weight", {4, 12}, {"", ""}, init, models::NetBuilder::Decay::kYes);
  const ValueId y_BO = net.annotate(ops.dot(h_BD, w_OD, "bd,od->bo"), "out.y", hidden);
  net.output_loss(net.annotate(ops.mul(y_BO, y_BO), "loss", hidden));
  return net.finish();
}

Net shared_weight_net(int uses) {
  return {fmt::format("{} uses", uses),
          [uses](int64_t batch) { return build_shared(uses, batch); }};
}

compile::CompiledPlan compiled(const Net& net, const ir::Module& model, const compile::Plan& plan,
                               const Variant& variant) {
  compile::ModelShape shape;
  shape.name = net.name;
  shape.must_divide = net.must_divide;
  shape.global_batch = kBatch;
  return compile::compile({model, &model, plan, shape, {}, variant.schedule, variant.without});
}

std::vector<std::vector<char>> states_after(const Net& net, const compile::CompiledPlan& plan,
                                            const pipeline::Program& train) {
  runtime::CpuBackend backend;
  execute::ExecutorOptions options;
  options.stall_seconds = 20;
  execute::Executor executor({&plan.init, &train}, backend, options);
  executor.run(0, loader(net, plan.plan.mesh, 1));
  for (int64_t step = 1; step <= 2; ++step) executor.run(1, loader(net, plan.plan.mesh, step));
  std::vector<std::vector<char>> states;
  for (int64_t r = 0; r < plan.plan.mesh.size(); ++r) {
    const auto& rank =
        plan.train.ranks[static_cast<size_t>(plan.plan.mesh.index(RankId(r), {"pp"}))];
    for (int32_t b = 0; b < rank.states; ++b) {
      const auto* data = static_cast<const char*>(executor.state_data(RankId(r), BufferId(b)));
      states.emplace_back(data, data + rank.buffers[static_cast<size_t>(b)].bytes().value);
    }
  }
  return states;
}

Trained train(const Net& net, const compile::Plan& plan, const Variant& variant) {
  const ir::Module model = net.build(kBatch / plan.units());
  const compile::CompiledPlan compiled = equivalence::compiled(net, model, plan, variant);
  const std::vector<const pipeline::Program*> programs{&compiled.init, &compiled.train,
                                                       &*compiled.eval};
  std::vector<pipeline::Verification> proofs;
  for (const pipeline::Program* program : programs) proofs.push_back(proved(*program, compiled));

  runtime::CpuBackend backend;
  execute::ExecutorOptions options;
  options.stall_seconds = 20;
  execute::Executor executor(programs, backend, options);
  const cluster::Mesh& mesh = compiled.plan.mesh;
  const auto run = [&](int which, int64_t step) {
    executor.run(which, loader(net, mesh, step));
    check_measured(executor, proofs[static_cast<size_t>(which)], mesh);
  };
  const auto metric = [&](int64_t rank, const char* name) {
    return *static_cast<const float*>(
        executor.state_data(RankId(rank), executor.find_state(RankId(rank), name)));
  };
  Trained trained;
  run(0, 1);
  for (int64_t step = 1; step <= kSteps; ++step) {
    run(1, step);
    trained.losses.push_back(metric(0, compile::kLossValue));
    trained.norms.push_back(metric(0, compile::kGradNorm));
    for (int64_t r = 1; r < mesh.size(); ++r) {
      CHECK(metric(r, compile::kLossValue) == trained.losses.back());
      CHECK(metric(r, compile::kGradNorm) == trained.norms.back());
    }
  }
  run(2, kSteps + 1);
  trained.held_out = metric(0, compile::kLossValue);
  const train::ParameterIo io(compiled, executor);
  for (const StateId parameter : compiled.module.parameters()) {
    const std::string& name = compiled.module.state(parameter).name;
    trained.states[name] = io.read(parameter, train::Part::kWeight);
    trained.states[name + " (m)"] = io.read(parameter, train::Part::kMoment);
    trained.states[name + " (v)"] = io.read(parameter, train::Part::kVariance);
  }
  return trained;
}

std::string bit_difference(const Trained& got, const Trained& want) {
  for (int step = 0; step < kSteps; ++step) {
    const auto i = static_cast<size_t>(step);
    if (got.losses[i] != want.losses[i])
      return fmt::format("step {}: loss {} is not {}", step + 1, got.losses[i], want.losses[i]);
    if (got.norms[i] != want.norms[i])
      return fmt::format("step {}: norm {} is not {}", step + 1, got.norms[i], want.norms[i]);
  }
  if (got.held_out != want.held_out)
    return fmt::format("held-out loss {} is not {}", got.held_out, want.held_out);
  for (const auto& [name, values] : want.states) {
    const std::vector<float>& mine = got.states.at(name);
    for (size_t i = 0; i < values.size(); ++i) {
      if (mine[i] != values[i])
        return fmt::format("{}[{}] is {}, not {}", name, i, mine[i], values[i]);
    }
  }
  return "";
}

void check_plans(const Net& net, const std::vector<std::string>& plans) {
  CAPTURE(net.name);
  const Trained one = train(net, compile::parse_plan("dp=1"));
  CHECK(one.losses.back() < one.losses.front());
  std::map<std::string, Trained> bases;
  for (const std::string& text : plans) {
    CAPTURE(text);
    const compile::Plan plan = compile::parse_plan(text), base = compile::base_plan(plan);
    const std::string key = compile::short_form(base);
    try {
      if (bases.count(key) == 0) {
        const Trained& made = bases[key] = train(net, base);
        CAPTURE(key);
        for (size_t i = 0; i < one.losses.size(); ++i) {
          CHECK(made.losses[i] == mw::test::close_to(one.losses[i]).epsilon(1e-5));
          CHECK(made.norms[i] == mw::test::close_to(one.norms[i]).epsilon(1e-5));
        }
        CHECK(made.held_out == mw::test::close_to(one.held_out).epsilon(1e-5));
      }
      CHECK(bit_difference(train(net, plan), bases.at(key)) == "");
    } catch (const std::exception& error) {
      FAIL_CHECK(error.what());
    }
  }
}

}  // namespace mw::equivalence
