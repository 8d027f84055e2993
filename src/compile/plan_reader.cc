// The forms of a plan, JSON and short, read.
#include "compile/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/text.h"
#include "compile/schedule.h"
#include "pipeline/schedule_timeline.h"

namespace mw::compile {
namespace {

// Bounds of a plan, so that no product of its numbers overflows and no schedule fills the memory.
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr int64_t kMostChunks = 1024;
constexpr int64_t kMostMicrobatches = int64_t{1} << 20;
constexpr int64_t kMostMebibytes = int64_t{1} << 30;

// Of the name of a file that has a schedule; also in capitals.
constexpr std::string_view kFileEnd = ".csv";
bool names_file(std::string_view schedule) { return ends_with(to_lower(schedule), kFileEnd); }

template <typename Enum, size_t N>
Enum enum_of(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto it = std::find(names.begin(), names.end(), name);
  return static_cast<Enum>(it == names.end() ? 0 : it - names.begin());
}

// Of a schedule from a file, which has its own order.
void check_written(const Plan& plan, const std::string& where, JsonReader& reader,
                   Diagnostics& diagnostics) {
  const auto own = [&](const char* key, bool is_said) {
    if (is_said) {
      reader.fail(key,
                  "is an option of some kinds of schedules, and {} has its own order; leave it out",
                  plan.schedule);
    }
  };
  own("group", plan.group > 0);
  own("pairs", plan.pairs > 0);
  own("slices", plan.slices > 0);
  own("memory_limit", plan.memory_limit > 0);
  const pipeline::Placement& placement = plan.written.schedule->placement;
  if (placement.stages() % placement.ranks != 0) {
    reader.fail("schedule", "{} has {} stages on {} ranks, must have a multiple of its ranks",
                plan.schedule, placement.stages(), placement.ranks);
    return;
  }
  for (const std::string& finding : schedule_findings(*plan.written.schedule, plan))
    diagnostics.add("{}: {}", where, finding);
}

// What a schedule says of the plan's sizes.
void check_schedule(const Plan& plan, const std::string& where, Diagnostics& diagnostics) {
  try {
    const pipeline::ScheduleRequest request = schedule_request(plan);
    Diagnostics of_costs;
    for (const std::string& finding : pipeline::findings(request.costs, request.ranks))
      of_costs.add("{}", finding);
    of_costs.throw_if_any();
    for (const std::string& finding : idle_replicas(request))
      diagnostics.add("{}: {}", where, finding);
  } catch (const Error& error) {
    for (const std::string& finding : error.findings()) diagnostics.add("{}: {}", where, finding);
  }
}

// Of the keys that divide sequences.
void check_sequence(const PlanReading& reading, JsonReader& reader) {
  const Plan& plan = reading.plan;
  if (plan.cp > 1 && plan.sequence_slices() > 1 && reading.sound({"cp", "schedule"})) {
    reader.fail("cp", "divides a sequence over ranks, and {} cuts it into slices; use one of them",
                plan.schedule);
  }
  if (plan.sp && plan.tp == 1 && reading.sound({"sp", "tp"})) {
    reader.fail("sp",
                "sequence parallelism shards over the tensor-parallel ranks, and tp is 1; use tp=2 "
                "or leave sp out");
  }
  if (plan.regather && !plan.sp && reading.sound({"regather", "sp"})) {
    reader.fail("regather",
                "is of what sp gathers, and the plan has none (what cp gathers is never kept); use "
                "sp, or leave regather out");
  }
}

// What is wrong with a plan by itself. A combination is judged only where all its keys are sound.
void check(PlanReading& reading, JsonReader& reader, const std::string& where,
           Diagnostics& diagnostics) {
  const Plan& plan = reading.plan;
  const bool known = plan.written || pipeline::find_kind(plan.schedule) != nullptr;
  if (!known && reading.sound({"schedule"})) {
    const std::vector<std::string> kinds = pipeline::all_schedule_kinds();
    reader.fail("schedule", "unknown schedule '{}'{}; known are {}, or FILE{}",
                clipped(plan.schedule), did_you_mean(plan.schedule, kinds), join(kinds, ", "),
                kFileEnd);
  }
  std::vector<std::string> order = texts_of(plan.order);
  std::sort(order.begin(), order.end());
  if (order != std::vector<std::string>{"dp", "pp", "tp"} &&
      order != std::vector<std::string>{"cp", "dp", "pp", "tp"} && reading.sound({"order"})) {
    reader.fail("order", "must name pp, dp and tp{} once each, is {}",
                plan.cp > 1 ? " (and may name cp)" : "", clipped(join(texts_of(plan.order), "-")));
  }
  check_sequence(reading, reader);
  if (plan.dp % plan.ep != 0 && reading.sound({"dp", "ep"})) {
    reader.fail("ep", "divides the experts over a part of dp={}, which is no multiple of {}",
                plan.dp, plan.ep);
    reading.unsound.insert("ep");
  }
  // No product of three of the numbers overflows: each is bounded.
  if (plan.dp * plan.tp * plan.pp > kMostRanks || plan.ranks() > kMostRanks) {
    diagnostics.add("{}: {} is more than {} ranks; use fewer", where, plan.factors_text(),
                    kMostRanks);
    reading.unsound.insert({"dp", "tp", "pp", "cp"});
  }
  if (plan.stages() * plan.microbatches > kMostUnits &&
      reading.sound({"pp", "chunks", "microbatches"})) {
    diagnostics.add("{}: pp*chunks*microbatches={}*{}*{} is more than {} units of work; use fewer",
                    where, plan.pp, plan.chunks, plan.microbatches, kMostUnits);
    reading.unsound.insert({"pp", "chunks", "microbatches"});
  }
  if (plan.post_validation && plan.pp == 1 && reading.sound({"post_validation", "pp"})) {
    reader.fail("post_validation",
                "one pipeline rank knows the norm of all stages before its step; use pp=2 or more, "
                "or leave post_validation out");
  }
  if (!plan.costs.empty() && !pipeline::kind_of(plan.schedule).options.costs &&
      reading.sound({"schedule"})) {
    reader.fail("costs", "are what {} minimises, and the schedule is {}",
                join(pipeline::kinds_with(&pipeline::KindOptions::costs), " or "), plan.schedule);
  } else if (!plan.costs.empty() && plan.costs.size() != 3 && plan.costs.size() != 4) {
    reader.fail("costs", "has {} numbers, must have three or four: f, b, w and comm",
                plan.costs.size());
  }
  if (known && reading.sound({"schedule", "pp", "chunks", "microbatches", "group", "pairs",
                              "slices", "memory_limit", "costs"})) {
    if (plan.written) {
      check_written(plan, where, reader, diagnostics);
    } else {
      check_schedule(plan, where, diagnostics);
    }
  }
}

// Whether the plan's stages a rank are a choice, and not all that its schedule takes.
bool chooses_chunks(const Plan& plan) {
  const pipeline::ChunkRange& chunks = pipeline::kind_of(plan.schedule).chunks;
  return plan.written ? plan.chunks > 1 : chunks.least != chunks.most;
}

// Reads a plan's keys, remembering those that have no sound value.
class PlanReader {
 public:
  // What has no key is as in `before`.
  PlanReader(const Json& json, const std::string& where, const ReadFile& files,
             Diagnostics& diagnostics, Plan before = {})
      : reader_(json, where, &diagnostics),
        where_(where),
        files_(files),
        diagnostics_(diagnostics),
        before_(std::move(before)) {
    plan_ = before_;
  }

