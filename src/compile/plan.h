// Plan: both decisions about a training step, as a value: how tensors are laid out on the mesh, and
// which stage runs which layers in what order. It has a JSON form and a short form
// ("dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2").
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <absl/container/inlined_vector.h>

#include "base/fs.h"
#include "base/json.h"
#include "base/name.h"
#include "cluster/mesh.h"
#include "ir/graph.h"
#include "pipeline/schedule.h"
#include "sharding/strategy.h"
#include "transform/recompute.h"

namespace mw::compile {

using transform::Recompute;
// When gradients are summed over data-parallel ranks: once a step, or after every microbatch.
enum class GradReduce : uint8_t { kStep, kMicrobatch };
inline constexpr std::array<std::string_view, 2> kGradReduceNames = {"step", "microbatch"};

// Stages times microbatches of a plan are at most as many.
inline constexpr int64_t kMostUnits = int64_t{1} << 18;

// Axes of a mesh in order; as many as there are take no memory of their own, for a search copies
// plans by the million.
using AxisOrder = absl::InlinedVector<Name, 5>;
const AxisOrder& usual_axis_order();  // pp, dp, tp
std::vector<std::string> texts_of(const AxisOrder& order);

// The schedule of a file, in place of one that a kind makes. Equal where they say the same.
struct WrittenSchedule {
  std::shared_ptr<const pipeline::Schedule> schedule;  // null: the plan names a kind
  explicit operator bool() const { return schedule != nullptr; }
  friend bool operator==(const WrittenSchedule& a, const WrittenSchedule& b);
};

struct Plan {
  int64_t dp = 1, tp = 1, pp = 1;
  int64_t cp = 1;  // context parallel: the sequence is divided, attention gathers keys and values
  int64_t ep = 1;  // expert parallel: a part of dp over which experts are divided
  // Mesh axes, the last varies fastest over ranks. cp lies just outside of tp where it is not
  // named.
  AxisOrder order = usual_axis_order();
  bool sp =
      false;  // sequence parallel: activations between tensor-parallel regions are sharded over tp
  // Activations that sp gathers are gathered again in the backward pass, not saved: fewer bytes
  // held, more sent [Korthikanti 2022, section 4.2.2]. Keys and values that cp gathers always are.
  bool regather = false;
  std::string schedule = pipeline::kUsualKind;  // a kind, or the CSV file that `written` is of
  WrittenSchedule written;
  int64_t chunks = 1;        // stages a pipeline rank
  int64_t microbatches = 1;  // per data-parallel replica
  int64_t zero = 0;          // ZeRO stage 0-3
  Recompute recompute = Recompute::kNone;
  // Default: step for ZeRO 0 and 1 and where one rank holds each weight, microbatch for 2 and 3.
  std::optional<GradReduce> grad_reduce;
  // Gradients are reduced, and ZeRO 1's weights gathered, in collectives of at least so many MiB of
  // whole layers. 160: 40 million elements, as in Megatron-LM.
  int64_t bucket_mb = 160;
  // ZeRO 3 gathers so many MiB of a layer's weights at the most, counted in f32 and whole as they
  // are gathered, while the layer before computes; the rest behind it. A TiB: all of any layer, as
  // FSDP's backward prefetch. 0: all behind it.
  int64_t prefetch_mb = int64_t{1} << 20;
  std::vector<int64_t> layers;  // blocks of each stage; empty: dealt out evenly
  // Options of some schedules; 0 or empty: what is usual for the kind.
  int64_t group = 0;          // microbatches a round
  int64_t pairs = 0;          // of pipelines, one down and one up
  int64_t slices = 0;         // of a sequence
  double memory_limit = 0;    // in microbatches of a stage
  std::vector<double> costs;  // f, b, w and comm of a microbatch on a stage
  // The optimizer takes its step before the norm of all stages is known, and again where that
  // clips.
  bool post_validation = false;

