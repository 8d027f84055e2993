// Trainer: a job under a plan, compiled, verified and ready to run, step by step.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/fs.h"
#include "compile/compile.h"
#include "execute/executor.h"
#include "pipeline/verifier.h"
#include "runtime/cpu_backend.h"
#include "train/batches.h"
#include "train/job.h"
#include "train/parameter_io.h"
#include "train/run_checkpoint.h"

namespace mw::train {

// What is compiled and proved before anything runs.
struct Prepared {
  compile::CompiledPlan plan;
  pipeline::Verification train, eval, init;
  pipeline::Verification validate, amend;  // of a plan with post-validation

  // What is proved of executor_programs()[i].
  const pipeline::Verification& proved(size_t i) const;
};
// Why the job's model can only be simulated; "" if it trains.
std::string kernels_finding(const Job& job);
// Compiles and verifies a job. Throws CheckFailure with the verifier's findings: a plan that parses
// must compile to sound programs.
Prepared prepare(const Job& job);

struct StepResult {
  int64_t step = 0;
  float loss = 0, grad_norm = 0;
  double lr = 0, seconds = 0;
};

// Memory of the devices of one pipeline rank: states, step arena, and the slots of the channels
// that it receives from. What kernels and collectives use beside them for a moment is not in it.
Bytes peak_bytes(const pipeline::Program& program, const pipeline::Verification& proved,
                 int64_t pipeline_rank);

class Trainer {
 public:
  // `threads_per_rank` 0: cores / ranks, at least 1. `on_slow` as in ExecutorOptions.
  Trainer(FileSystem& fs, const Job& job, int threads_per_rank = 0,
          std::function<void(const std::string& report)> on_slow = nullptr);

  // One of the three before the first step.
  void initialize();                               // draws the weights
  void resume(const std::string& run_dir);         // goes on where the run's newest checkpoint is
  void load(const std::string& safetensors_path);  // weights from a file, no optimizer state

  // Runs the next steps, and says what became of each when it is known, in order: with
  // post-validation ranks may be at work on the next then, and it is said from a rank's thread.
  // Throws RunError where a loss is not finite, naming the step and the first op and rank that made
  // a non-finite value; the weights are then those before the step. The trace is of the first step.
  void steps(int64_t count, const std::function<void(const StepResult&)>& on_step,
             trace::Trace* trace = nullptr);
  // Mean loss over the first eval_batches held-out batches. Throws RunError where it is not finite.
  float evaluate();
  void save(const std::string& run_dir);

  const Prepared& prepared() const { return prepared_; }
  const RunState& state() const { return state_; }
  ParameterIo& parameters() { return *io_; }
  // Of one step, over all ranks.
  int64_t bytes_sent_per_step() const;
  // peak_bytes() of the rank that needs most.
  int64_t peak_bytes_per_rank() const;

 private:
  float metric(const char* name, RankId rank = RankId(0)) const;
  void check_measured(const pipeline::Verification& proved) const;
  void one_step(const std::function<void(const StepResult&)>& on_step, trace::Trace* trace);
  // Steps that run into one another.
  void flow(int64_t count, const std::function<void(const StepResult&)>& on_step,
            trace::Trace* trace);
  void done(const StepResult& result);
  // Throw RunError, which names the first value that is not finite.
  [[noreturn]] void explain_non_finite_step(int64_t step);
  [[noreturn]] void explain_non_finite(int64_t step, std::string_view what, int program,
                                       const execute::Loader& loader, int64_t weights);

  FileSystem& fs_;
  Job job_;
  Prepared prepared_;
  Batches batches_;
  runtime::CpuBackend backend_;
  const execute::ExecutorOptions options_;
  std::unique_ptr<execute::Executor> executor_;
  std::unique_ptr<ParameterIo> io_;
  RunState state_;
};

}  // namespace mw::train