  // `steps`: it may name the step that it is for, which a short form cannot. `devices`: see
  // read_plan. `doubled`: keys that are there twice.
  PlanReading read(bool steps, int64_t devices = 0, std::set<std::string> doubled = {}) {
    reading_.unsound = std::move(doubled);
    read_mesh();
    read_pipeline();
    read_memory();
    read_schedule_options();
    follow(devices);
    if (steps) {
      if (reader_.has("for")) read_step(reader_.object("for"));
      reader_.ignore("for");
    }
    read_the_end();
    check(reading_, reader_, where_, diagnostics_);
    return std::move(reading_);
  }

 private:
  template <typename Take>
  void take(const char* key, const Take& into) {
    const size_t before = diagnostics_.findings().size();
    into(key);
    if (diagnostics_.findings().size() > before) reading_.unsound.insert(key);
  }

  // Lists have no value to stand in for them: they are read where they are there.
  template <typename Take>
  void take_if_there(const char* key, const Take& into) {
    reader_.ignore(key);
    if (reader_.has(key)) take(key, into);
  }

  void read_count(const char* name, int64_t& into, int64_t most) {
    take(name, [&](const char* key) {
      into = reader_.integer_or(key, into, {.min = 1});
      if (into > most) reader_.fail(key, "must be at most {}, is {}", most, into);
    });
    if (!reading_.sound({name})) into = 1;
  }

