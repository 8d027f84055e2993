#include "predict/predict.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cost/attention_time.h"
#include "cost/op_time.h"
#include "models/model.h"
#include "predict/endless.h"
#include "predict/lacking.h"
#include "predict/precision.h"
#include "predict/torch_memory.h"
#include "predict/without_effect.h"
#include "simulate/call_time.h"

namespace mw::predict {
namespace {

// The request, in which nothing is wrong.
const Request& checked(const Request& request) {
  const std::vector<std::string> found =
      findings(request, {.plan = request.plan, .unsound = {}, .findings = {}, .step = {}});
  if (!found.empty()) throw Error(found);
  return request;
}

ir::Module model_of(const Request& request) {
  return stack_model(request.cluster, request.model,
                     {request.global_batch / request.plan.units(), request.seq_len,
                      request.plan.sequence_slices(), request.plan.cp > 1});
}

compile::CompileRequest compile_request(const Request& request, const ir::Module& model,
                                        const StackMemory& memory) {
  return {.model = model,
          .plan = stack_plan(request.cluster, request.plan),
          .shape = model_shape(request),
          .optimizer = {},
          .without = passes_left_out(request.cluster),
          .init = false,
          .offsets = !plans_memory(request.precision, memory),
          .whole_recompute = request.cluster.stack.whole_recompute};
}

// Of a step on all devices, as papers count them; they have no formula for every second product:
// what ranks make again is added there.
double hardware_flops_of(const Prediction& p, compile::Recompute recompute,
                         const models::ModelFlops& token, double tokens) {
  switch (recompute) {
    case compile::Recompute::kNone: return token.training.value * tokens;
    case compile::Recompute::kSelective: return token.selective_recompute.value * tokens;
    case compile::Recompute::kFull: return token.full_recompute.value * tokens;
    case compile::Recompute::kSelectiveOp: break;
  }
  double again = 0;
  for (const simulate::RankResult& rank : p.result.ranks) again += rank.recomputed_flops.value;
  return token.training.value * tokens +
         again * static_cast<double>(p.devices) / static_cast<double>(p.result.ranks.size());
}

void fill_rates(const Request& request, Prediction& p) {
  const double tokens = static_cast<double>(request.global_batch * request.seq_len);
  const double devices = static_cast<double>(p.devices), step = p.step.value;
  const models::ModelFlops flops = models::model_flops_per_token(request.model, request.seq_len);
  const double model_flops = flops.training.value * tokens;
  const double hardware_flops = hardware_flops_of(p, request.plan.recompute, flops, tokens);
  p.peak = dense_peak(request);
  for (const auto& [format, peak] : request.cluster.device.peaks) {
    if (peak == p.peak && p.peak_format.empty()) p.peak_format = format;
    if (peak == p.peak && format == dtype_name(request.precision)) p.peak_format = format;
  }
  p.tokens_per_s = tokens / step;
  p.tflops_per_device = model_flops / step / devices / 1e12;
  p.mfu = model_flops / step / devices / p.peak.value;
  p.hfu = hardware_flops / step / devices / p.peak.value;
  p.causal_mfu = p.mfu * (1 - flops.masked.value / flops.training.value);
}

void fill_memory(const pipeline::Program& program, Prediction& p) {
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    StageMemory memory;
    for (const pipeline::Command& command : program.ranks[r].commands) {
      const StageId stage = command.action.stage;
      if (stage.valid() &&
          std::find(memory.stages.begin(), memory.stages.end(), stage.value) == memory.stages.end())
        memory.stages.push_back(stage.value);
    }
    std::sort(memory.stages.begin(), memory.stages.end());
    memory.peak = p.result.ranks[r].reserved;
    memory.alive = p.result.ranks[r].peak.bytes;
    p.memory.push_back(std::move(memory));
  }
}

std::vector<std::string> kernel_findings(const cluster::Cluster& cluster) {
  std::vector<std::string> findings;
  std::vector<std::string_view> known;
  for (int kind = 0; kind < ir::kOpKinds; ++kind)
    known.push_back(ir::op_name(static_cast<ir::OpKind>(kind)));
  for (const auto& [op, rate] : cluster.device.kernel_rates) {
    if (ir::parse_op(op)) continue;
    findings.push_back(fmt::format("{}: device.kernel_G_per_s: there is no op '{}'{}", cluster.file,
                                   clipped(op), did_you_mean(op, known)));
  }
  return findings;
}

}  // namespace

