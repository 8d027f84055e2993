#include "compile/plan.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/text.h"
#include "pipeline/schedule_timeline.h"

namespace mw::compile {
namespace {

// Bounds of a plan, so that no product of its numbers overflows and no schedule fills the memory.
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr int64_t kMostChunks = 1024;
constexpr int64_t kMostMicrobatches = int64_t{1} << 20;
constexpr int64_t kMostUnits = int64_t{1} << 22;  // pp * chunks * microbatches

constexpr std::array<std::string_view, 3> kRecompute = {"none", "selective", "full"};
constexpr std::array<std::string_view, 2> kGradReduce = {"step", "microbatch"};

template <typename Enum, size_t N>
Enum enum_of(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto it = std::find(names.begin(), names.end(), name);
  return static_cast<Enum>(it == names.end() ? 0 : it - names.begin());
}

template <size_t N, typename Enum>
std::string_view name_of(const std::array<std::string_view, N>& names, Enum value) {
  return names[static_cast<size_t>(value)];
}

// What a schedule says of the plan's sizes.
void check_schedule(const Plan& plan, const std::string& where, Diagnostics& diagnostics) {
  try {
    const pipeline::ScheduleRequest request = schedule_request(plan);
    Diagnostics of_costs;
    for (const std::string& finding : pipeline::findings(request.costs, request.ranks))
      of_costs.add("{}", finding);
    of_costs.throw_if_any();
    pipeline::make_schedule(request);
  } catch (const Error& error) {
    for (const std::string& finding : error.findings()) diagnostics.add("{}: {}", where, finding);
  }
}

// What is wrong with a plan by itself. A combination is judged only where all its keys are sound.
void check(PlanReading& reading, JsonReader& reader, const std::string& where,
           Diagnostics& diagnostics) {
  const Plan& plan = reading.plan;
  const std::vector<std::string> kinds = pipeline::schedule_kinds();
  const bool known = std::find(kinds.begin(), kinds.end(), plan.schedule) != kinds.end();
  if (!known && reading.sound({"schedule"})) {
    const std::vector<std::string> all = pipeline::all_schedule_kinds();
    if (std::find(all.begin(), all.end(), plan.schedule) != all.end()) {
      reader.fail("schedule",
                  "'{}' can be drawn (meshwright schedule {}), but not run: a step of it would use "
                  "older weights; what runs is {}",
                  plan.schedule, plan.schedule, join(kinds, ", "));
    } else {
      reader.fail("schedule", "unknown schedule '{}'{}; known are {}", plan.schedule,
                  did_you_mean(plan.schedule, kinds), join(kinds, ", "));
    }
  }
  std::vector<std::string> order = plan.order;
  std::sort(order.begin(), order.end());
  if (order != std::vector<std::string>{"dp", "pp", "tp"} && reading.sound({"order"})) {
    reader.fail("order", "must name pp, dp and tp once each, is {}", join(plan.order, "-"));
  }
  if (plan.sp && plan.tp == 1 && reading.sound({"sp", "tp"})) {
    reader.fail("sp",
                "sequence parallelism shards over the tensor-parallel ranks, and tp is 1; use tp=2 "
                "or leave sp out");
  }
  // No product of three of the numbers overflows: each is bounded.
  if (plan.ranks() > kMostRanks) {
    diagnostics.add("{}: dp*tp*pp={}*{}*{} is more than {} ranks; use fewer", where, plan.dp,
                    plan.tp, plan.pp, kMostRanks);
    reading.unsound.insert({"dp", "tp", "pp"});
  }
  if (plan.stages() * plan.microbatches > kMostUnits) {
    diagnostics.add("{}: pp*chunks*microbatches={}*{}*{} is more than {} units of work; use fewer",
                    where, plan.pp, plan.chunks, plan.microbatches, kMostUnits);
    reading.unsound.insert({"pp", "chunks", "microbatches"});
  }
  if (plan.post_validation && plan.pp == 1 && reading.sound({"post_validation", "pp"})) {
    reader.fail("post_validation",
                "one pipeline rank knows the norm of all stages before its step; use pp=2 or more, "
                "or leave post_validation out");
  }
  if (!plan.costs.empty() && plan.schedule != "zb-auto" && reading.sound({"schedule"})) {
    reader.fail("costs", "are what zb-auto minimises, and the schedule is {}", plan.schedule);
  } else if (!plan.costs.empty() && plan.costs.size() != 3 && plan.costs.size() != 4) {
    reader.fail("costs", "has {} numbers, must have three or four: f, b, w and comm",
                plan.costs.size());
  }
  if (known && reading.sound({"schedule", "pp", "chunks", "microbatches", "group", "pairs",
                              "slices", "memory_limit", "costs"})) {
    check_schedule(plan, where, diagnostics);
  }
}

PlanReading read_plan(const Json& json, const std::string& where, Diagnostics& diagnostics) {
  JsonReader reader(json, where, &diagnostics);
  PlanReading reading;
  Plan& plan = reading.plan;
  const auto read = [&](const char* key, const auto& take) {
    const size_t before = diagnostics.findings().size();
    take(key);
    if (diagnostics.findings().size() > before) reading.unsound.insert(key);
  };
  const auto read_count = [&](const char* name, int64_t& into, int64_t most) {
    read(name, [&](const char* key) {
      into = reader.integer_or(key, 1, {.min = 1});
      if (into > most) reader.fail(key, "must be at most {}, is {}", most, into);
    });
    if (!reading.sound({name})) into = 1;
  };
  read_count("dp", plan.dp, kMostRanks);
  read_count("tp", plan.tp, kMostRanks);
  read_count("pp", plan.pp, kMostRanks);
  for (const char* optional : {"order", "grad_reduce", "layers", "costs"}) reader.ignore(optional);
  if (reader.has("order")) {
    read("order", [&](const char* key) { plan.order = reader.strings(key); });
  }
  read("sp", [&](const char* key) { plan.sp = reader.boolean_or(key, false); });
  const bool has_chunks = reader.has("chunks");
  read_count("chunks", plan.chunks, kMostChunks);
  read("schedule", [&](const char* key) {
    plan.schedule = reader.string_or(key, plan.chunks > 1 ? "interleaved-1f1b" : "1f1b");
  });
  if (!has_chunks) plan.chunks = pipeline::least_chunks(plan.schedule);
  read_count("microbatches", plan.microbatches, kMostMicrobatches);
  plan.zero = reader.integer_or("zero", 0, {.min = 0, .max = 3});
  plan.recompute =
      enum_of<Recompute>(kRecompute, reader.choice_or("recompute", "none", kRecompute));
  if (reader.has("grad_reduce")) {
    plan.grad_reduce = enum_of<GradReduce>(kGradReduce, reader.choice("grad_reduce", kGradReduce));
  }
  if (reader.has("layers")) {
    read("layers", [&](const char* key) {
      plan.layers = reader.integers(key, {.min = 0, .max = kMostUnits});
    });
  }
  const auto read_option = [&](const char* name, int64_t& into) {
    read(name, [&](const char* key) {
      into = reader.integer_or(key, 0, {.min = 1, .max = kMostMicrobatches});
    });
  };
  read_option("group", plan.group);
  read_option("pairs", plan.pairs);
  read_option("slices", plan.slices);
  read("memory_limit",
       [&](const char* key) { plan.memory_limit = reader.number_or(key, 0, {.min = 0}); });
  if (reader.has("costs")) {
    read("costs", [&](const char* key) { plan.costs = reader.numbers(key); });
  }
  read("post_validation",
       [&](const char* key) { plan.post_validation = reader.boolean_or(key, false); });
  const size_t before = diagnostics.findings().size();
  reader.finish();
  if (diagnostics.findings().size() > before) {
    // An unknown key may have been meant for any that is not there.
    for (const char* key :
         {"dp", "tp", "pp", "order", "sp", "chunks", "schedule", "microbatches", "layers"}) {
      if (!reader.has(key)) reading.unsound.insert(key);
    }
  }
  check(reading, reader, where, diagnostics);
  return reading;
}

// "tp=2,sp,layers=3:2:3" as the JSON object that says the same.
// Keys that stand there twice are added to *doubled.
Json short_to_json(const std::string& text, const std::string& where, Diagnostics& diagnostics,
                   std::set<std::string>* doubled) {
  Json json{JsonObject{}};
  for (const std::string_view part : split(text, ',')) {
    const std::string_view item = trim(part);
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    const std::string key(trim(item.substr(0, equals)));
    if (json.find(key) != nullptr) {
      diagnostics.add("{}: {}: is there twice", where, key);
      doubled->insert(key);
      continue;
    }
    if (equals == std::string_view::npos) {
      json[key] = Json(true);
      continue;
    }
    const std::string value(trim(item.substr(equals + 1)));
    if (key == "layers" || key == "order" || key == "costs") {
      Json list{JsonArray{}};
      for (const std::string_view element : split(value, key == "order" ? '-' : ':')) {
        if (const auto number = parse_int64(element)) {
          list.push_back(Json(*number));
        } else if (const auto real = parse_double(element); real && key == "costs") {
          list.push_back(Json(*real));
        } else {
          list.push_back(Json(std::string(element)));
        }
      }
      json[key] = std::move(list);
    } else if (const auto number = parse_int64(value)) {
      json[key] = (key == "sp" || key == "post_validation") && (*number == 0 || *number == 1)
                      ? Json(*number == 1)
                      : Json(*number);
    } else if (const auto real = parse_double(value); real && key == "memory_limit") {
      json[key] = Json(*real);
    } else if (value == "true" || value == "false") {
      json[key] = Json(value == "true");
    } else {
      json[key] = Json(value);
    }
  }
  return json;
}

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) found.push_back(d);
  }
  return found;
}

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

}  // namespace

