#include "compile/plan.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/count.h"
#include "base/divisors.h"
#include "base/error.h"
#include "base/text.h"
#include "pipeline/schedule_timeline.h"

namespace mw::compile {
namespace {

// Of a microbatch: bytes of the widest values stay far from 2^63.
constexpr int64_t kMostTokens = int64_t{1} << 31;

// "1, 2 or 4".
std::string alternatives(const std::vector<int64_t>& values) {
  std::vector<std::string> texts;
  for (const int64_t n : values) texts.push_back(std::to_string(n));
  if (texts.size() == 1) return texts[0];
  const std::string last = texts.back();
  texts.pop_back();
  return join(texts, ", ") + " or " + last;
}

// Key and value heads, which fewer than tp ranks may share: each is then held by several.
constexpr const char* kKvHeads = "kv_heads";

std::vector<int64_t> fitting_tp(const ModelShape& shape, int64_t kv_heads) {
  const auto heads = shape.must_divide.find("heads");
  std::vector<int64_t> found =
      divisors(heads == shape.must_divide.end() ? kv_heads : heads->second);
  std::erase_if(found, [&](int64_t tp) { return kv_heads % tp != 0 && tp % kv_heads != 0; });
  return found;
}

// The axis tp, as its two factors where there are fewer key and value heads than tensor-parallel
// ranks: the heads lie on tp_kv and are replicated over tp_rep.
std::vector<cluster::Axis> tensor_axes(const Plan& plan, const ModelShape& shape) {
  const auto kv_heads = shape.must_divide.find(kKvHeads);
  if (kv_heads == shape.must_divide.end() || kv_heads->second >= plan.tp) return {{"tp", plan.tp}};
  return {{"tp_kv", kv_heads->second}, {"tp_rep", plan.tp / kv_heads->second}};
}

// What a layer's logical axes lie on, the same for all layers.
sharding::Strategy strategy_of(const Plan& plan, const std::vector<cluster::Axis>& tensor) {
  sharding::Strategy strategy;
  strategy.axes["batch"] = {"dp"};
  if (plan.ep > 1) {
    strategy.axes["batch"] = {"dp", "ep"};
    strategy.axes["expert"] = {"ep"};
  }
  strategy.axes["expert_batch"] = {"dp"};  // of the samples that an expert has tokens of
  if (plan.cp > 1) strategy.axes["attn_seq"] = {"cp"};
  sharding::Axes over_tensor;
  for (const cluster::Axis& axis : tensor) over_tensor.push_back(axis.name);
  for (const char* axis : {"heads", "ffn", "vocab"}) strategy.axes[axis] = over_tensor;
  strategy.axes[kKvHeads] = {over_tensor.front()};
  sharding::Axes sequence = plan.cp > 1 ? sharding::Axes{"cp"} : sharding::Axes{};
  if (plan.sp) sequence.insert(sequence.end(), over_tensor.begin(), over_tensor.end());
  if (!sequence.empty()) strategy.axes["seq"] = sequence;
  return strategy;
}

// The stage of every layer. A layer that is no block goes with the block before it, leading ones
// with the first.
std::vector<int32_t> stages_of_layers(const Plan& plan, const ir::Module& module, int64_t blocks) {
  const std::vector<int64_t> counts = plan.blocks_of_stages(blocks);
  std::vector<int32_t> stages;
  int32_t stage = 0;
  int64_t taken = 0;
  for (const ir::Layer& layer : module.layers) {
    if (layer.block) {
      while (taken == counts[static_cast<size_t>(stage)]) {
        ++stage;
        taken = 0;
      }
      ++taken;
    }
    stages.push_back(stage);
  }
  // Layers behind the last block belong to the last stage even if that stage has no block.
  for (size_t i = module.layers.size(); i-- > 0 && !module.layers[i].block;) {
    stages[i] = static_cast<int32_t>(plan.stages() - 1);
  }
  return stages;
}

}  // namespace

std::vector<int64_t> Plan::blocks_of_stages(int64_t blocks) const {
  if (!layers.empty()) return layers;
  std::vector<int64_t> counts;
  for (int64_t s = 0; s < stages(); ++s)
    counts.push_back(blocks / stages() + (s < blocks % stages() ? 1 : 0));
  return counts;
}

const AxisOrder& usual_axis_order() {
  static const AxisOrder usual = {"pp", "dp", "tp"};
  return usual;
}

// With the axes that an order need not name.
static AxisOrder with_inner_axes(AxisOrder axes, const Plan& plan) {
  if (plan.cp > 1 && std::find(axes.begin(), axes.end(), "cp") == axes.end())
    axes.insert(std::find(axes.begin(), axes.end(), "tp"), "cp");
  if (plan.ep > 1) axes.insert(std::find(axes.begin(), axes.end(), "dp") + 1, "ep");
  return axes;
}
AxisOrder Plan::mesh_order() const { return with_inner_axes(order, *this); }
AxisOrder Plan::usual_order() const { return with_inner_axes(usual_axis_order(), *this); }

int64_t Plan::axis_size(std::string_view axis) const {
  if (axis == "dp") return dp / ep;
  if (axis == "ep") return ep;
  if (axis == "cp") return cp;
  return axis == "tp" ? tp : pp;
}

sharding::Axes Plan::data_axes() const {
  sharding::Axes axes;
  for (const Name axis : usual_order()) {
    if (axis != "tp" && axis != "pp" && axis_size(axis) > 1) axes.push_back(axis);
  }
  if (axes.empty()) axes.push_back("dp");
  return axes;
}

std::string Plan::rank_text() const { return fmt::format("{}={}", factors_text(), ranks()); }
std::string Plan::factors_text() const {
  return cp == 1 ? fmt::format("dp*tp*pp={}*{}*{}", dp, tp, pp)
                 : fmt::format("dp*tp*pp*cp={}*{}*{}*{}", dp, tp, pp, cp);
}

int64_t Plan::units() const { return microbatches * pipeline::kind_of(schedule).parts; }

bool operator==(const WrittenSchedule& a, const WrittenSchedule& b) {
  if (a.schedule == b.schedule || !a || !b) return a.schedule == b.schedule;
  return a.schedule->name == b.schedule->name && to_csv(*a.schedule) == to_csv(*b.schedule);
}

int64_t Plan::sequence_slices() const {
  if (written) return written.schedule->slices;
  if (!pipeline::kind_of(schedule).options.slices) return 1;
  return slices > 0 ? slices : pipeline::kUsualSlices;
}

int64_t Plan::prefetch_elements() const {
  return prefetch_mb * (int64_t{1} << 20) / static_cast<int64_t>(sizeof(float));
}

GradReduce Plan::effective_grad_reduce() const {
  const bool divided = zero >= 2 && dp * cp > 1;  // gradients of a weight
  return grad_reduce.value_or(divided ? GradReduce::kMicrobatch : GradReduce::kStep);
}

pipeline::ScheduleRequest schedule_request(const Plan& plan) {
  pipeline::ScheduleRequest request{plan.schedule, static_cast<int32_t>(plan.pp),
                                    static_cast<int32_t>(plan.chunks),
                                    static_cast<int32_t>(plan.microbatches)};
  request.group = static_cast<int32_t>(plan.group);
  request.pairs = static_cast<int32_t>(plan.pairs);
  request.slices = static_cast<int32_t>(plan.slices);
  request.memory_limit = plan.memory_limit;
  request.post_validation = plan.post_validation;
  if (plan.costs.size() < 3) return request;
  request.costs.f = {plan.costs[0]};
  request.costs.b = {plan.costs[1]};
  request.costs.w = {plan.costs[2]};
  if (plan.costs.size() > 3) request.costs.comm = plan.costs[3];
  return request;
}

std::vector<std::string> drop_options(Plan& plan, const pipeline::ScheduleKind& kind) {
  std::vector<std::string> dropped;
  const auto drop = [&](const char* key, bool has, auto& option) {
    if (has || option == std::decay_t<decltype(option)>{}) return;
    option = {};
    dropped.emplace_back(key);
  };
  drop("group", kind.options.group, plan.group);
  drop("pairs", kind.options.pairs, plan.pairs);
  drop("slices", kind.options.slices, plan.slices);
  drop("memory_limit", kind.options.memory_limit, plan.memory_limit);
  drop("costs", kind.options.costs, plan.costs);
  return dropped;
}

Plan base_plan(const Plan& plan) {
  Plan base;
  base.dp = plan.dp;
  base.tp = plan.tp;
  base.cp = plan.cp;
  base.ep = plan.ep;
  base.sp = plan.sp;
  base.microbatches = plan.units();
  base.grad_reduce = plan.effective_grad_reduce();
  return base;
}

const sharding::Strategy& ResolvedPlan::strategy(LayerId layer) const {
  if (!layer.valid()) return outside;
  const Stage& stage = stages[static_cast<size_t>(stage_of_layer[layer.index()])];
  return stage.strategies.at(layer.index() - static_cast<size_t>(stage.first_layer));
}

namespace {

void add_expert_findings(const PlanReading& reading, const ModelShape& shape,
                         std::vector<std::string>& found) {
  const Plan& plan = reading.plan;
  if (!reading.sound({"ep", "tp", "cp", "sp"})) return;
  if (shape.experts == 0) {
    if (plan.ep > 1)
      found.push_back(fmt::format("plan: ep={} divides experts, and {} has none; leave ep out",
                                  plan.ep, shape.name));
    return;
  }
  if (plan.dp % plan.ep != 0) {
    found.push_back(
        fmt::format("plan: ep={} is no divisor of dp={}: experts are divided over a part "
                    "of the data-parallel ranks",
                    plan.ep, plan.dp));
  }
  if (shape.experts % plan.ep != 0) {
    found.push_back(fmt::format("{}: {} experts are not divisible by ep={}; use ep={}", shape.name,
                                shape.experts, plan.ep, alternatives(divisors(shape.experts))));
  }
  if (plan.tp > 1 && !plan.sp) {
    found.push_back(
        fmt::format("plan: tp={} without sp would send every token to its experts {} times; add sp",
                    plan.tp, plan.tp));
    return;
  }
  // Slices that do not divide the sequence are said among the findings of sequences.
  const int64_t all = reading.sound({"slices", "schedule"}) ? plan.sequence_slices() : 1;
  const int64_t slices = shape.seq_len % all == 0 ? all : 1, parts = slices * plan.cp * plan.tp;
  if (shape.seq_len % parts != 0 || shape.seq_len / parts * shape.top_k % shape.experts != 0) {
    found.push_back(fmt::format(
        "plan: seq_len={} in {}={} parts does not give each of {} experts a whole number of rows "
        "at {} experts a token; use a multiple of {}{}",
        shape.seq_len, slices > 1 ? "slices*tp" : "cp*tp", parts, shape.experts, shape.top_k,
        parts * (shape.experts / std::gcd(shape.experts, shape.top_k)),
        slices > 1 ? ", or fewer slices" : ""));
  }
}

void add_tensor_findings(const PlanReading& reading, const ModelShape& shape,
                         std::vector<std::string>& found) {
  const Plan& plan = reading.plan;
  for (const auto& [axis, size] : shape.must_divide) {
    if (size % plan.tp == 0 || !reading.sound({"tp"})) continue;
    const auto key = shape.key.find(axis);
    const std::string name = key == shape.key.end() ? axis : key->second;
    if (axis != kKvHeads) {
      found.push_back(fmt::format("{}: {}={} is not divisible by tp={}; use tp={}", shape.name,
                                  name, size, plan.tp, alternatives(divisors(size))));
    } else if (plan.tp % size != 0) {
      found.push_back(fmt::format("{}: {}={} and tp={} do not divide one another; use tp={}",
                                  shape.name, name, size, plan.tp,
                                  alternatives(fitting_tp(shape, size))));
    }
  }
}

void add_batch_findings(const PlanReading& reading, const ModelShape& shape,
                        std::vector<std::string>& found) {
  const Plan& plan = reading.plan;
  if (!reading.sound({"dp", "microbatches"})) return;
  if (shape.global_batch % (plan.dp * plan.units()) != 0) {
    const int64_t parts = plan.units() / plan.microbatches;
    const std::string factor = parts == 1 ? "" : fmt::format("*{}", parts);
    const int64_t least = plan.dp * parts;  // sequences of a step with one microbatch
    const std::string use =
        shape.global_batch % least == 0
            ? "microbatches=" + alternatives(divisors(shape.global_batch / least))
            : fmt::format("a multiple of {}, or another dp", least);
    found.push_back(
        fmt::format("plan: global_batch={} is not divisible by dp*microbatches{}={}*{}{}={}; every "
                    "{}microbatch needs a whole number of sequences: use {}",
                    shape.global_batch, factor, plan.dp, plan.microbatches, factor,
                    plan.dp * plan.units(), parts == 1 ? "" : "part of a ", use));
  } else if (const int64_t sequences = shape.global_batch / (plan.dp * plan.units());
             !shape.is_sample && sequences > kMostTokens / shape.seq_len) {
    found.push_back(
        fmt::format("plan: microbatches of {} sequences of {} tokens have more than {} tokens; use "
                    "more microbatches",
                    sequences, shape.seq_len, kMostTokens));
  }
}

void add_sequence_findings(const PlanReading& reading, const ModelShape& shape,
                           std::vector<std::string>& found) {
  const Plan& plan = reading.plan;
  if (reading.sound({"slices"}) && shape.seq_len % plan.sequence_slices() != 0) {
    found.push_back(fmt::format("plan: seq_len={} is not divisible by slices={}; use slices={}",
                                shape.seq_len, plan.sequence_slices(),
                                alternatives(divisors(shape.seq_len))));
  }
  // Every rank has a part from the front of the sequence and one from its end, so that all have as
  // many pairs under the causal mask.
  if (reading.sound({"cp"}) && plan.cp > 1 && shape.seq_len % (2 * plan.cp) != 0) {
    found.push_back(fmt::format(
        "plan: seq_len={} is not divisible by 2*cp={}; use {}", shape.seq_len, 2 * plan.cp,
        shape.seq_len % 2 == 0 ? "cp=" + alternatives(divisors(shape.seq_len / 2))
                               : "an even one, or leave cp out"));
  } else if (reading.sound({"cp", "tp", "sp"}) && plan.cp > 1 && plan.sp &&
             shape.seq_len / plan.cp < plan.tp) {
    found.push_back(fmt::format(
        "plan: sp divides the {} positions that cp={} leaves of seq_len={} over tp={} ranks; use "
        "fewer, or leave sp out",
        shape.seq_len / plan.cp, plan.cp, shape.seq_len, plan.tp));
  }
}

void add_layer_findings(const PlanReading& reading, int64_t blocks,
                        std::vector<std::string>& found) {
  const Plan& plan = reading.plan;
  if (!reading.sound({"pp", "chunks", "layers"})) return;
  if (plan.layers.empty()) {
    if (blocks < plan.stages()) {
      found.push_back(fmt::format(
          "plan: pp*chunks={}*{}={} stages for {}; use at most {}, or say with layers "
          "which have 0",
          plan.pp, plan.chunks, plan.stages(), counted(blocks, "layer"), counted(blocks, "stage")));
    }
    return;
  }
  int64_t sum = 0;
  for (const int64_t n : plan.layers) sum += n;
  if (static_cast<int64_t>(plan.layers.size()) != plan.stages()) {
    found.push_back(
        fmt::format("plan: layers has {} entries, must have one a stage: pp*chunks={}*{}={}",
                    plan.layers.size(), plan.pp, plan.chunks, plan.stages()));
  }
  if (sum != blocks) {
    found.push_back(fmt::format("plan: layers add up to {}, must add up to the model's {} layers",
                                sum, blocks));
  }
}

}  // namespace

std::vector<std::string> plan_findings(const PlanReading& reading, int64_t blocks,
                                       const ModelShape& shape) {
  std::vector<std::string> found;
  add_tensor_findings(reading, shape, found);
  add_batch_findings(reading, shape, found);
  add_sequence_findings(reading, shape, found);
  add_expert_findings(reading, shape, found);
  add_layer_findings(reading, blocks, found);
  return found;
}

std::vector<std::string> plan_findings(const Plan& plan, int64_t blocks, const ModelShape& shape) {
  return plan_findings(PlanReading{.plan = plan, .unsound = {}, .findings = {}, .step = {}}, blocks,
                       shape);
}

namespace {

constexpr std::array<PlanKey, 23> kPlanKeys = {{{"dp", PlanKey::Value::kCount},
                                                {"tp", PlanKey::Value::kCount},
                                                {"pp", PlanKey::Value::kCount},
                                                {"cp", PlanKey::Value::kCount},
                                                {"ep", PlanKey::Value::kCount},
                                                {"order", PlanKey::Value::kList},
                                                {"sp", PlanKey::Value::kSwitch},
                                                {"regather", PlanKey::Value::kSwitch},
                                                {"schedule", PlanKey::Value::kOther},
                                                {"chunks", PlanKey::Value::kCount},
                                                {"microbatches", PlanKey::Value::kCount},
                                                {"zero", PlanKey::Value::kOther},
                                                {"recompute", PlanKey::Value::kOther},
                                                {"grad_reduce", PlanKey::Value::kOther},
                                                {"bucket_mb", PlanKey::Value::kOther},
                                                {"prefetch_mb", PlanKey::Value::kOther},
                                                {"layers", PlanKey::Value::kList},
                                                {"group", PlanKey::Value::kCount},
                                                {"pairs", PlanKey::Value::kCount},
                                                {"slices", PlanKey::Value::kCount},
                                                {"memory_limit", PlanKey::Value::kOther},
                                                {"costs", PlanKey::Value::kList},
                                                {"post_validation", PlanKey::Value::kSwitch}}};

}  // namespace

std::span<const PlanKey> plan_keys() { return kPlanKeys; }

const PlanKey* find_plan_key(std::string_view name) {
  const auto found = std::find_if(kPlanKeys.begin(), kPlanKeys.end(),
                                  [&](const PlanKey& key) { return key.name == name; });
  return found == kPlanKeys.end() ? nullptr : &*found;
}

std::string run_finding(const Plan& plan, const std::string& where) {
  const pipeline::ScheduleKind* kind = pipeline::find_kind(plan.schedule);
  if (kind == nullptr || kind->runs()) return "";
  return fmt::format(
      "{}: schedule: '{}' can be drawn and simulated (meshwright schedule, simulate), but not run: "
      "{}; what runs is {}",
      where, plan.schedule, kind->simulated_only, join(pipeline::schedule_kinds(), ", "));
}

ResolvedPlan resolve(const Plan& plan, const ir::Module& module, const ModelShape& shape) {
  int64_t blocks = 0;
  for (const ir::Layer& layer : module.layers) blocks += layer.block ? 1 : 0;
  const std::vector<std::string> found = plan_findings(plan, blocks, shape);
  if (!found.empty()) throw Error(found);
  if (const std::string finding = run_finding(plan); !finding.empty()) throw Error(finding);

  ResolvedPlan resolved;
  resolved.plan = plan;
  const std::vector<cluster::Axis> tensor = tensor_axes(plan, shape);
  const auto axes_of = [&](const AxisOrder& order, bool of_stage) {
    std::vector<cluster::Axis> axes;
    for (const Name name : order) {
      if (name == "pp" && of_stage) continue;
      if (name == "tp") {
        axes.insert(axes.end(), tensor.begin(), tensor.end());
      } else {
        axes.push_back({name, plan.axis_size(name)});
      }
    }
    return axes;
  };
  const std::vector<cluster::Axis> stage_axes = axes_of(plan.usual_order(), true);
  resolved.mesh = cluster::Mesh(axes_of(plan.mesh_order(), false));
  const sharding::Strategy strategy = strategy_of(plan, tensor);
  resolved.outside = strategy;

  resolved.stage_of_layer = stages_of_layers(plan, module, blocks);
  for (int32_t s = 0; s < plan.stages(); ++s) {
    Stage made;
    made.mesh = cluster::Mesh(stage_axes);
    const auto begin = std::find(resolved.stage_of_layer.begin(), resolved.stage_of_layer.end(), s);
    made.layers = static_cast<int32_t>(
        std::count(resolved.stage_of_layer.begin(), resolved.stage_of_layer.end(), s));
    made.first_layer =
        made.layers == 0 ? 0 : static_cast<int32_t>(begin - resolved.stage_of_layer.begin());
    made.strategies.assign(static_cast<size_t>(made.layers), strategy);
    resolved.stages.push_back(std::move(made));
  }
  return resolved;
}

}  // namespace mw::compile
