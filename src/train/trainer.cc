#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "models/model.h"

namespace mw::train {
namespace {

enum Which { kInit = 0, kTrain = 1, kEval = 2, kValidate = 3, kAmend = 4 };

std::vector<const pipeline::Program*> executor_programs(const compile::CompiledPlan& plan) {
  std::vector<const pipeline::Program*> programs{&plan.init, &plan.train, &*plan.eval};
  if (plan.validate) programs.insert(programs.end(), {&*plan.validate, &*plan.amend});
  return programs;
}

// Measured and proved must be the same.
void check_equal(const execute::Measured& ran, const pipeline::RankFigures& figures, int64_t rank) {
  MW_CHECK(ran.bytes_sent == figures.bytes_sent && ran.instructions == figures.instructions &&
               ran.order_hash == figures.order_hash && ran.arena_peak == figures.arena_peak,
           "rank {} ran {} instructions, sent {} bytes and touched {} bytes; verified were {}, {} "
           "and {}",
           rank, ran.instructions, ran.bytes_sent.value, ran.arena_peak.value, figures.instructions,
           figures.bytes_sent.value, figures.arena_peak.value);
}

void require_sound(const pipeline::Verification& proved, const std::string& program) {
  MW_CHECK(proved.sound(), "the program '{}' is not sound:\n{}", program,
           join(proved.findings, "\n"));
}

int default_threads(int asked, int64_t ranks) {
  if (asked > 0) return asked;
  return std::max<int>(
      1, static_cast<int>(std::thread::hardware_concurrency() / static_cast<unsigned>(ranks)));
}

execute::ExecutorOptions executor_options(int threads, int64_t ranks,
                                          std::function<void(const std::string& report)> on_slow) {
  execute::ExecutorOptions options;
  options.threads_per_rank = default_threads(threads, ranks);
  options.on_slow = std::move(on_slow);
  return options;
}

}  // namespace

std::string kernels_finding(const Job& job) {
  const std::string what = job.model.only_simulated();
  if (what.empty()) return "";
  return fmt::format(
      "{}: has {}, which has no kernels yet; use meshwright simulate to predict its steps, or "
      "train a model without",
      job.model_file, what);
}

Prepared prepare(const Job& job) {
  if (const std::string finding = kernels_finding(job); !finding.empty()) throw Error(finding);
  const models::BatchShape batch{job.global_batch / job.plan.units(), job.seq_len,
                                 job.plan.sequence_slices(), job.plan.cp > 1};
  const ir::Module model = models::build_model(job.model, batch);
  models::ModelConfig without_dropout = job.model;
  without_dropout.embedding_dropout = without_dropout.residual_dropout =
      without_dropout.attention_dropout = 0;
  const ir::Module eval_model = models::build_model(without_dropout, batch);
  Prepared prepared;
  prepared.plan = compile::compile({model, &eval_model, job.plan, model_shape(job), job.optimizer});
  pipeline::VerifyOptions options;
  options.module = &prepared.plan.module;
  prepared.init = pipeline::verify(prepared.plan.init, options);
  prepared.train = pipeline::verify(prepared.plan.train, options);
  prepared.eval = pipeline::verify(*prepared.plan.eval, options);
  require_sound(prepared.init, "init");
  require_sound(prepared.train, "train");
  require_sound(prepared.eval, "eval");
  if (!prepared.plan.validate) return prepared;
  prepared.validate = pipeline::verify(*prepared.plan.validate, options);
  prepared.amend = pipeline::verify(*prepared.plan.amend, options);
  require_sound(prepared.validate, "validate");
  require_sound(prepared.amend, "amend");
  pipeline::Verification both;
  both.findings = pipeline::amendment_findings(prepared.plan.train, *prepared.plan.amend);
  require_sound(both, "amend");
  return prepared;
}

const pipeline::Verification& Prepared::proved(size_t i) const {
  const pipeline::Verification* const all[] = {&init, &train, &eval, &validate, &amend};
  return *all[i];
}

Bytes peak_bytes(const pipeline::Program& program, const pipeline::Verification& proved,
                 int64_t pipeline_rank) {
  const pipeline::RankFigures& figures = proved.ranks[static_cast<size_t>(pipeline_rank)];
  Bytes bytes = figures.state_bytes + figures.arena_peak;
  for (const pipeline::Channel& channel : program.channels) {
    if (channel.to == pipeline_rank) bytes += channel.type.bytes() * channel.slots;
  }
  return bytes;
}

Trainer::Trainer(FileSystem& fs, const Job& job, int threads_per_rank,
                 std::function<void(const std::string& report)> on_slow)
    : fs_(fs),
      job_(job),
      prepared_(prepare(job_)),
      batches_(fs, job_),
      options_(executor_options(threads_per_rank, job.plan.ranks(), std::move(on_slow))) {
  executor_ =
      std::make_unique<execute::Executor>(executor_programs(prepared_.plan), backend_, options_);
  io_ = std::make_unique<ParameterIo>(prepared_.plan, *executor_);
  state_.data = batches_.fingerprint();
}

void Trainer::initialize() {
  executor_->run(kInit, batches_.training(prepared_.plan.plan.mesh, 1));
  check_measured(prepared_.init);
}

void Trainer::resume(const std::string& run_dir) {
  const std::string data = state_.data;
  state_ = load_run(fs_, run_dir, job_, prepared_.plan, *io_);
  if (!state_.data.empty() && state_.data != data) {
    throw_error(
        "data.file: {} is not what the run {} was trained on; resume it with the same text, or "
        "begin "
        "anew from its weights with --init",
        job_.data_file, run_dir);
  }
  state_.data = data;
}

void Trainer::load(const std::string& safetensors_path) {
  load_weights(fs_, safetensors_path, job_, prepared_.plan, *io_);
}

float Trainer::metric(const char* name, RankId rank) const {
  return *static_cast<const float*>(executor_->state_data(rank, executor_->find_state(rank, name)));
}

void Trainer::steps(int64_t count, const std::function<void(const StepResult&)>& on_step,
                    trace::Trace* trace) {
  if (prepared_.plan.validate) return flow(count, on_step, trace);
  for (int64_t i = 0; i < count; ++i) one_step(on_step, i == 0 ? trace : nullptr);
}

void Trainer::one_step(const std::function<void(const StepResult&)>& on_step, trace::Trace* trace) {
  StepResult result;
  result.step = state_.step + 1;
  result.lr = learning_rate(job_, result.step);
  const Seconds begin = steady_clock().now();
  executor_->run(kTrain, batches_.training(prepared_.plan.plan.mesh, result.step), trace);
  result.seconds = (steady_clock().now() - begin).value;
  check_measured(prepared_.train);
  result.loss = metric(compile::kLossValue);
  result.grad_norm = metric(compile::kGradNorm);
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))
    explain_non_finite_step(result.step);
  done(result);
  on_step(result);
}

