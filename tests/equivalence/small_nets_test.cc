// Nets that are no transformers train under many plans through compile -> verify -> execute: a plan
// against its base plan bit for bit, base plans against one rank within rounding, and what ran is
// what was verified.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "compile/compile.h"
#include "execute/executor.h"
#include "models/net_builder.h"
#include "models/small_nets.h"
#include "pipeline/verifier.h"
#include "runtime/cpu_backend.h"
#include "train/parameter_io.h"

namespace mw {
namespace {

constexpr int64_t kBatch = 16;  // samples a step
constexpr int kSteps = 5;

struct Net {
  std::string name;
  std::function<ir::Module(int64_t batch)> build;  // samples of one microbatch
  int64_t classes = 1;                             // targets are below
};

// What a plan trained to.
struct Trained {
  std::vector<float> losses, norms;
  float held_out = 0;
  std::map<std::string, std::vector<float>> states;  // weights and moments by name
};

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

Trained train(const Net& net, const compile::Plan& plan) {
  const ir::Module model = net.build(kBatch / plan.microbatches);
  compile::ModelShape shape;
  shape.name = net.name;
  shape.global_batch = kBatch;
  const compile::CompiledPlan compiled = compile::compile({model, &model, plan, shape, {}});
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

// Empty, or the first thing that is not the same to the last bit.
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
          CHECK(made.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
          CHECK(made.norms[i] == doctest::Approx(one.norms[i]).epsilon(1e-5));
        }
        CHECK(made.held_out == doctest::Approx(one.held_out).epsilon(1e-5));
      }
      CHECK(bit_difference(train(net, plan), bases.at(key)) == "");
    } catch (const std::exception& error) {
      FAIL_CHECK(error.what());
    }
  }
}

Net mlp(models::Loss loss, int64_t ffn) {
  return {
      loss == models::Loss::kRegression ? "mlp" : "mlp classifier",
      [loss, ffn](int64_t batch) {
        return models::build_mlp(
            {.batch = batch, .inputs = 10, .hidden = 24, .ffn = ffn, .outputs = 6, .loss = loss});
      },
      6};
}

TEST_CASE("an MLP with a skip over two stages trains alike under all plans") {
  const std::vector<std::string> plans{
      "microbatches=4,recompute=full",
      "pp=2,microbatches=4",
      "pp=4,microbatches=4",
      "pp=4,microbatches=8,schedule=gpipe",
      "pp=2,chunks=2,microbatches=4",
      "pp=3,layers=2:0:2,microbatches=4",
      "pp=2,layers=1:3,microbatches=2,zero=1",
      "dp=2,pp=2,microbatches=4,zero=1",
      "dp=2,pp=2,chunks=2,microbatches=4,zero=2",
      "dp=2,pp=2,microbatches=2,zero=3,recompute=full",
      "dp=4,zero=3",
      "dp=4,microbatches=2,zero=3,grad_reduce=step",
      "dp=2,zero=2,grad_reduce=step,microbatches=2",
      "tp=2,pp=2,microbatches=2",
      "tp=4,pp=2,chunks=2,microbatches=2,recompute=full",
      "dp=2,tp=2,pp=2,microbatches=4,zero=1",
      "dp=2,tp=2,pp=2,order=dp-pp-tp,microbatches=4,zero=3",
      "dp=2,tp=2,pp=4,microbatches=4,zero=2,recompute=full",
  };
  check_plans(mlp(models::Loss::kRegression, 64), plans);
  // 42 over tp=4: shards of 11, the last with padding.
  check_plans(mlp(models::Loss::kClassification, 42), plans);
}

