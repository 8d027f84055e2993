// What a run saves and reads back, on a disk in memory.
#include "train/run_checkpoint.h"

#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/fake_fs.h"
#include "base/test_thrown_by.h"
#include "runtime/cpu_backend.h"
#include "train/trainer.h"

namespace mw::train {
namespace {

// Its embedding has more elements than are written at once.
constexpr const char* kModel = R"({"model_type": "gpt2", "vocab_size": 16400, "n_positions": 4,
  "n_embd": 64, "n_layer": 1, "n_head": 1})";

struct Trained {
  explicit Trained(const Job& job_in)
      : job(job_in), plan(prepare(job).plan), executor({&plan.init}, backend, {}) {}

  Job job;
  compile::CompiledPlan plan;
  runtime::CpuBackend backend;
  execute::Executor executor;
  ParameterIo io{plan, executor};
};

Job large_job() {
  Job job;
  job.model_file = "m.json";
  job.model_json = kModel;
  job.model = models::parse_config(kModel, "m.json");
  job.seq_len = 4;
  job.global_batch = 1;
  job.plan = compile::parse_plan("dp=1");
  return job;
}

std::vector<float> written(StateId parameter, Part part, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(),
            static_cast<float>(100 * parameter.value + static_cast<int>(part)));
  return values;
}

TEST_CASE("a run is read back whole, and refused as another's") {
  FakeFileSystem fs;
  fs.make_directory("R");
  Trained made(large_job());
  for (const StateId parameter : made.plan.module.parameters()) {
    for (const Part part : {Part::kWeight, Part::kMoment, Part::kVariance})
      made.io.write(parameter, part, written(parameter, part, made.io.elements(parameter)));
  }
  save_run(fs, "R", made.job, made.plan, made.io, {3, 48, "text"});

  Trained again(large_job());
  const RunState state = load_run(fs, "R", again.job, again.plan, again.io);
  CHECK(state.step == 3);
  CHECK(state.samples == 48);
  CHECK(state.data == "text");
  for (const StateId parameter : again.plan.module.parameters()) {
    CAPTURE(again.plan.module.state(parameter).name);
    for (const Part part : {Part::kWeight, Part::kMoment, Part::kVariance}) {
      const bool same =
          again.io.read(parameter, part) == written(parameter, part, again.io.elements(parameter));
      CHECK(same);
    }
  }

  Job other = large_job();
  other.seed = 2;
  other.model_json.replace(other.model_json.find("\"n_layer\""), 0, "\"initializer_range\": 1, ");
  CHECK(mw::test::thrown_by([&] { load_run(fs, "R", other, again.plan, again.io); }) ==
        "R/checkpoint/step-000003: is of a run with seed 1, but R has seed 2\n"
        "R/checkpoint/step-000003: is of another model than R: their config.json differ");
}

}  // namespace
}  // namespace mw::train