void Trainer::done(const StepResult& result) {
  state_.step = result.step;
  state_.samples += job_.global_batch;
}

void Trainer::flow(int64_t count, const std::function<void(const StepResult&)>& on_step,
                   trace::Trace* trace) {
  const cluster::Mesh& mesh = prepared_.plan.plan.mesh;
  const int64_t first = state_.step + 1;
  execute::Flow flow;
  flow.train = kTrain;
  flow.validate = kValidate;
  flow.amend = kAmend;
  flow.calls = static_cast<size_t>(count);
  flow.loader = [&](size_t call) {
    return batches_.training(mesh, first + static_cast<int64_t>(call));
  };
  // By call that rank 0 has not validated, when its last rank ended it: of those whose norms rank 0
  // has then, all have.
  std::map<size_t, Seconds> ends;
  std::vector<size_t> calls(static_cast<size_t>(mesh.size()), 0);  // [rank] that have ended
  std::mutex mutex;                                                // of `ends`
  Seconds before = steady_clock().now();                           // the end of the call before
  flow.ended = [&](RankId rank, int program, const execute::Measured& measured) {
    const pipeline::Verification& proved = prepared_.proved(static_cast<size_t>(program));
    check_equal(measured, proved.ranks[static_cast<size_t>(mesh.index(rank, {"pp"}))], rank.value);
    if (program != kTrain) return;
    const size_t call = calls[rank.index()]++;
    const std::lock_guard lock(mutex);
    ends[call] = steady_clock().now();
  };
  flow.validated = [&](RankId rank, size_t call) {
    StepResult result;
    result.step = first + static_cast<int64_t>(call);
    result.loss = metric(compile::kLossValue, rank);
    result.grad_norm = metric(compile::kGradNorm, rank);
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) return false;
    if (rank != RankId(0)) return true;
    result.lr = learning_rate(job_, result.step);
    {
      const std::lock_guard lock(mutex);
      const Seconds end = ends.at(call);
      result.seconds = (end - before).value;
      before = end;
      ends.erase(call);
    }
    done(result);
    on_step(result);
    return true;
  };
  executor_->run(flow, trace);
  if (state_.step < first + count - 1) explain_non_finite_step(state_.step + 1);
}