TEST_CASE("two towers that share a weight train alike under all plans") {
  const Net net{
      "two towers", [](int64_t batch) {
        return models::build_two_tower({.batch = batch, .inputs = 12, .hidden = 30, .outputs = 5});
      }};
  check_plans(net, {
                       "microbatches=4,recompute=full",
                       "pp=2,microbatches=4",
                       "pp=3,microbatches=4",
                       "pp=3,microbatches=4,schedule=gpipe,zero=1",
                       "pp=2,layers=2:1,microbatches=2",
                       "pp=2,chunks=2,layers=1:1:1:0,microbatches=2",
                       "pp=2,chunks=2,layers=1:0:1:1,microbatches=4",
                       "dp=2,pp=3,microbatches=2,zero=1",
                       "dp=2,pp=2,microbatches=4,zero=2",
                       "dp=2,pp=3,microbatches=2,zero=3,recompute=full",
                       "dp=4,zero=3,grad_reduce=step",
                       "tp=2,pp=3,microbatches=2",
                       "tp=4,pp=2,microbatches=4,recompute=full",
                       "dp=2,tp=2,pp=2,microbatches=2,zero=3",
                       "dp=2,tp=2,pp=3,microbatches=4,zero=1",
                   });
}

TEST_CASE("a convolutional net trains alike under all plans") {
  const Net net{"conv net",
                [](int64_t batch) {
                  return models::build_conv_net(
                      {.batch = batch, .size = 10, .width = 4, .convolutions = 3, .outputs = 7});
                },
                7};
  check_plans(net, {
                       "microbatches=4,recompute=full",
                       "pp=2,microbatches=4",
                       "pp=4,microbatches=4",
                       "pp=2,chunks=2,microbatches=4",
                       "pp=4,microbatches=8,schedule=gpipe,recompute=full",
                       "pp=3,layers=1:2:1,microbatches=4",
                       "dp=2,microbatches=2,zero=1",
                       "dp=4,zero=3",
                       "dp=2,pp=2,microbatches=4,zero=2",
                       "dp=2,pp=2,chunks=2,microbatches=4,zero=3,recompute=full",
                       "dp=2,pp=4,microbatches=2,zero=1,order=dp-pp-tp",
                       "tp=2,pp=2,microbatches=2",
                   });
}

// Layers "tower.0", "tower.1" … in a chain, each with the same weight, and "out".
ir::Module build_shared(int uses, int64_t batch) {
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

Net shared(int uses) {
  return {fmt::format("{} uses", uses),
          [uses](int64_t batch) { return build_shared(uses, batch); }};
}

TEST_CASE("a weight of three layers keeps its bits wherever its uses lie") {
  check_plans(shared(3), {"pp=2,layers=2:2,microbatches=2", "pp=2,layers=3:1,microbatches=2",
                          "pp=2,layers=1:3,microbatches=2", "pp=2,chunks=2,microbatches=2",
                          "pp=4,microbatches=4", "dp=2,pp=3,layers=2:1:1,microbatches=2,zero=1",
                          "dp=2,pp=4,microbatches=2,zero=3"});
}

TEST_CASE("a weight of four layers keeps its bits over two and four ranks with every ZeRO stage") {
  std::vector<std::string> plans{"pp=4,chunks=1,microbatches=4,layers=1:1:2:1",
                                 "pp=2,chunks=2,microbatches=4,layers=1:1:2:1",
                                 "pp=2,chunks=2,microbatches=4,layers=2:1:1:1,recompute=full"};
  for (const char* zero : {"0", "1", "2", "3"}) {
    for (const char* shape : {"pp=2,layers=2:3", "pp=2,layers=3:2", "pp=4,layers=1:1:1:2",
                              "pp=2,chunks=2,layers=1:1:1:2"}) {
      plans.push_back(fmt::format("dp=2,{},microbatches=2,zero={}", shape, zero));
    }
  }
  plans.push_back("dp=2,pp=2,layers=2:3,microbatches=2,zero=3,grad_reduce=step");
  plans.push_back("dp=2,pp=2,chunks=2,layers=1:1:1:2,microbatches=2,grad_reduce=microbatch");
  check_plans(shared(4), plans);
}

}  // namespace
}  // namespace mw
