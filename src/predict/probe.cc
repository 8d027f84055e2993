#include "predict/probe.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "compile/compile.h"
#include "models/model.h"
#include "pipeline/memory_plan.h"
#include "predict/precision.h"
#include "simulate/call_time.h"

namespace mw::predict {
namespace {

using pipeline::ActionKind;
using pipeline::Category;
using pipeline::Command;
using pipeline::Fragment;

// With two microbatches: the first has a whole backward, the second I and W.
pipeline::Schedule both_backwards(int32_t ranks) {
  pipeline::Schedule schedule = pipeline::make_schedule({"gpipe", ranks, 1, 2});
  for (auto& actions : schedule.ranks) {
    std::vector<pipeline::Action> split;
    for (pipeline::Action action : actions) {
      if (action.kind == ActionKind::kB && action.first == 1) {
        action.kind = ActionKind::kI;
        split.push_back(action);
        action.kind = ActionKind::kW;
      }
      split.push_back(action);
    }
    actions = std::move(split);
  }
  return schedule;
}

// Facts of time whose gaps and leads are told, in their order.
constexpr std::array<Fact, 3> kWaiting = {kInputGrad, kWeightGrad, kBackward};
// Sequences of a microbatch in a sample: primes, so that a multiple of one is that by intent.
constexpr std::array<int64_t, 3> kMarkers = {10007, 10009, 10037};
// So many times the sequences that are asked for may do the same with them.
constexpr int64_t kReach = 8;

// A flat group of parameters, or one device's part of it.
bool is_flat_part(const Fragment& fragment, size_t v) {
  const ir::TensorType& type = fragment.graph.values[v].type;
  const auto& dims = fragment.shardings[v].dims;
  return type.rank() == 1 && is_floating(type.dtype) && dims.size() == 1 &&
         dims[0] == sharding::Axes{"dp"};
}

// Program fragment f on a mesh with another dp and pp and with another microbatch: groups are
// symbolic, only sequences and the parts of flat groups have other shapes, and what holds them
// another place. `sizes`: empty where the microbatch is as in the program.
void place_on(const cluster::Mesh& mesh, const GrowingSizes* sizes, int64_t microbatch, size_t f,
              Fragment& fragment) {
  bool changed = false;
  for (size_t v = 0; v < fragment.graph.values.size(); ++v) {
    ir::TensorType& type = fragment.graph.values[v].type;
    if (is_flat_part(fragment, v)) {
      const DType dtype = type.dtype;
      type = sharding::local_type(fragment.global_types[v], fragment.shardings[v], mesh);
      type.dtype = dtype;
      changed = true;
    } else if (sizes != nullptr) {
      sizes->resize(f, v, microbatch, fragment);
      changed = true;
    }
  }
  if (changed) pipeline::plan_fragment(fragment);
}

void find_boundary(const pipeline::Program& program, Boundary& boundary) {
  boundary.messages = 0;
  for (const pipeline::Channel& channel : program.channels) {
    if (channel.from != 1 || channel.to != 2) continue;
    boundary.bytes += static_cast<double>(channel.type.bytes().value);
    ++boundary.messages;
  }
  for (const Command& command : program.ranks[2].commands) {
    if (command.kind == Command::Kind::kRelease && command.action.kind != ActionKind::kF &&
        program.channels[static_cast<size_t>(command.channel)].from == 1)
      boundary.held = true;
  }
}

// Leaves the fragments and who calls them, and the states.
void strip(pipeline::Program& program) {
  program.names.clear();
  for (Fragment& fragment : program.fragments) {
    for (ir::Value& value : fragment.graph.values) value.name.clear();
    for (auto* ports : {&fragment.inputs, &fragment.outputs}) {
      for (pipeline::Port& port : *ports) port.name.clear();
    }
  }
  for (pipeline::RankProgram& rank : program.ranks) {
    std::erase_if(rank.commands,
                  [](const Command& command) { return command.kind != Command::Kind::kCall; });
    for (Command& command : rank.commands) command.buffers.clear();
    for (size_t b = static_cast<size_t>(rank.states); b < rank.buffers.size(); ++b) {
      if (rank.buffers[b].storage.kind != pipeline::Storage::Kind::kState) continue;
      if (b > static_cast<size_t>(rank.states))
        std::swap(rank.buffers[static_cast<size_t>(rank.states)], rank.buffers[b]);
      ++rank.states;
    }
    rank.buffers.resize(static_cast<size_t>(rank.states));
  }
}

double saved_bytes(const Fragment& fragment, const std::vector<pipeline::Port>& ports) {
  double bytes = 0;
  for (const pipeline::Port& port : ports) {
    if (port.kind == pipeline::PortKind::kSaved || port.kind == pipeline::PortKind::kCarried)
      bytes += static_cast<double>(fragment.graph.type(port.value).bytes().value);
  }
  return bytes;
}

// Beside the backward fact kWaiting[i].
void add_gaps(const simulate::CallTime& time, size_t i, Facts& facts) {
  facts[kGaps + i] = time.gaps.value;
  facts[kLeads + i] = time.lead.value;
}

// `slice`: whose calls; -1: all.
void add_calls(const pipeline::Program& program, const pipeline::RankProgram& rank,
               const std::vector<simulate::CallTime>& times, int32_t slice, Facts& facts) {
  for (const Command& command : rank.commands) {
    if (command.kind != Command::Kind::kCall) continue;
    if (slice >= 0 && command.action.slice != slice) continue;
    const Fragment& fragment = program.fragments[command.fragment.index()];
    const simulate::CallTime& time = times[command.fragment.index()];
    const auto workspace = static_cast<double>(fragment.workspace.value);
    if (fragment.kind == ActionKind::kUpdate) {
      facts[kUpdate] = time.whole.value;
      facts[kUpdateBefore] = time.before.value;
      facts[kUpdateWorkspace] = workspace;
      continue;
    }
    if (fragment.kind == ActionKind::kF || fragment.kind == ActionKind::kB)
      facts[kWorkspace] = std::max(facts[kWorkspace], workspace);
    if (fragment.kind != ActionKind::kB)
      facts[kSplitWorkspace] = std::max(facts[kSplitWorkspace], workspace);
    for (size_t level = 0; level < time.links.size() && kLinks + level < kFacts; ++level)
      facts[kLinks + level] += time.links[level].value;
    switch (fragment.kind) {
      case ActionKind::kF:
        facts[kForward] = time.whole.value;
        facts[kSaved] = saved_bytes(fragment, fragment.outputs);
        break;
      case ActionKind::kI:
        facts[kInputGrad] = time.whole.value;
        add_gaps(time, 0, facts);
        facts[kSavedByInputGrad] = saved_bytes(fragment, fragment.outputs);
        break;
      case ActionKind::kW:
        facts[kWeightGrad] = time.whole.value;
        add_gaps(time, 1, facts);
        facts[kSavedForWeights] = saved_bytes(fragment, fragment.inputs);
        break;
      case ActionKind::kB:
        facts[kBackward] = time.whole.value;
        add_gaps(time, 2, facts);
        break;
      default: break;
    }
  }
}

// ZeRO's states are divided by `dp` where the small program divides them by its own.
void add_states(const pipeline::RankProgram& rank, const compile::Plan& plan, int64_t dp,
                Facts& facts) {
  const double again = static_cast<double>(plan.dp) / static_cast<double>(dp);
  for (const pipeline::Buffer& buffer : rank.buffers) {
    if (buffer.storage.kind != pipeline::Storage::Kind::kState) continue;
    const auto bytes = static_cast<double>(buffer.bytes().value);
    switch (buffer.category) {
      case Category::kWeights: facts[kWeights] += bytes * (plan.zero >= 3 ? again : 1); break;
      case Category::kGradients: facts[kGradients] += bytes * (plan.zero >= 2 ? again : 1); break;
      case Category::kOptimizer: facts[kOptimizer] += bytes * (plan.zero >= 1 ? again : 1); break;
      default: break;
    }
  }
}

// The third stage has a block more than the second, or as many as all have; the ends have as many
// as one of the two.
StageFacts from_four(const std::vector<Facts>& stages, const std::vector<int64_t>& blocks) {
  StageFacts facts;
  const size_t like = blocks[0] == blocks[1] ? 1 : 2;
  for (size_t f = 0; f < kFacts; ++f) {
    facts.block[f] = stages[2][f] - stages[1][f];
    facts.base[f] = stages[1][f] - static_cast<double>(blocks[1]) * facts.block[f];
    facts.first[f] = stages[0][f] - stages[like][f];
    facts.last[f] = stages[3][f] - stages[like][f];
  }
  facts.last_blocks = blocks[3];
  return facts;
}

cluster::Mesh resized(const cluster::Mesh& small, int64_t dp, int64_t pp) {
  std::vector<cluster::Axis> axes = small.axes();
  for (cluster::Axis& axis : axes) {
    if (axis.name == "dp") axis.size = dp;
    if (axis.name == "pp") axis.size = pp;
  }
  return cluster::Mesh(axes);
}

}  // namespace

Facts StageFacts::of(int64_t blocks, bool is_first, bool is_last) const {
  Facts facts;
  for (size_t f = 0; f < kFacts; ++f) {
    facts[f] = base[f] + static_cast<double>(blocks) * block[f] + (is_first ? first[f] : 0) +
               (is_last ? last[f] : 0);
    facts[f] = std::max(0.0, facts[f]);
  }
  if (!is_last || blocks <= last_blocks) return facts;
  for (size_t i = 0; i < kWaiting.size(); ++i) {
    const double gaps = static_cast<double>(blocks - last_blocks) * block[kGaps + i];
    const double lead = last[kLeads + i];
    facts[kWaiting[i]] -= std::clamp(lead, 0.0, std::max(0.0, gaps));
  }
  return facts;
}

ProbePrograms::ProbePrograms(const Request& request, bool folded, int64_t blocks)
    : request_(request), folded_(folded), blocks_(blocks) {}

void ProbePrograms::prepare(int64_t microbatch) {
  const bool first = compiled_.empty();
  if (first && !request_.plan.sp) compile_any();
  if (shown_by(microbatch) != compiled_.end()) return;
  if (request_.plan.sp && !first) {
    // More of them as a rule: look ahead, then half way between what does not do the same.
    if (microbatch > compiled_.rbegin()->first) compile(kReach * microbatch);
    if (shown_by(microbatch) != compiled_.end()) return;
    const auto above = compiled_.upper_bound(microbatch);
    if (above != compiled_.begin() && above != compiled_.end()) {
      const auto few = static_cast<double>(std::prev(above)->first);
      const auto many = static_cast<double>(above->first);
      compile(std::max<int64_t>(microbatch, std::llround(std::sqrt(few * many))));
      if (shown_by(microbatch) != compiled_.end()) return;
    }
  }
  compile(microbatch);
}

// Sets any_ where a number of sequences can be told from all else.
void ProbePrograms::compile_any() {
  for (const int64_t marker : kMarkers) {
    Samples samples = compile_samples(marker);
    any_ = std::all_of(samples.begin(), samples.end(),
                       [&](const Sample& sample) { return is_marked(sample, marker); });
    if (!any_) continue;
    for (Sample& sample : samples) sample.sizes = GrowingSizes::marked(sample.program, marker);
    compiled_.emplace(marker, std::move(samples));
    return;
  }
}

void ProbePrograms::compile(int64_t microbatch) {
  const auto here = compiled_.emplace(microbatch, compile_samples(microbatch)).first;
  const auto join = [](Compiled::iterator fewer, Compiled::iterator more) {
    for (size_t i = 0; i < fewer->second.size(); ++i) {
      const Sample &few = fewer->second[i], &many = more->second[i];
      const bool grows = few.boundary.messages == many.boundary.messages &&
                         few.boundary.held == many.boundary.held &&
                         few.boundary.bytes * static_cast<double>(more->first) ==
                             many.boundary.bytes * static_cast<double>(fewer->first);
      fewer->second[i].sizes =
          GrowingSizes::between(few.program, fewer->first, many.program, more->first);
      if (!grows) fewer->second[i].sizes.reset();
    }
  };
  if (here != compiled_.begin()) join(std::prev(here), here);
  if (std::next(here) != compiled_.end()) join(here, std::next(here));
}

// The samples to read microbatches of so many sequences off; end: none are compiled.
ProbePrograms::Compiled::const_iterator ProbePrograms::shown_by(int64_t microbatch) const {
  if (any_) return compiled_.begin();
  const auto above = compiled_.upper_bound(microbatch);
  if (above == compiled_.begin()) return compiled_.end();
  const auto at = std::prev(above);
  const bool shows = at->first == microbatch ||
                     std::all_of(at->second.begin(), at->second.end(), [&](const Sample& sample) {
                       return sample.sizes && sample.sizes->takes(microbatch);
                     });
  return shows ? at : compiled_.end();
}

ProbePrograms::Samples ProbePrograms::compile_samples(int64_t microbatch) const {
  std::vector<std::vector<int64_t>> stages;  // [sample] blocks of every stage
  if (blocks_ > 0) {
    stages = {std::vector<int64_t>(4, blocks_)};
  } else if (folded_) {
    stages = {{1, 1, 1, 1}, {1, 2, 2, 1}};
  } else if (request_.plan.pp == 1) {
    stages = {{2}, {4}};
  } else {
    // Collectives inside forward and backward hide behind the blocks beside them: at the ends too.
    const bool gathers = request_.plan.zero >= 2;
    stages = {gathers ? std::vector<int64_t>{3, 2, 3, 3} : std::vector<int64_t>{1, 1, 2, 1}};
  }
  Samples samples;
  for (const std::vector<int64_t>& blocks : stages)
    samples.push_back(compile_sample(blocks, microbatch));
  return samples;
}

// Whether all sizes that depend on the microbatch are multiples of `marker`, and no other is.
bool ProbePrograms::is_marked(const Sample& sample, int64_t marker) {
  for (const pipeline::RankProgram& rank : sample.program.ranks) {
    for (const pipeline::Buffer& buffer : rank.buffers) {
      for (const ir::Dim& dim : buffer.global_type->dims) {
        if (dim.size % marker == 0) return false;
      }
    }
  }
  for (const Fragment& fragment : sample.program.fragments) {
    for (const ir::TensorType& type : fragment.global_types) {
      if (type.rank() == 1) continue;
      for (const ir::Dim& dim : type.dims) {
        if (dim.size % marker != 0 && dim.size > sample.largest) return false;
      }
    }
  }
  return true;
}

ProbePrograms::Sample ProbePrograms::compile_sample(const std::vector<int64_t>& blocks,
                                                    int64_t microbatch) const {
  const compile::Plan& asked = request_.plan;
  Sample sample;
  compile::Plan& plan = sample.plan;
  plan = asked;
  plan.chunks = folded_ ? 2 : 1;
  plan.pp = static_cast<int64_t>(blocks.size()) / plan.chunks;
  plan.dp = asked.dp > 1 ? 2 : 1;
  plan.microbatches = 2;
  const bool sliced = asked.sequence_slices() > 1;
  if (!sliced) plan.schedule = "gpipe";
  plan.layers = blocks;
  models::ModelConfig config = request_.model;
  config.layers = 0;
  for (const int64_t n : blocks) config.layers += n;
  const models::BatchShape batch{microbatch * plan.dp, request_.seq_len, plan.sequence_slices()};
  const ir::Module model = models::build_model(config, batch);
  sample.largest = request_.seq_len;
  for (const StateId weight : model.parameters()) {
    for (const ir::Dim& dim : model.state(weight).type.dims)
      sample.largest = std::max(sample.largest, dim.size);
  }
  compile::ModelShape shape = model_shape(request_);
  shape.global_batch = batch.batch * plan.microbatches;
  const pipeline::Schedule schedule =
      sliced    ? pipeline::make_schedule(compile::schedule_request(plan))
      : folded_ ? pipeline::make_schedule({"zb-v", static_cast<int32_t>(plan.pp), 2, 2})
                : both_backwards(static_cast<int32_t>(plan.pp));
  compile::CompiledPlan compiled = compile::compile({.model = model,
                                                     .plan = plan,
                                                     .shape = shape,
                                                     .optimizer = {},
                                                     .schedule = &schedule,
                                                     .init = false});
  sample.program = in_precision(std::move(compiled.train), request_.precision,
                                loss_memory(request_.cluster, plan));
  if (sample.program.ranks.size() == 4) find_boundary(sample.program, sample.boundary);
  strip(sample.program);
  return sample;
}

pipeline::Program ProbePrograms::placed(const Sample& sample, const View& view) const {
  pipeline::Program program;
  program.mesh = resized(sample.program.mesh, view.dp, view.pp);
  program.ranks = sample.program.ranks;
  program.fragments.resize(sample.program.fragments.size());
  const auto is_asked = [&](FragmentId id) {
    const bool update = sample.program.fragments[id.index()].kind == ActionKind::kUpdate;
    return update == (view.part == Part::kStates);
  };
  for (size_t f = 0; f < program.fragments.size(); ++f) {
    if (!is_asked(FragmentId(static_cast<int64_t>(f)))) continue;
    program.fragments[f] = sample.program.fragments[f];
    place_on(program.mesh, view.microbatch == view.from ? nullptr : &*sample.sizes, view.microbatch,
             f, program.fragments[f]);
  }
  for (pipeline::RankProgram& rank : program.ranks)
    std::erase_if(rank.commands, [&](const Command& call) { return !is_asked(call.fragment); });
  return program;
}

std::vector<Facts> ProbePrograms::facts_of(const Sample& sample, const View& view) const {
  return facts_of(placed(sample, view), sample, view);
}

std::vector<Facts> ProbePrograms::facts_of(const pipeline::Program& program, const Sample& sample,
                                           const View& view, int32_t slice) const {
  // The first and the last rank are the pipeline's; the others stand for those between.
  const auto ranks = static_cast<int32_t>(program.ranks.size());
  const auto last = static_cast<int32_t>(view.pp) - 1;
  std::vector<int32_t> coordinates;
  for (int32_t r = 0; r < ranks; ++r)
    coordinates.push_back(r == ranks - 1 ? last : std::min(r, last));
  const std::vector<simulate::CallTime> times =
      simulate::call_times(program, request_.cluster, request_.options, coordinates);
  std::vector<Facts> facts;
  for (const pipeline::RankProgram& rank : program.ranks) {
    facts.emplace_back();
    add_calls(program, rank, times, slice, facts.back());
    add_states(rank, sample.plan, view.dp, facts.back());
  }
  return facts;
}

// Rank 0 has both ends and two blocks; rank 1 two blocks, and four.
Probe ProbePrograms::folded_on(const Samples& samples, const View& view) const {
  Probe made;
  StageFacts& facts = made.facts;
  const std::vector<Facts> few = facts_of(samples[0], view);
  const std::vector<Facts> many = facts_of(samples[1], view);
  for (size_t f = 0; f < kFacts; ++f) {
    facts.block[f] = (many[1][f] - few[1][f]) / 2;
    facts.base[f] = few[1][f] - 2 * facts.block[f];
    facts.first[f] = few[0][f] - few[1][f];  // the last stage is on the same rank: nothing more
  }
  return made;
}

Probe ProbePrograms::on(int64_t dp, int64_t pp, int64_t microbatch, Part part) const {
  const auto shown = shown_by(microbatch);
  MW_CHECK(shown != compiled_.end(), "no program shows microbatches of {}", microbatch);
  const Samples& samples = shown->second;
  const View view{dp, pp, microbatch, part, shown->first};
  if (folded_) return folded_on(samples, view);
  Probe made;
  StageFacts& facts = made.facts;
  if (samples.size() == 2) {
    const Facts two = facts_of(samples[0], view)[0], four = facts_of(samples[1], view)[0];
    for (size_t f = 0; f < kFacts; ++f) {
      facts.block[f] = (four[f] - two[f]) / 2;
      facts.base[f] = two[f] - 2 * facts.block[f];
    }
    return made;
  }
  const Sample& sample = samples[0];
  const pipeline::Program program = placed(sample, view);
  const auto slices = static_cast<int32_t>(sample.plan.sequence_slices());
  facts = from_four(facts_of(program, sample, view, slices > 1 ? 0 : -1), sample.plan.layers);
  for (int32_t slice = 1; slice < slices; ++slice)
    made.later.push_back(from_four(facts_of(program, sample, view, slice), sample.plan.layers));
  made.boundary = sample.boundary;
  made.boundary.bytes *= static_cast<double>(microbatch) / static_cast<double>(view.from * slices);
  return made;
}

}  // namespace mw::predict