  void read_option(const char* name, int64_t& into) {
    take(name, [&](const char* key) {
      into = reader_.integer_or(key, into, {.min = 1, .max = kMostMicrobatches});
    });
  }

  void read_mesh() {
    read_count("dp", plan_.dp, kMostRanks);
    read_count("tp", plan_.tp, kMostRanks);
    read_count("pp", plan_.pp, kMostRanks);
    read_count("cp", plan_.cp, kMostChunks);
    read_count("ep", plan_.ep, kMostRanks);
    take_if_there("order", [&](const char* key) {
      const std::vector<std::string> axes = reader_.strings(key);
      plan_.order.assign(axes.begin(), axes.end());
    });
    read_switch("sp", plan_.sp);
    read_switch("regather", plan_.regather);
  }
  void read_switch(const char* name, bool& into) {
    take(name, [&](const char* key) { into = reader_.boolean_or(key, into); });
  }

  void read_pipeline() {
    read_count("chunks", plan_.chunks, kMostChunks);
    take("schedule", [&](const char* key) {
      const pipeline::ScheduleKind& own = pipeline::kind_of(plan_.schedule);
      if (!plan_.written && !own.chunks.holds(plan_.chunks))
        plan_.schedule = pipeline::kind_with_chunks(own, plan_.chunks).name;
      plan_.schedule = reader_.string_or(key, plan_.schedule);
      if (reader_.has(key)) plan_.written = {};
    });
    read_written();
    follow_schedule();
    read_count("microbatches", plan_.microbatches, kMostMicrobatches);
    take_sizes();
    take_if_there("layers", [&](const char* key) {
      plan_.layers = reader_.integers(key, {.min = 0, .max = kMostUnits});
    });
  }

  // Under another schedule than before options that it does not have are left out. Stages a rank
  // that are not said stay where they were chosen and it takes as many.
  void follow_schedule() {
    const pipeline::ScheduleKind& kind = pipeline::kind_of(plan_.schedule);
    bool keeps = before_.chunks > 1 || chunks_unsaid(plan_.schedule, before_.pp) > 1;
    if (plan_.schedule != before_.schedule || (before_.written && reader_.has("schedule"))) {
      keeps = keeps && chooses_chunks(before_) && kind.chunks.holds(before_.chunks);
      drop_options(plan_, kind);
    }
    if (!keeps && !reader_.has("chunks") && !plan_.written)
      plan_.chunks = chunks_unsaid(plan_.schedule, plan_.pp);
  }

  // The actions of a schedule that is named after a file: those of the JSON, or the file's.
  void read_written() {
    std::vector<std::string> rows;
    take_if_there("actions", [&](const char* key) { rows = reader_.strings(key); });
    const bool has_rows = reader_.has("actions");
    if (!names_file(plan_.schedule)) {
      if (has_rows)
        reader_.fail("actions",
                     "are of a schedule from a file; name it, as in \"schedule\": \"order{}\"",
                     kFileEnd);
      return;
    }
    if (!reading_.sound({"actions"})) reading_.unsound.insert("schedule");
    if (!reading_.sound({"schedule"}) || !reader_.has("schedule")) return;
    take("schedule", [&](const char* key) {
      if (!has_rows && !files_)
        return reader_.fail(key, "{} is a file, and none is read here", clipped(plan_.schedule));
      try {
        const std::string text = has_rows ? join(rows, "\n") : files_(plan_.schedule);
        plan_.written.schedule =
            std::make_shared<const pipeline::Schedule>(pipeline::parse_csv(text, plan_.schedule));
      } catch (const Error& error) {
        for (const std::string& finding : error.findings()) reader_.fail(key, "{}", finding);
      }
    });
  }

  // What is not said of a schedule that is written down follows from it.
  void take_sizes() {
    if (!names_file(plan_.schedule) || !reader_.has("schedule")) return;
    if (!plan_.written) {  // nobody knows them
      for (const char* key : {"pp", "chunks", "microbatches"}) {
        if (!reader_.has(key)) reading_.unsound.insert(key);
      }
      return;
    }
    const pipeline::Schedule& schedule = *plan_.written.schedule;
    const int32_t ranks = schedule.placement.ranks;
    if (!reader_.has("pp")) plan_.pp = ranks;
    if (!reader_.has("chunks")) plan_.chunks = std::max(1, schedule.placement.stages() / ranks);
    if (!reader_.has("microbatches")) plan_.microbatches = schedule.microbatches;
  }