cluster::FlopsPerSecond dense_peak(const Request& request) {
  const cluster::Device& device = request.cluster.device;
  return request.options.fp8 != cost::Fp8::kOff
             ? device.peak("fp8")
             : cost::matrix_peak(device, request.precision, request.options.tf32);
}

std::string precision_finding(const Request& request) {
  const cluster::Cluster& cluster = request.cluster;
  if (request.options.fp8 == cost::Fp8::kOff || cluster.device.peak("fp8").value > 0) return "";
  const std::string_view other = cluster.device.peak("bf16").value > 0  ? "bf16"
                                 : cluster.device.peak("f16").value > 0 ? "f16"
                                                                        : "f32";
  return fmt::format("{}: {} has no fp8 products (peak_TFLOPs.fp8); use --precision {}",
                     cluster.file, cluster.device.name, other);
}

std::vector<std::string> cluster_findings(const Request& request,
                                          const compile::PlanReading& reading) {
  Diagnostics diagnostics;
  const cluster::Cluster& cluster = request.cluster;
  if (cluster.devices > 0 && reading.plan.ranks() > cluster.devices &&
      reading.sound({"dp", "tp", "pp", "cp"})) {
    diagnostics.add("{}: has {} {}, the plan needs {}", cluster.file, cluster.devices,
                    cluster.devices == 1 ? "device" : "devices", reading.plan.rank_text());
  }
  if (const std::string finding = precision_finding(request); !finding.empty())
    diagnostics.add("{}", finding);
  for (const std::string& finding : kernel_findings(cluster)) diagnostics.add("{}", finding);
  return diagnostics.findings();
}

std::vector<std::string> model_findings(const Request& request,
                                        const compile::PlanReading& reading) {
  std::vector<std::string> found =
      compile::plan_findings(reading, request.model.layers, model_shape(request));
  const std::string wrong = models::positions_finding(request.model, request.seq_len);
  if (!wrong.empty()) found.push_back("the sequence length " + wrong);
  return found;
}

std::vector<std::string> findings(const Request& request, const compile::PlanReading& reading) {
  std::vector<std::string> all = cluster_findings(request, reading);
  for (std::string& finding : model_findings(request, reading)) all.push_back(std::move(finding));
  return all;
}

std::vector<std::string> outside_profile(const Request& request) {
  std::vector<std::string> outside;
  const cluster::Stack& stack = request.cluster.stack;
  const compile::Plan& plan = request.plan;
  std::map<std::string, int64_t> values = {
      {"hidden", request.model.hidden_size},
      {"sequence", request.seq_len},
      {"microbatch", request.global_batch / plan.units() / plan.dp},
      {"devices", plan.ranks()},
      {"tp", plan.tp},
      {"pp", plan.pp},
      {"dp", plan.dp},
      {"cp", plan.cp},
      {"experts", request.model.mixture.experts}};
  if (plan.dp > 1) values["zero"] = plan.zero;
  for (const cluster::Stack::Range& range : stack.measured) {
    const auto it = values.find(range.name);
    if (it == values.end()) continue;
    const double value = static_cast<double>(it->second);
    if (value >= range.least && value <= range.most) continue;
    const std::string most =
        range.most > range.least ? fmt::format(" to {:.0f}", range.most) : std::string();
    outside.push_back(
        fmt::format("{} {} (measured {:.0f}{})", range.name, it->second, range.least, most));
  }
  // Both halves run at one rate.
  const auto half = [](const std::string& name) { return name == "bf16" ? "f16" : name; };
  const std::string own = precision_name(request);
  const std::vector<std::string>& known = stack.precisions;
  if (!known.empty() && std::none_of(known.begin(), known.end(), [&](const std::string& name) {
        return half(name) == half(own);
      }))
    outside.push_back(fmt::format("precision {} (measured {})", own, join(known, ", ")));
  if (const cluster::Device& device = request.cluster.device;
      request.options.fp8 == cost::Fp8::kOff && device.peak(own).value == 0 &&
      !device.peaks.empty()) {
    const double taken =
        cost::matrix_peak(device, request.precision, request.options.tf32).value / 1e12;
    outside.push_back(fmt::format("{} products, which {} has not (taken at {:g} TFLOP/s)", own,
                                  device.name, taken));
  }
  if (!known.empty() && !request.cluster.device.attained.fused_attention &&
      request.seq_len > cost::kUnfusedKeys) {
    outside.push_back(
        fmt::format("attention of {} keys, taken as fused (measured unfused)", request.seq_len));
  }
  if (stack.measured.empty() && known.empty()) {
    const std::vector<std::string>& others = request.cluster.profiles;
    outside.push_back(!stack.name.empty() ? "everything (no run is behind its constants)"
                      : others.empty() ? "everything (no profile)"
                                       : fmt::format("everything (no profile; --profile takes {})",
                                                     join(others, ", ")));
  }
  for (const std::string& what : lacking(stack, plan))
    outside.push_back(what + " (its engine has none)");
  return outside;
}