// The update leaves the weights alone when the norm is not finite, so the step can be run again.
void Trainer::explain_non_finite_step(int64_t step) {
  explain_non_finite(step, "loss or the gradient norm", kTrain,
                     batches_.training(prepared_.plan.plan.mesh, step), step - 1);
}

// Runs the program again, looking at every value.
void Trainer::explain_non_finite(int64_t step, std::string_view what, int program,
                                 const execute::Loader& loader, int64_t weights) {
  execute::ExecutorOptions options = options_;
  options.check_finite = true;
  std::string origin = "no single op was found";
  try {
    execute::Executor searching(executor_programs(prepared_.plan), backend_, options);
    ParameterIo there(prepared_.plan, searching);
    for (const StateId parameter : prepared_.plan.module.parameters()) {
      there.write(parameter, Part::kWeight, io_->read(parameter, Part::kWeight));
    }
    searching.run(program, loader);
  } catch (const std::exception& error) {
    origin = error.what();
  }
  throw RunError(fmt::format("step {}: the {} is not finite; {}; the weights are those of step {}",
                             step, what, origin, weights));
}

float Trainer::evaluate() {
  const int64_t batches = std::min(job_.eval_batches, batches_.evaluation_batches());
  MW_CHECK(batches > 0, "no held-out batches");
  double sum = 0;
  for (int64_t b = 0; b < batches; ++b) {
    executor_->run(kEval, batches_.evaluation(prepared_.plan.plan.mesh, b));
    check_measured(prepared_.eval);
    const float loss = metric(compile::kLossValue);
    if (!std::isfinite(loss)) {
      explain_non_finite(state_.step, "held-out loss", kEval,
                         batches_.evaluation(prepared_.plan.plan.mesh, b), state_.step);
    }
    sum += loss;
  }
  return static_cast<float>(sum / static_cast<double>(batches));
}

void Trainer::save(const std::string& run_dir) {
  save_run(fs_, run_dir, job_, prepared_.plan, *io_, state_);
}

void Trainer::check_measured(const pipeline::Verification& proved) const {
  const cluster::Mesh& mesh = prepared_.plan.plan.mesh;
  for (int64_t r = 0; r < mesh.size(); ++r) {
    check_equal(executor_->measured()[static_cast<size_t>(r)],
                proved.ranks[static_cast<size_t>(mesh.index(RankId(r), {"pp"}))], r);
  }
}

int64_t Trainer::bytes_sent_per_step() const {
  const cluster::Mesh& mesh = prepared_.plan.plan.mesh;
  int64_t sum = 0;
  for (int64_t r = 0; r < mesh.size(); ++r) {
    sum +=
        prepared_.train.ranks[static_cast<size_t>(mesh.index(RankId(r), {"pp"}))].bytes_sent.value;
  }
  return sum;
}

int64_t Trainer::peak_bytes_per_rank() const {
  Bytes peak;
  for (size_t r = 0; r < prepared_.train.ranks.size(); ++r) {
    peak =
        std::max(peak, peak_bytes(prepared_.plan.train, prepared_.train, static_cast<int64_t>(r)));
  }
  return peak.value;
}

}  // namespace mw::train