  void read_memory() {
    plan_.zero = reader_.integer_or("zero", plan_.zero, {.min = 0, .max = 3});
    plan_.recompute = enum_of<Recompute>(
        transform::kRecomputeNames,
        reader_.choice_or("recompute", name_of(plan_.recompute), transform::kRecomputeNames));
    take_if_there("grad_reduce", [&](const char* key) {
      plan_.grad_reduce =
          enum_of<GradReduce>(kGradReduceNames, reader_.choice(key, kGradReduceNames));
    });
    read_mebibytes("bucket_mb", plan_.bucket_mb);
    read_mebibytes("prefetch_mb", plan_.prefetch_mb);
  }
  // What is there before is the default.
  void read_mebibytes(const char* name, int64_t& value) {
    const int64_t usual = value;
    take(name, [&](const char* key) {
      value = reader_.integer_or(key, usual, {.min = 0, .max = kMostMebibytes});
    });
    if (!reading_.sound({name})) value = usual;
  }

  void read_schedule_options() {
    read_option("group", plan_.group);
    read_option("pairs", plan_.pairs);
    read_option("slices", plan_.slices);
    take("memory_limit", [&](const char* key) {
      const size_t before = diagnostics_.findings().size();
      plan_.memory_limit = reader_.number_or(key, plan_.memory_limit, {.min = 0});
      if (!reader_.has(key) || diagnostics_.findings().size() > before) return;
      if (plan_.memory_limit == 0) {
        reader_.fail(key, "must be above 0, is 0");
      } else if (!std::isfinite(plan_.memory_limit)) {
        reader_.fail(key, "must be a finite number, is {}", plan_.memory_limit);
      }
    });
    take_if_there("costs", [&](const char* key) { plan_.costs = reader_.numbers(key); });
    read_switch("post_validation", plan_.post_validation);
  }

  // The dp that so many devices leave where none is said, if one would do.
  void follow(int64_t devices) {
    reading_.says_dp = reader_.has("dp");
    const int64_t replica = plan_.tp * plan_.pp * plan_.cp;
    if (devices > 0 && !reading_.says_dp && reading_.sound({"tp", "pp", "cp"}) &&
        devices % replica == 0)
      plan_.dp = devices / replica;
  }

  static std::vector<std::string> key_names() {
    std::vector<std::string> names;
    for (const PlanKey& key : plan_keys()) names.emplace_back(key.name);
    return names;
  }

  void read_step(JsonReader step) {
    PlannedStep& made = reading_.step.emplace();
    made.model = step.string_or("model", "");
    made.cluster = step.string_or("cluster", "");
    made.profile = step.string_or("profile", "");
    made.precision = step.string_or("precision", "");
    made.global_batch = step.integer_or("global_batch", 0, {.min = 1});
    made.seq_len = step.integer_or("seq_len", 0, {.min = 1});
    made.tf32 = step.boolean_or("tf32", false);
    if (step.has("scatter_gather")) made.scatter_gather = step.boolean("scatter_gather");
    step.ignore("scatter_gather");
    step.finish();
  }

  // An unknown key was meant for those that it is near to; where it is near to none, for any of
  // those that most plans have and this one has not.
  void read_the_end() {
    bool told = false;
    for (const JsonReader::UnknownKey& unknown : reader_.finish()) {
      reading_.unsound.insert(unknown.near.begin(), unknown.near.end());
      if (!unknown.near.empty()) continue;
      if (!told) diagnostics_.add("{}: a plan's keys are {}", where_, join(key_names(), ", "));
      told = true;
      for (const char* key : {"dp", "tp", "pp", "chunks", "schedule", "microbatches", "layers"}) {
        if (!reader_.has(key)) reading_.unsound.insert(key);
      }
    }
  }