const std::vector<std::string>& precision_names() {
  static const std::vector<std::string> names = {"bf16", "f16", "f32", "fp8", "mxfp8"};
  return names;
}

std::string precision_name(const Request& request) {
  switch (request.options.fp8) {
    case cost::Fp8::kOff: return std::string(dtype_name(request.precision));
    case cost::Fp8::kTensor: return "fp8";
    case cost::Fp8::kBlock: return "mxfp8";
  }
  return "?";
}

bool set_precision(Request& request, const std::string& name) {
  const std::vector<std::string>& names = precision_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) return false;
  request.options.fp8 = name == "fp8"     ? cost::Fp8::kTensor
                        : name == "mxfp8" ? cost::Fp8::kBlock
                                          : cost::Fp8::kOff;
  request.precision = parse_dtype(name).value_or(DType::kBF16);
  return true;
}

compile::ModelShape model_shape(const Request& request) {
  compile::ModelShape shape;
  const models::ModelConfig& model = request.model;
  shape.name = model.source;
  for (const models::DividedSize& one : model.divided_sizes()) {
    shape.must_divide[one.axis] = one.size;
    shape.key[one.axis] = one.key;
  }
  shape.global_batch = request.global_batch;
  shape.seq_len = request.seq_len;
  shape.experts = model.mixture.experts;
  shape.top_k = model.mixture.top_k;
  return shape;
}

pipeline::Program program_of(const Request& request) { return compile_step(request).program; }

Bytes Prediction::needed() const {
  Bytes most, sum;
  for (const StageMemory& rank : memory) {
    most = std::max(most, rank.peak);
    sum += rank.peak;
  }
  if (sharing == 1) return most;
  const auto ranks = static_cast<int64_t>(memory.size());
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  // Of more ranks than memory could ever hold.
  if (sum.value > kMost / sharing) return Bytes(kMost);
  return Bytes(sum.value * sharing / ranks);
}

std::vector<int32_t> Prediction::too_full() const {
  std::vector<int32_t> ranks;
  for (size_t r = 0; r < memory.size(); ++r) {
    if ((sharing == 1 ? memory[r].peak : needed()) > memory_limit)
      ranks.push_back(static_cast<int32_t>(r));
  }
  return ranks;
}

StepBase::StepBase(const Request& asked) : StepBase(flushed(asked), model_of(checked(asked))) {}
StepBase::StepBase(const Request& flushed, ir::Module model)
    : model_(std::move(model)), partitioned_(compile_request(flushed, model_, {})) {}

Step compile_step(const Request& asked, const StepBase* base) {
  const Request request = flushed(checked(asked));
  Step step;
  const Seconds begin = steady_clock().now();
  std::optional<ir::Module> own;
  if (base == nullptr) own = model_of(request);
  const ir::Module& model = own ? *own : base->model_;
  step.parameters = models::parameter_count(model);
  const StackMemory memory = stack_memory(request.cluster, request.plan, request.options.fp8);
  compile::CompileRequest to_compile = compile_request(request, model, memory);
  if (base != nullptr) to_compile.partitioned = &base->partitioned_;
  compile::CompiledPlan compiled = compile::compile(to_compile);
  step.program = in_precision(std::move(compiled.train), request.precision, memory);
  step.compile_time = steady_clock().now() - begin;
  return step;
}

