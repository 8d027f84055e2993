// Whole training programs on the executor and this backend.
#include <doctest/doctest.h>

#include <cstring>

#include "base/rng.h"
#include "execute/executor.h"
#include "execute/test_allocations.h"
#include "pipeline/test_pipeline.h"
#include "pipeline/verifier.h"
#include "runtime/cpu_backend.h"

namespace mw::runtime {
namespace {

using execute::Executor;
using pipeline::PipelineMaker;
using pipeline::PipelineSpec;
using pipeline::Program;

constexpr int64_t kDp = 1, kTp = 2;  // axes of the mesh, in order after pp

float number(const std::string& site, int64_t index) {
  return 0.4f * (random_uniform({.seed = 3, .step = 0, .site = rng_site(site)},
                                static_cast<uint64_t>(index)) -
                 0.5f);
}

// A run of steps: the weights w1 and w2 of every stage as whole matrices, the loss and the norm of
// each step.
struct Outcome {
  std::vector<std::vector<float>> weights;  // [2 * stage + (0: w1_DF, 1: w2_FD)]
  std::vector<float> losses, norms;
};

struct Run {
  Program program;
  PipelineSpec spec;
  CpuBackend backend;
  std::unique_ptr<Executor> executor;

  explicit Run(PipelineSpec s) : program(PipelineMaker(s).make()), spec(s) {
    executor = std::make_unique<Executor>(std::vector<const Program*>{&program}, backend,
                                          execute::ExecutorOptions());
    for (int r = 0; r < program.mesh.size(); ++r) {
      each_weight(r, [&](int64_t which, int64_t index, float& value) {
        value = number("w" + std::to_string(which), index);
      });
    }
  }

  float* state(int rank, const std::string& name) {
    const BufferId id = executor->find_state(RankId(rank), name);
    return id.valid() ? static_cast<float*>(executor->state_data(RankId(rank), id)) : nullptr;
  }

  // f(2 * stage + matrix, global index, value) for the rank's shard.
  template <typename F>
  void each_weight(int rank, F f) {
    constexpr int64_t D = PipelineMaker::kD, F_ = PipelineMaker::kF;
    const int64_t tp = program.mesh.coordinates(RankId(rank))[kTp], local = F_ / spec.tp;
    for (int32_t s = 0; s < spec.ranks * spec.chunks; ++s) {
      float* w1_DF = state(rank, "w1." + std::to_string(s));
      float* w2_FD = state(rank, "w2." + std::to_string(s));
      if (w1_DF == nullptr) continue;
      for (int64_t d = 0; d < D; ++d) {
        for (int64_t i = 0; i < local; ++i) {
          f(2 * s, d * F_ + tp * local + i, w1_DF[d * local + i]);
          f(2 * s + 1, (tp * local + i) * D + d, w2_FD[i * D + d]);
        }
      }
    }
  }

  void step(int64_t n) {
    executor->run(0, [&](const std::string& name, int32_t microbatch, RankId rank,
                         const ir::TensorType& type, void* data) {
      if (name == "step") {
        std::memcpy(data, &n, sizeof n);
      } else if (name == "lr") {
        *static_cast<float*>(data) = 0.01f;
      } else {
        const int64_t dp = program.mesh.coordinates(rank)[kDp];
        for (int64_t i = 0; i < type.elements(); ++i) {
          static_cast<float*>(data)[i] =
              5 * number("x" + std::to_string(microbatch), dp * type.elements() + i);
        }
      }
    });
  }

  Outcome train(int steps) {
    Outcome outcome;
    const int last = static_cast<int>(program.mesh.size()) - 1;
    for (int n = 1; n <= steps; ++n) {
      step(n);
      outcome.losses.push_back(*state(last, "loss_value"));
      outcome.norms.push_back(*state(last, "grad_norm"));
    }
    outcome.weights.assign(static_cast<size_t>(2 * spec.ranks * spec.chunks),
                           std::vector<float>(PipelineMaker::kD * PipelineMaker::kF));
    for (int r = 0; r < program.mesh.size(); ++r) {
      each_weight(r, [&](int64_t which, int64_t index, float& value) {
        outcome.weights[static_cast<size_t>(which)][static_cast<size_t>(index)] = value;
      });
    }
    return outcome;
  }
};

void check_near(const Outcome& a, const Outcome& b, double tolerance) {
  const auto near = [&](const std::vector<float>& x, const std::vector<float>& y) {
    REQUIRE(x.size() == y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      if (tolerance == 0) {
        CHECK(x[i] == y[i]);
      } else {
        CHECK(std::abs(x[i] - y[i]) <= tolerance * (1 + std::abs(y[i])));
      }
    }
  };
  near(a.losses, b.losses);
  near(a.norms, b.norms);
  REQUIRE(a.weights.size() == b.weights.size());
  for (size_t w = 0; w < a.weights.size(); ++w) near(a.weights[w], b.weights[w]);
}

TEST_CASE("losses fall, and schedules and ZeRO change no bit") {
  const Outcome base = Run({.ranks = 2, .dp = 2}).train(4);
  CHECK(base.losses.back() < base.losses.front());
  CHECK(base.norms.front() > 0);
  check_near(Run({.ranks = 2, .dp = 2, .schedule = "gpipe"}).train(4), base, 0);
  check_near(Run({.ranks = 2, .dp = 2, .slots = 2}).train(4), base, 0);
  check_near(Run({.ranks = 2, .dp = 2, .zero = true}).train(4), base, 0);
}

TEST_CASE("tensor parallelism changes rounding alone") {
  check_near(Run({.ranks = 2, .dp = 1, .tp = 2}).train(3), Run({.ranks = 2}).train(3), 2e-5);
}

TEST_CASE("what a run measures is what the verifier predicts") {
  for (const PipelineSpec& spec :
       std::vector<PipelineSpec>{{.ranks = 1},
                                 {.ranks = 3, .microbatches = 5},
                                 {.ranks = 2, .dp = 2, .tp = 2},
                                 {.ranks = 2, .dp = 2, .zero = true},
                                 {.ranks = 2, .chunks = 2, .schedule = "interleaved-1f1b"}}) {
    Run run(spec);
    const pipeline::Verification verified = pipeline::verify(run.program);
    for (const std::string& finding : verified.findings) MESSAGE(finding);
    REQUIRE(verified.sound());
    for (int step = 1; step <= 2; ++step) {
      run.step(step);
      for (int r = 0; r < run.program.mesh.size(); ++r) {
        const auto coordinate = static_cast<size_t>(run.program.mesh.coordinates(RankId(r))[0]);
        const execute::Measured& measured = run.executor->measured()[static_cast<size_t>(r)];
        const pipeline::RankFigures& figures = verified.ranks[coordinate];
        CHECK(measured.bytes_sent == figures.bytes_sent);
        CHECK(measured.instructions == figures.instructions);
        CHECK(measured.order_hash == figures.order_hash);
        CHECK(measured.arena_peak == figures.arena_peak);
      }
    }
  }
}

TEST_CASE("from the second step on a rank allocates nothing") {
  Run run({.ranks = 2, .microbatches = 8});
  run.step(1);
  run.step(2);
  execute::start_counting_allocations();
  run.step(3);
  // The loader of this test makes names; the run itself makes its job.
  CHECK(execute::stop_counting_allocations() <= 8 + 8);
}

}  // namespace
}  // namespace mw::runtime