  int64_t ranks() const { return dp * tp * pp * cp; }
  // "dp*tp*pp=2*4*1=8": the number of ranks as people write it.
  std::string rank_text() const;
  std::string factors_text() const;  // the same without the product, which may overflow
  // The mesh's axes in order: pp, dp, tp and, where they are more than 1, cp and ep, which is the
  // inner part of dp: the axis dp is then what is left of it.
  AxisOrder mesh_order() const;
  // The same axes in their usual order, whatever the mesh's. Lists of axes follow it, so that what
  // is divided or summed over several of them has one order in all meshes.
  AxisOrder usual_order() const;
  int64_t axis_size(std::string_view axis) const;  // of the mesh
  // Over which a weight that nothing else divides is held by every rank and its gradients are
  // pending: of dp, ep and cp those larger than 1, major first; dp if there is none. What ZeRO
  // shards over.
  sharding::Axes data_axes() const;
  int64_t stages() const { return pp * chunks; }
  // [stage] its blocks of so many: `layers`, or an even deal whose first stages have one more.
  std::vector<int64_t> blocks_of_stages(int64_t blocks) const;
  // Microbatches of the program: twice as many with backward halving, whose forwards run two.
  int64_t units() const;
  // Parts that a sequence is cut into; 1: whole sequences.
  int64_t sequence_slices() const;
  GradReduce effective_grad_reduce() const;
  int64_t prefetch_elements() const;  // of prefetch_mb
  friend bool operator==(const Plan&, const Plan&) = default;
};

// The step that a plan was found for, as the options of `simulate` name it: what a plan file may
// say under "for". Empty, 0 or none: not said.
struct PlannedStep {
  std::string model, cluster, profile, precision;
  int64_t global_batch = 0, seq_len = 0;
  bool tf32 = false;
  std::optional<bool> scatter_gather;
  friend bool operator==(const PlannedStep&, const PlannedStep&) = default;
};

// The text of the file of a schedule that a plan names. Throws Error where there is none.
using ReadFile = std::function<std::string(const std::string& path)>;
// A relative path that there is in the folder of `file`, which names it, is that file; any other is
// of the working directory. REQUIRES: fs outlives the result.
ReadFile files_beside(FileSystem& fs, const std::string& file);

// A plan as far as its text is right: what is wrong with it, and the keys that have no sound value
// (they stand at their defaults), so that a model's findings can be said together with the text's.
struct PlanReading {
  Plan plan;
  std::set<std::string> unsound;
  std::vector<std::string> findings;
  std::optional<PlannedStep> step;
  bool says_dp = true;  // itself; a file always does
  bool sound(std::initializer_list<const char*> keys) const;
};
// As parse_plan, with the findings in the result. Throws Error where the text is no JSON. Without
// `files` a schedule's file is a finding, unless the JSON has its actions. `devices`: where no dp
// is said it is what so many leave, if any would do; 0: it is 1.
PlanReading read_plan(const std::string& text, const std::string& where = "--plan",
                      const ReadFile& files = {}, int64_t devices = 0);

// Whether a plan's text is JSON, not the short form.
bool is_plan_json(const std::string& text);
// As an option names a plan: "x.json" is read, everything else is a short form or JSON text, which
// `where` names in messages. Throws Error, of a file that holds no JSON object or a folder, too.
PlanReading read_plan_option(FileSystem& fs, const std::string& text, const std::string& where,
                             int64_t devices = 0);

// What keeps a sound plan from being run, "" if nothing does: a schedule that is only simulated.
std::string run_finding(const Plan& plan, const std::string& where = "--plan");

// The keys of a plan, short form and JSON, besides what JSON alone has of a schedule from a file
// and of the step that it is for.
struct PlanKey {
  enum class Value : uint8_t { kCount, kSwitch, kList, kOther };
  std::string_view name;
  Value value;  // kCount: a whole number from 1 on
};
std::span<const PlanKey> plan_keys();
const PlanKey* find_plan_key(std::string_view name);  // nullptr: there is none

// From the short form, or from JSON text if it starts with '{'. `where` names the source in
// messages. Throws Error with all findings: unknown keys (did you mean), values that are no
// numbers, combinations that cannot be.
Plan parse_plan(const std::string& text, const std::string& where = "--plan",
                const ReadFile& files = {});
Plan plan_from_json(const Json& json, const std::string& where);
// The plan with these keys, whose values are as in a short form. Under another schedule stages a
// rank that were chosen stay where it takes as many, and options that it does not have are left
// out. Throws Error with all findings.
using PlanEdits = std::map<std::string, std::string>;
Plan edited(const Plan& plan, const PlanEdits& edits, const std::string& where);
Json to_json(const Plan& plan);
// With "for".
Json to_json(const Plan& plan, const PlannedStep& step);
std::string short_form(const Plan& plan);

// Stages a rank of a plan that does not say them. One pipeline rank has no use for several that
// none needs.
int64_t chunks_unsaid(const std::string& schedule, int64_t pp);
// What the plan asks of its schedule.
pipeline::ScheduleRequest schedule_request(const Plan& plan);
// Takes out of the plan what only other kinds have an option for; the keys of what was set.
std::vector<std::string> drop_options(Plan& plan, const pipeline::ScheduleKind& kind);

// The plan whose losses this plan's must equal bit for bit: same dp, tp, sp, microbatch size and
// grad_reduce, but one stage, no ZeRO, no recompute.
Plan base_plan(const Plan& plan);

// A stage of a resolved plan.
struct Stage {
  int32_t first_layer = 0, layers = 0;         // of Module::layers
  cluster::Mesh mesh;                          // without the pipeline axis
  std::vector<sharding::Strategy> strategies;  // one a layer of the stage
};

// A plan against a model: every stage with its layers, mesh and strategies.
struct ResolvedPlan {
  Plan plan;
  cluster::Mesh mesh;  // all ranks
  std::vector<Stage> stages;
  std::vector<int32_t> stage_of_layer;
  sharding::Strategy outside;  // values outside all layers
  const sharding::Strategy& strategy(LayerId layer) const;
};

// Sizes of logical axes that tp must divide: heads, kv_heads. Of kv_heads there may also be fewer,
// if their number divides tp: the mesh then has axes tp_kv and tp_rep in place of tp, and the heads
// lie on tp_kv and are replicated over tp_rep.
struct ModelShape {
  std::string name;                            // for messages: "models/gpt-tiny.json"
  std::map<std::string, int64_t> must_divide;  // logical axis -> size, e.g. heads 12
  std::map<std::string, std::string> key;      // logical axis -> the config's key, e.g. "n_head"
  int64_t global_batch = 1, seq_len = 1;
  int64_t experts = 0, top_k = 0;  // of a mixture, and those that a token goes to
  bool is_sample = false;          // that nobody runs: a microbatch may have any number of tokens
};

// Throws Error with all findings: heads that tp does not divide (with the values that do), kv_heads
// that neither divide tp nor are divided by it, fewer blocks than stages, a batch that dp *
// microbatches does not divide, a layer list of the wrong length or sum.
ResolvedPlan resolve(const Plan& plan, const ir::Module& module, const ModelShape& shape);
// The findings alone, from counts, before a module is built; what depends on an unsound key is left
// out.
std::vector<std::string> plan_findings(const PlanReading& reading, int64_t blocks,
                                       const ModelShape& shape);
std::vector<std::string> plan_findings(const Plan& plan, int64_t blocks, const ModelShape& shape);

}  // namespace mw::compile
