#include "predict/probe.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "compile/compile.h"
#include "predict/precision.h"
#include "predict/sample.h"

namespace mw::predict {
namespace {

using pipeline::ActionKind;
using pipeline::Command;
using pipeline::Fragment;

// Sequences of a microbatch in a sample: primes, so that a multiple of one is that by intent.
constexpr std::array<int64_t, 3> kMarkers = {10007, 10009, 10037};
// So many times the sequences that are asked for may do the same with them.
constexpr int64_t kReach = 8;

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

// What state_programs.h is for.
void drop_update(pipeline::Program& program) {
  const auto is_update = [&](FragmentId id) {
    return program.fragments[id.index()].kind == ActionKind::kUpdate;
  };
  for (pipeline::RankProgram& rank : program.ranks)
    std::erase_if(rank.commands, [&](const Command& call) { return is_update(call.fragment); });
  for (Fragment& fragment : program.fragments) {
    if (fragment.kind == ActionKind::kUpdate) fragment = Fragment();
  }
}

// [fragment][port, inputs, then outputs] what the buffer of a call takes of the value's bytes.
using KeptShares = std::vector<std::vector<double>>;

// Of what is saved in eight bits (narrow_saved.h), which fragments do not say.
KeptShares kept_shares(const pipeline::Program& program) {
  KeptShares shares(program.fragments.size());
  for (const pipeline::RankProgram& rank : program.ranks) {
    for (const Command& command : rank.commands) {
      if (command.kind != Command::Kind::kCall) continue;
      const Fragment& fragment = program.fragments[command.fragment.index()];
      std::vector<double>& here = shares[command.fragment.index()];
      here.clear();
      for (size_t p = 0; p < command.buffers.size(); ++p) {
        const size_t inputs = fragment.inputs.size();
        const pipeline::Port& port = p < inputs ? fragment.inputs[p] : fragment.outputs[p - inputs];
        const auto whole = static_cast<double>(fragment.graph.type(port.value).bytes().value);
        const Bytes kept = rank.buffers[command.buffers[p].index()].bytes();
        here.push_back(whole > 0 ? static_cast<double>(kept.value) / whole : 1);
      }
    }
  }
  return shares;
}

// `shares`: of `ports`, from `first` on; empty: all of their bytes.
double saved_bytes(const Fragment& fragment, const std::vector<pipeline::Port>& ports,
                   const std::vector<double>& shares, size_t first) {
  double bytes = 0;
  for (size_t p = 0; p < ports.size(); ++p) {
    const pipeline::Port& port = ports[p];
    if (port.kind == pipeline::PortKind::kSaved || port.kind == pipeline::PortKind::kCarried)
      bytes += static_cast<double>(fragment.graph.type(port.value).bytes().value) *
               (shares.empty() ? 1 : shares[first + p]);
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
               const std::vector<simulate::CallTime>& times, const KeptShares& kept, int32_t slice,
               Facts& facts) {
  const std::vector<double> all;
  for (const Command& command : rank.commands) {
    if (command.kind != Command::Kind::kCall) continue;
    if (slice >= 0 && command.action.slice != slice) continue;
    const Fragment& fragment = program.fragments[command.fragment.index()];
    const simulate::CallTime& time = times[command.fragment.index()];
    const std::vector<double>& shares = kept.empty() ? all : kept[command.fragment.index()];
    const size_t inputs = fragment.inputs.size();
    const auto workspace = static_cast<double>(fragment.workspace.value);
    if (fragment.kind == ActionKind::kF || fragment.kind == ActionKind::kB)
      facts[kWorkspace] = std::max(facts[kWorkspace], workspace);
    if (fragment.kind != ActionKind::kB && fragment.kind != ActionKind::kUpdate)
      facts[kSplitWorkspace] = std::max(facts[kSplitWorkspace], workspace);
    for (size_t level = 0; level < time.links.size() && kLinks + level < kFacts; ++level)
      facts[kLinks + level] += time.links[level].value;
    switch (fragment.kind) {
      case ActionKind::kF:
        facts[kForward] = time.whole.value;
        facts[kSaved] = saved_bytes(fragment, fragment.outputs, shares, inputs);
        break;
      case ActionKind::kI:
        facts[kInputGrad] = time.whole.value;
        add_gaps(time, 0, facts);
        facts[kSavedByInputGrad] = saved_bytes(fragment, fragment.outputs, shares, inputs);
        break;
      case ActionKind::kW:
        facts[kWeightGrad] = time.whole.value;
        add_gaps(time, 1, facts);
        facts[kSavedForWeights] = saved_bytes(fragment, fragment.inputs, shares, 0);
        break;
      case ActionKind::kB:
        facts[kBackward] = time.whole.value;
        facts[kPaired] = time.paired.value;
        add_gaps(time, 2, facts);
        break;
      default: break;
    }
  }
}

}  // namespace

ProbePrograms::ProbePrograms(const Request& request, int64_t blocks)
    : request_(request), blocks_(blocks) {}

// The partitioner moves the smaller of an activation and a weight's gradient: those of an MLP are
// as large as each other when a microbatch has as many tokens as the MLP has features.
int64_t ProbePrograms::expected_turn() const {
  return request_.model.ffn_size * request_.plan.sequence_slices() / request_.seq_len;
}

void ProbePrograms::prepare(int64_t microbatch, const std::set<int64_t>& told,
                            PartitionedSamples* models) {
  const bool first = compiled_.empty();
  const std::set<int64_t> turns = told.empty() ? std::set<int64_t>{expected_turn()} : told;
  if (first && !request_.plan.sp) compile_any(models);
  if (shown_by(microbatch) != compiled_.end()) return;
  if (request_.plan.sp && !first) {
    const auto turn = turns.lower_bound(microbatch);
    // More of them as a rule: look ahead, then half way between what does not do the same.
    if (microbatch > compiled_.rbegin()->first)
      compile(turn != turns.end() ? *turn : kReach * microbatch, models);
    if (shown_by(microbatch) != compiled_.end()) return;
    const auto above = compiled_.upper_bound(microbatch);
    const bool between = above != compiled_.begin() && above != compiled_.end();
    // Right behind a turn nothing is as it was before.
    if (between && !turns.contains(std::prev(above)->first)) {
      const auto few = static_cast<double>(std::prev(above)->first);
      const auto many = static_cast<double>(above->first);
      const bool turns_here = turn != turns.end() && *turn < above->first;
      compile(
          turns_here ? *turn : std::max<int64_t>(microbatch, std::llround(std::sqrt(few * many))),
          models);
      if (shown_by(microbatch) != compiled_.end()) return;
    }
  }
  compile(microbatch, models);
}

std::vector<int64_t> ProbePrograms::turns() const {
  std::vector<int64_t> found;
  for (auto it = compiled_.begin(); !any_ && it != compiled_.end(); ++it) {
    const bool same = std::all_of(it->second.begin(), it->second.end(),
                                  [](const Sample& sample) { return sample.sizes.has_value(); });
    if (std::next(it) != compiled_.end() && !same) found.push_back(it->first);
  }
  return found;
}

// Sets any_ where a number of sequences can be told from all else.
void ProbePrograms::compile_any(PartitionedSamples* models) {
  for (const int64_t marker : kMarkers) {
    Samples samples = compile_samples(marker, models);
    any_ = std::all_of(samples.begin(), samples.end(),
                       [&](const Sample& sample) { return is_marked(sample, marker); });
    if (!any_) continue;
    for (Sample& sample : samples) sample.sizes = GrowingSizes::marked(sample.program, marker);
    compiled_.emplace(marker, std::move(samples));
    return;
  }
}

void ProbePrograms::compile(int64_t microbatch, PartitionedSamples* models) {
  const auto here = compiled_.emplace(microbatch, compile_samples(microbatch, models)).first;
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

ProbePrograms::Samples ProbePrograms::compile_samples(int64_t microbatch,
                                                      PartitionedSamples* models) const {
  using Stages = std::vector<std::vector<int64_t>>;
  Stages stages;  // [sample] blocks of every stage
  // Collectives inside forward and backward hide behind the blocks beside them, at the ends too,
  // and what they hold grows by the same with each block from the fourth on.
  const bool gathers = request_.plan.zero >= 2;
  if (blocks_ > 0) {
    stages = {std::vector<int64_t>(4, blocks_)};
  } else if (request_.plan.pp == 1) {
    stages = gathers ? Stages{{4}, {6}} : Stages{{2}, {4}};
  } else if (alternates()) {
    stages = {gathers ? std::vector<int64_t>{4, 4, 6, 5, 4} : std::vector<int64_t>{2, 2, 4, 3, 2}};
  } else {
    stages = {gathers ? std::vector<int64_t>{4, 4, 5, 4} : std::vector<int64_t>{1, 1, 2, 1}};
  }
  Samples samples;
  for (const std::vector<int64_t>& blocks : stages)
    samples.push_back(compile_sample(blocks, microbatch, models));
  return samples;
}

// Whether all sizes that depend on the microbatch are multiples of `marker`, and no other is. What
// has rows by the microbatch may have rows of any size (precision.cc widens them).
bool ProbePrograms::is_marked(const Sample& sample, int64_t marker) {
  const auto multiple = [&](const ir::Dim& dim) { return dim.size % marker == 0; };
  for (const pipeline::RankProgram& rank : sample.program.ranks) {
    for (const pipeline::Buffer& buffer : rank.buffers) {
      const ir::Dims& dims = buffer.global_type().dims;
      if (std::any_of(dims.begin(), dims.end(), multiple)) return false;
    }
  }
  for (const Fragment& fragment : sample.program.fragments) {
    for (const ir::TensorType& type : fragment.global_types) {
      if (type.rank() == 1 || std::any_of(type.dims.begin(), type.dims.end(), multiple)) continue;
      for (const ir::Dim& dim : type.dims) {
        if (dim.size > sample.largest) return false;
      }
    }
  }
  return true;
}

ProbePrograms::Sample ProbePrograms::compile_sample(const std::vector<int64_t>& blocks,
                                                    int64_t microbatch,
                                                    PartitionedSamples* models) const {
  const compile::Plan& asked = request_.plan;
  Sample sample;
  compile::Plan& plan = sample.plan;
  plan = asked;
  plan.chunks = 1;
  plan.pp = static_cast<int64_t>(blocks.size());
  plan.dp = asked.dp > asked.ep ? 2 * asked.ep : asked.ep;
  plan.microbatches = 2;
  const bool sliced = asked.sequence_slices() > 1;
  if (!sliced) plan.schedule = compile::Plan().schedule;
  plan.layers = blocks;
  const PartitionedSamples::Sample* shared =
      models != nullptr ? &models->of(request_, plan, microbatch) : nullptr;
  std::optional<ir::Module> own;
  if (shared == nullptr) own = sample_model(request_, plan, microbatch);
  const ir::Module& model = own ? *own : shared->model;
  sample.largest = request_.seq_len;
  for (const StateId weight : model.parameters()) {
    for (const ir::Dim& dim : model.state(weight).type.dims)
      sample.largest = std::max(sample.largest, dim.size);
  }
  const pipeline::Schedule schedule =
      sliced ? pipeline::make_schedule(compile::schedule_request(plan)) : sample_schedule(plan.pp);
  const StackMemory memory = stack_memory(request_.cluster, plan, request_.options.fp8);
  compile::CompileRequest to_compile = sample_request(request_, plan, microbatch, model);
  to_compile.schedule = &schedule;
  to_compile.offsets = !plans_memory(request_.precision, memory);
  if (shared != nullptr) to_compile.partitioned = shared->partitioned.get();
  compile::CompiledPlan compiled = compile::compile(to_compile);
  constexpr bool kArenas = false;
  sample.program = in_precision(std::move(compiled.train), request_.precision, memory, kArenas);
  if (sample.program.ranks.size() > 1) find_boundary(sample.program, sample.boundary);
  if (memory.narrow != cost::Fp8::kOff) sample.kept_shares = kept_shares(sample.program);
  strip(sample.program);
  drop_update(sample.program);
  return sample;
}

pipeline::Program ProbePrograms::placed(const Sample& sample, const View& view) {
  pipeline::Program program;
  program.mesh = resized(sample.program.mesh, view.dp / sample.plan.ep, view.pp);
  program.microbatches = static_cast<int32_t>(view.microbatches);
  for (const pipeline::RankProgram& rank : sample.program.ranks) {
    pipeline::RankProgram& here = program.ranks.emplace_back();
    here.commands = rank.commands;
    here.buffers = rank.buffers;  // under weights in half precision gradients are summed otherwise
  }
  program.fragments = sample.program.fragments;
  const GrowingSizes* sizes = view.microbatch == view.from ? nullptr : &*sample.sizes;
  for (size_t f = 0; f < program.fragments.size(); ++f)
    place_on(program.mesh, sizes, view.microbatch, f, program.fragments[f]);
  return program;
}

std::vector<Facts> ProbePrograms::facts_of(const Sample& sample, const pipeline::Program& placed,
                                           const View& view, int32_t slice) const {
  const std::vector<simulate::CallTime> times = times_on(placed, request_, view.pp);
  std::vector<Facts> facts;
  for (const pipeline::RankProgram& rank : placed.ranks)
    add_calls(placed, rank, times, sample.kept_shares, slice, facts.emplace_back());
  return facts;
}

Probe ProbePrograms::on(int64_t dp, int64_t pp, int64_t microbatch, int64_t microbatches) const {
  const auto shown = shown_by(microbatch);
  MW_CHECK(shown != compiled_.end(), "no program shows microbatches of {}", microbatch);
  const Samples& samples = shown->second;
  const View view{dp, pp, microbatch, shown->first, microbatches};
  const auto whole = [&](const Sample& sample) {
    return facts_of(sample, placed(sample, view), view, -1)[0];
  };
  Probe made;
  if (samples.size() == 2) {
    const int64_t few = samples[0].plan.layers[0], many = samples[1].plan.layers[0];
    made.facts = StageFacts::of_two(whole(samples[0]), few, whole(samples[1]), many - few);
    made.facts.ahead_blocks = few;
    return made;
  }
  const Sample& sample = samples[0];
  const pipeline::Program program = placed(sample, view);
  const auto slices = static_cast<int32_t>(sample.plan.sequence_slices());
  const std::vector<int64_t>& layers = sample.plan.layers;
  const bool alternating = alternates() && (layers.size() > 4 || layers[0] == 1);
  const auto of_slice = [&](int32_t slice) {
    const std::vector<Facts> facts = facts_of(sample, program, view, slice);
    return alternating ? StageFacts::of_alternating(facts, layers)
                       : StageFacts::of_four(facts, layers);
  };
  made.facts = of_slice(slices > 1 ? 0 : -1);
  for (int32_t slice = 1; slice < slices; ++slice) made.later.push_back(of_slice(slice));
  made.boundary = sample.boundary;
  made.boundary.bytes *= static_cast<double>(microbatch) / static_cast<double>(view.from * slices);
  return made;
}

}  // namespace mw::predict