int64_t Plan::units() const { return microbatches * pipeline::parts_of(schedule); }

int64_t Plan::sequence_slices() const {
  if (!pipeline::has_slices(schedule)) return 1;
  return slices > 0 ? slices : pipeline::kUsualSlices;
}

GradReduce Plan::effective_grad_reduce() const {
  return grad_reduce.value_or(zero >= 2 ? GradReduce::kMicrobatch : GradReduce::kStep);
}

bool PlanReading::sound(std::initializer_list<const char*> keys) const {
  return std::none_of(keys.begin(), keys.end(),
                      [&](const char* key) { return unsound.count(key) > 0; });
}

PlanReading read_plan(const std::string& text, const std::string& where) {
  Diagnostics diagnostics;
  PlanReading reading;
  if (starts_with(trim(text), "{")) {
    reading = read_plan(parse_json(text, where), where, diagnostics);
  } else {
    std::set<std::string> doubled;
    const Json json = short_to_json(text, where, diagnostics, &doubled);
    reading = read_plan(json, where, diagnostics);
    reading.unsound.merge(doubled);
  }
  reading.findings = diagnostics.findings();
  return reading;
}

Plan parse_plan(const std::string& text, const std::string& where) {
  const PlanReading reading = read_plan(text, where);
  if (!reading.findings.empty()) throw Error(reading.findings);
  return reading.plan;
}