std::vector<double> stage_costs(const Request& request) {
  MW_CHECK(request.plan.pp > 1 && request.plan.chunks == 1, "costs of {} stages in {} chunks",
           request.plan.pp, request.plan.chunks);
  Request split = request;
  const pipeline::ScheduleKind* apart =
      pipeline::with_split_backward(pipeline::kind_of(pipeline::kUsualKind));
  MW_CHECK(apart != nullptr, "no kind has the order of {} with I and W apart",
           pipeline::kUsualKind);
  split.plan.schedule = apart->name;
  split.plan.written = {};
  split.plan.memory_limit = 0;
  split.plan.costs.clear();
  const Step step = compile_step(split);
  const std::vector<simulate::CallTime> times =
      simulate::call_times(step.program, split.cluster, split.options);
  std::vector<double> costs(3);
  for (const pipeline::Command& command :
       step.program.ranks[static_cast<size_t>(request.plan.pp / 2)].commands) {
    if (command.kind != pipeline::Command::Kind::kCall) continue;
    const double time = times[command.fragment.index()].whole.value;
    switch (step.program.fragments[command.fragment.index()].kind) {
      case pipeline::ActionKind::kF: costs[0] = time; break;
      case pipeline::ActionKind::kI: costs[1] = time; break;
      case pipeline::ActionKind::kW: costs[2] = time; break;
      default: break;
    }
  }
  return costs;
}

std::vector<simulate::Held> held_by(const Request& request, const Step& step) {
  if (!has_processes(request.cluster.stack, request.plan)) return {};
  return torch_memory(step.program, request.precision,
                      stack_memory(request.cluster, request.plan, request.options.fp8),
                      request.cluster);
}

using SharedHeld = std::shared_ptr<const std::vector<simulate::Held>>;

// Of ranks that hold so much.
static Prediction predict(const Request& request, const Step& step, SharedHeld held) {
  Prediction p;
  p.devices = request.plan.ranks();
  p.memory_limit = request.cluster.device.usable_memory();
  if (request.cluster.shares_memory()) p.sharing = p.devices;
  p.parameters = step.parameters;
  p.compile_time = step.compile_time;
  const Seconds begin = steady_clock().now();
  p.result = simulate::simulate(step.program, request.cluster, request.options, *held);
  p.simulate_time = steady_clock().now() - begin;
  if (is_endless(request)) take_out_flush(request, p.result);
  if (runs_on(request)) let_run_on(request, step, p.result);
  const double ranks = static_cast<double>(p.result.ranks.size());
  for (const simulate::RankResult& rank : p.result.ranks) {
    for (const auto& [label, time] : rank.exposed_comm)
      p.exposed_comm[label] += Seconds(time.value / ranks);
  }
  p.step = p.result.step;
  p.bubble = p.result.bubble();
  fill_rates(request, p);
  fill_memory(step.program, p);
  if (is_endless(request)) {
    hold_older_weights(step, p);
  } else if (runs_on(request)) {
    p.path = explain_run_on(p.result, step);
  } else {
    p.path = simulate::explain(p.result, step.program);
  }
  p.profile = request.cluster.stack.name;
  p.error = request.cluster.stack.error;
  p.outside = outside_profile(request);
  p.without_effect = without_effect(request);
  p.held = std::move(held);
  return p;
}

static SharedHeld shared(std::vector<simulate::Held> held) {
  return std::make_shared<const std::vector<simulate::Held>>(std::move(held));
}

Prediction predict(const Request& request, const Step& step) {
  checked(request);
  return predict(request, step, shared(held_by(request, step)));
}

Prediction predict(const Request& request, const Step& step, const Prediction& of_step) {
  if (of_step.memory_limit != request.cluster.device.usable_memory()) return predict(request, step);
  checked(request);
  return predict(request, step, of_step.held);
}

std::optional<Prediction> predict_if_fits(const Request& request, const Step& step) {
  checked(request);
  std::vector<simulate::Held> held;
  if (has_processes(request.cluster.stack, request.plan) && !request.cluster.shares_memory()) {
    auto fitting = torch_memory_if_fits(
        step.program, request.precision,
        stack_memory(request.cluster, request.plan, request.options.fp8), request.cluster);
    if (!fitting) return {};
    held = *std::move(fitting);
  } else {
    held = held_by(request, step);
  }
  Prediction prediction = predict(request, step, shared(std::move(held)));
  if (!prediction.too_full().empty()) return {};
  return prediction;
}

Prediction predict(const Request& request) { return predict(request, compile_step(request)); }

}  // namespace mw::predict