  JsonReader reader_;
  const std::string& where_;
  const ReadFile& files_;
  Diagnostics& diagnostics_;
  const Plan before_;
  PlanReading reading_;
  Plan& plan_ = reading_.plan;
};

// "3:2:3" as a list; the mesh's order is separated by '-'.
Json short_list(const std::string& key, std::string_view value) {
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
  return list;
}

// What a short form says of a key.
Json short_value(const std::string& key, const std::string& value) {
  const PlanKey* known = find_plan_key(key);
  const bool is_switch = known != nullptr && known->value == PlanKey::Value::kSwitch;
  if (known != nullptr && known->value == PlanKey::Value::kList) return short_list(key, value);
  if (const auto number = parse_int64(value))
    return is_switch && (*number == 0 || *number == 1) ? Json(*number == 1) : Json(*number);
  if (const auto real = parse_double(value); real && key == "memory_limit") return Json(*real);
  if (value == "true" || value == "false") return Json(value == "true");
  if (is_switch && (value == "on" || value == "off")) return Json(value == "on");
  return Json(value);
}

// "tp=2,sp,layers=3:2:3" as the JSON object that says the same.
// Keys that stand there twice, or without their name, are added to *doubled.
Json short_to_json(const std::string& text, const std::string& where, Diagnostics& diagnostics,
                   std::set<std::string>* doubled) {
  Json json{JsonObject{}};
  for (const std::string_view part : split(text, ',')) {
    const std::string_view item = trim(part);
    if (item.empty() && trim(text).empty()) continue;
    if (item.empty()) {
      diagnostics.add("{}: has a comma too many", where);
      continue;
    }
    const size_t equals = item.find('=');
    const std::string key(trim(item.substr(0, equals)));
    if (json.find(key) != nullptr) {
      diagnostics.add("{}: {}: is there twice", where, clipped(key));
      doubled->insert(key);
      continue;
    }
    if (equals == std::string_view::npos && ends_with(to_lower(key), ".csv")) {
      diagnostics.add("{}: {}: is a schedule's file; give schedule={}", where, clipped(key),
                      clipped(key));
      doubled->insert("schedule");
      continue;
    }
    if (equals == std::string_view::npos) {
      json[key] = Json(true);
      continue;
    }
    json[key] = short_value(key, std::string(trim(item.substr(equals + 1))));
  }
  return json;
}

}  // namespace

bool PlanReading::sound(std::initializer_list<const char*> keys) const {
  return std::none_of(keys.begin(), keys.end(),
                      [&](const char* key) { return unsound.count(key) > 0; });
}

ReadFile files_beside(FileSystem& fs, const std::string& file) {
  return [&fs, folder = parent_path(file)](const std::string& path) {
    const std::string beside = folder == "." ? path : join_path(folder, path);
    return fs.read_file(fs.exists(beside) ? beside : path);
  };
}

bool is_plan_json(const std::string& text) { return starts_with(trim(without_bom(text)), "{"); }

PlanReading read_plan_option(FileSystem& fs, const std::string& text, const std::string& where,
                             int64_t devices) {
  if (ends_with(text, ".json")) {
    const std::string plan = fs.read_file(text);
    if (!is_plan_json(plan)) throw_error("{}: must be a JSON object, a plan", text);
    PlanReading reading = read_plan(plan, text, files_beside(fs, text));
    reading.says_dp = true;
    return reading;
  }
  if (text.find('/') != std::string::npos && fs.is_directory(text))
    throw_error("{}: is a folder; give a plan, x.json or x.toml", clipped(text));
  return read_plan(text, where, files_beside(fs, ""), devices);
}

PlanReading read_plan(const std::string& text, const std::string& where, const ReadFile& files,
                      int64_t devices) {
  if (trim(text) == "auto") {
    throw_error(
        "{}: auto: must be a plan; only train's --plan takes auto, and 'meshwright plan' finds one "
        "for a cluster",
        where);
  }
  Diagnostics diagnostics;
  PlanReading reading;
  if (is_plan_json(text)) {
    const Json json = parse_json(text, where);
    reading = PlanReader(json, where, files, diagnostics).read(true, devices);
  } else {
    std::set<std::string> doubled;
    const Json json = short_to_json(text, where, diagnostics, &doubled);
    reading = PlanReader(json, where, files, diagnostics).read(false, devices, std::move(doubled));
  }
  reading.findings = diagnostics.findings();
  return reading;
}

Plan parse_plan(const std::string& text, const std::string& where, const ReadFile& files) {
  const PlanReading reading = read_plan(text, where, files);
  if (!reading.findings.empty()) throw Error(reading.findings);
  return reading.plan;
}

Plan plan_from_json(const Json& json, const std::string& where) {
  Diagnostics diagnostics;
  const Plan plan = PlanReader(json, where, {}, diagnostics).read(true).plan;
  diagnostics.throw_if_any();
  return plan;
}

Plan edited(const Plan& plan, const PlanEdits& edits, const std::string& where) {
  Json json{JsonObject{}};
  for (const auto& [key, value] : edits) json[key] = short_value(key, value);
  Diagnostics diagnostics;
  const Plan made = PlanReader(json, where, {}, diagnostics, plan).read(false).plan;
  diagnostics.throw_if_any();
  return made;
}

}  // namespace mw::compile