Plan plan_from_json(const Json& json, const std::string& where) {
  Diagnostics diagnostics;
  const Plan plan = read_plan(json, where, diagnostics).plan;
  diagnostics.throw_if_any();
  return plan;
}

Json to_json(const Plan& plan) {
  Json json{JsonObject{}};
  json["dp"] = plan.dp;
  json["tp"] = plan.tp;
  json["pp"] = plan.pp;
  json["order"] = Json::list(plan.order);
  json["sp"] = plan.sp;
  json["schedule"] = plan.schedule;
  json["chunks"] = plan.chunks;
  json["microbatches"] = plan.microbatches;
  json["zero"] = plan.zero;
  json["recompute"] = name_of(kRecompute, plan.recompute);
  json["grad_reduce"] = name_of(kGradReduce, plan.effective_grad_reduce());
  if (!plan.layers.empty()) json["layers"] = Json::list(plan.layers);
  if (plan.group > 0) json["group"] = plan.group;
  if (plan.pairs > 0) json["pairs"] = plan.pairs;
  if (plan.slices > 0) json["slices"] = plan.slices;
  if (plan.post_validation) json["post_validation"] = true;
  if (plan.memory_limit > 0) json["memory_limit"] = plan.memory_limit;
  if (!plan.costs.empty()) json["costs"] = Json::list(plan.costs);
  return json;
}

std::string short_form(const Plan& plan) {
  const Plan standard;
  std::string text = fmt::format("dp={},tp={},pp={}", plan.dp, plan.tp, plan.pp);
  if (plan.order != standard.order) text += ",order=" + join(plan.order, "-");
  if (plan.pp * plan.chunks > 1 || plan.schedule != standard.schedule)
    text += ",schedule=" + plan.schedule;
  if (plan.chunks > 1) text += fmt::format(",chunks={}", plan.chunks);
  text += fmt::format(",microbatches={}", plan.microbatches);
  if (plan.sp) text += ",sp";
  if (plan.zero > 0) text += fmt::format(",zero={}", plan.zero);
  if (plan.recompute != Recompute::kNone)
    text += fmt::format(",recompute={}", name_of(kRecompute, plan.recompute));
  if (plan.grad_reduce)
    text += fmt::format(",grad_reduce={}", name_of(kGradReduce, *plan.grad_reduce));
  if (!plan.layers.empty()) {
    std::vector<std::string> counts;
    for (const int64_t n : plan.layers) counts.push_back(std::to_string(n));
    text += ",layers=" + join(counts, ":");
  }
  if (plan.group > 0) text += fmt::format(",group={}", plan.group);
  if (plan.pairs > 0) text += fmt::format(",pairs={}", plan.pairs);
  if (plan.slices > 0) text += fmt::format(",slices={}", plan.slices);
  if (plan.memory_limit > 0) text += fmt::format(",memory_limit={}", plan.memory_limit);
  if (!plan.costs.empty()) text += fmt::format(",costs={}", fmt::join(plan.costs, ":"));
  if (plan.post_validation) text += ",post_validation";
  return text;
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

Plan base_plan(const Plan& plan) {
  Plan base;
  base.dp = plan.dp;
  base.tp = plan.tp;
  base.sp = plan.sp;
  base.microbatches = plan.units();
  base.grad_reduce = plan.effective_grad_reduce();
  return base;
}

const sharding::Strategy& ResolvedPlan::strategy(LayerId layer) const {
  if (!layer.valid()) return outside;
  const Stage& stage = stages[static_cast<size_t>(stage_of_layer[layer.index()])];
  return stage.strategies[layer.index() - static_cast<size_t>(stage.first_layer)];
}

std::vector<std::string> plan_findings(const PlanReading& reading, int64_t blocks,
                                       const ModelShape& shape) {
  const Plan& plan = reading.plan;
  std::vector<std::string> found;
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
  if (reading.sound({"dp", "microbatches"}) && shape.global_batch % (plan.dp * plan.units()) != 0) {
    const int64_t parts = plan.units() / plan.microbatches;
    const std::string factor = parts == 1 ? "" : fmt::format("*{}", parts);
    found.push_back(
        fmt::format("plan: global_batch={} is not divisible by dp*microbatches{}={}*{}{}={}; every "
                    "{}microbatch needs a whole number of "
                    "sequences",
                    shape.global_batch, factor, plan.dp, plan.microbatches, factor,
                    plan.dp * plan.units(), parts == 1 ? "" : "part of a "));
  }
  if (reading.sound({"slices"}) && shape.seq_len % plan.sequence_slices() != 0) {
    found.push_back(fmt::format("plan: seq_len={} is not divisible by slices={}; use slices={}",
                                shape.seq_len, plan.sequence_slices(),
                                alternatives(divisors(shape.seq_len))));
  }
  if (!reading.sound({"pp", "chunks", "layers"})) return found;
  if (plan.layers.empty()) {
    if (blocks < plan.stages()) {
      found.push_back(
          fmt::format("plan: pp*chunks={}*{}={} stages for {} layers; use at most {} stages",
                      plan.pp, plan.chunks, plan.stages(), blocks, blocks));
    }
    return found;
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
  return found;
}

std::vector<std::string> plan_findings(const Plan& plan, int64_t blocks, const ModelShape& shape) {
  return plan_findings(PlanReading{plan, {}, {}}, blocks, shape);
}

ResolvedPlan resolve(const Plan& plan, const ir::Module& module, const ModelShape& shape) {
  int64_t blocks = 0;
  for (const ir::Layer& layer : module.layers) blocks += layer.block ? 1 : 0;
  const std::vector<std::string> found = plan_findings(plan, blocks, shape);
  if (!found.empty()) throw Error(found);

  ResolvedPlan resolved;
  resolved.plan = plan;
  std::vector<cluster::Axis> axes, stage_axes;
  const std::vector<cluster::Axis> tensor = tensor_axes(plan, shape);
  for (const std::string& name : plan.order) {
    if (name == "tp") {
      axes.insert(axes.end(), tensor.begin(), tensor.end());
      stage_axes.insert(stage_axes.end(), tensor.begin(), tensor.end());
      continue;
    }
    axes.push_back({name, name == "dp" ? plan.dp : plan.pp});
    if (name != "pp") stage_axes.push_back(axes.back());
  }
  resolved.mesh = cluster::Mesh(axes);
  sharding::Strategy strategy;
  strategy.axes["batch"] = {"dp"};
  sharding::Axes over_tensor;
  for (const cluster::Axis& axis : tensor) over_tensor.push_back(axis.name);
  for (const char* axis : {"heads", "ffn", "vocab"}) strategy.axes[axis] = over_tensor;
  strategy.axes[kKvHeads] = {over_tensor.front()};
  if (plan.sp) strategy.axes["seq"] = over_tensor;
  resolved.outside = strategy;

  // Blocks by stage; a layer that is no block goes with the block before it, leading ones with the
  // first.
  std::vector<int64_t> counts = plan.layers;
  if (counts.empty()) {
    for (int64_t s = 0; s < plan.stages(); ++s) {
      counts.push_back(blocks / plan.stages() + (s < blocks % plan.stages() ? 1 : 0));
    }
  }
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
    resolved.stage_of_layer.push_back(stage);
  }
  // Layers behind the last block belong to the last stage even if that stage has no block.
  for (size_t i = module.layers.size(); i-- > 0 && !module.layers[i].block;) {
    resolved.stage_of_layer[i] = static_cast<int32_t>(plan.stages() - 1);
  }
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
