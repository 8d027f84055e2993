#include "simulate/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/in_parallel.h"
#include "base/text.h"
#include "cluster/slice.h"
#include "cost/collective.h"
#include "pipeline/axes.h"
#include "pipeline/memory_plan.h"
#include "simulate/critical_path.h"
#include "simulate/event_loop.h"
#include "simulate/prepared.h"
#include "simulate/timeline.h"

namespace mw::simulate {
namespace {

using pipeline::Category;
using pipeline::Program;

class Simulation {
 public:
  Simulation(const Program& program, const cluster::Cluster& cluster, const Options& options,
             const std::vector<Held>& held)
      : program_(program),
        cluster_(cluster),
        options_(options),
        held_(held),
        coster_(program, cluster, options, labels_) {
    if (cluster.devices > 0 && program.mesh.size() > cluster.devices) {
      throw_error("{}: has {} {}, the plan has {} ranks", cluster.file, cluster.devices,
                  cluster.devices == 1 ? "device" : "devices", program.mesh.size());
    }
    MW_CHECK(held.empty() || held.size() == program.ranks.size(), "{} of {} ranks hold something",
             held.size(), program.ranks.size());
  }

  Result run() {
    prepare();
    find_last_early();
    use_pairs_where_shorter();
    const LoopInput input = loop_input();
    EventLoop loop(input);
    loop.run();
    return collect(input, loop);
  }

  // Everything but the clock.
  void prepare() {
    const bool bindings = options_.overlap.grad_reduce || options_.overlap.param_gather;
    flat_ = flatten(
        program_,
        {.bindings = bindings, .uses = held_.empty(), .memory = held_.empty() && options_.trace});
    for (size_t r = 0; r < held_.size(); ++r) {
      flat_.ranks[r].memory = held_[r].lives;
      flat_.ranks[r].workspace = held_[r].workspace;
      flat_.ranks[r].reserved = held_[r].reserved.value;
    }
    for (size_t r = 0; r < program_.ranks.size(); ++r)
      devices_.push_back(coster_.representative(static_cast<int32_t>(r)));
    place_channels();
    cost_fragments();
    find_fullest();
    walk_fragments();
  }
  // The step alone, with the cluster's speeds as they are now. REQUIRES: prepare().
  Seconds step_again() {
    place_channels();
    for (TimedFragment& fragment : fragments_) {
      if (!fragment.cost.ops.empty()) set_times(fragment.cost, cluster_, options_);
    }
    walk_fragments();
    find_last_early();
    use_pairs_where_shorter();
    EventLoop loop(loop_input());
    loop.run();
    return Seconds(loop.end());
  }

 private:
  // Where a rank has idle time left is seen in the step without early sums.
  void find_last_early() {
    if (!options_.overlap.grad_reduce_idle) return;
    Options late = options_;
    late.overlap.grad_reduce = late.trace = late.figures = false;
    EventLoop loop(loop_input(late, nullptr));
    loop.run();
    last_early_ = loop.last_waits();
  }
  // A pair's messages leave behind both of its calls: whether that is worth what it saves shows in
  // the step.
  void use_pairs_where_shorter() {
    paired_ = options_;
    if (pairs_.empty()) return;
    const auto step = [&](bool pairs) {
      Options bare = options_;
      bare.trace = bare.figures = false;
      bare.overlap.pairs = pairs;
      EventLoop loop(loop_input(bare, early()));
      loop.run();
      return loop.end();
    };
    paired_.overlap.pairs = step(true) < step(false);
  }
  const std::vector<int32_t>* early() const {
    return options_.overlap.grad_reduce_idle ? &last_early_ : nullptr;
  }
  LoopInput loop_input() const { return loop_input(paired_, early()); }
  LoopInput loop_input(const Options& options, const std::vector<int32_t>* last_early) const {
    return {program_,  flat_,   fragments_,     pairs_,        coster_.cross_groups(),
            cluster_,  options, labels_.size(), gather_label_, update_levels_,
            last_early};
  }

  Names tensor_axes() const {
    Names axes;
    for (const cluster::Axis& axis : program_.mesh.axes()) {
      if (pipeline::is_tensor_axis(axis.name)) axes.push_back(axis.name);
    }
    return axes;
  }
  // Link level of each channel, and what scatter/gather makes of it.
  void place_channels() {
    const Names axes = tensor_axes();
    int64_t tp = 1;
    for (const Name axis : axes) tp *= program_.mesh.axis_size(axis);
    const std::vector<bool> whole = whole_on_tp();
    const std::vector<RankId> replicas = coster_.replicas_beside({});
    for (size_t c = 0; c < flat_.channels.size(); ++c) {
      FlatChannel& channel = flat_.channels[c];
      channel.level = cluster::level_between(cluster_, devices_[static_cast<size_t>(channel.from)],
                                             devices_[static_cast<size_t>(channel.to)], replicas);
      if (!options_.scatter_gather || tp == 1 || !whole[c]) continue;
      gather_label_ = labels_.id(ir::AxisGroup{{axes.begin(), axes.end()}}, false, program_.mesh);
      channel.sent = (channel.bytes + tp - 1) / tp;
      const std::vector<cluster::GroupShape> groups = cluster::group_shapes(
          cluster_, program_.mesh.members(devices_[static_cast<size_t>(channel.to)], axes),
          coster_.replicas_beside(axes));
      channel.gather =
          (cost::collective_time(cluster_, ir::OpKind::kAllGather, Bytes(channel.bytes), groups)
               .time +
           cluster_.device.attained.collective_latency)
              .value;
    }
  }
  // [channel] whether every tp rank holds all of the value. A channel's slots are alike.
  std::vector<bool> whole_on_tp() const {
    std::vector<bool> whole(program_.channels.size(), false);
    if (!options_.scatter_gather) return whole;
    for (size_t c = 0; c < whole.size(); ++c) {
      const std::vector<pipeline::Buffer>& buffers =
          program_.ranks[static_cast<size_t>(program_.channels[c].to)].buffers;
      const auto slot = std::find_if(buffers.begin(), buffers.end(), [&](const auto& buffer) {
        return buffer.storage.kind == pipeline::Storage::Kind::kSlot &&
               buffer.storage.channel == static_cast<int32_t>(c);
      });
      if (slot == buffers.end()) continue;
      const auto& dims = slot->sharding().dims;
      whole[c] = std::none_of(dims.begin(), dims.end(), [](const sharding::Axes& axes) {
        return std::any_of(axes.begin(), axes.end(),
                           [](std::string_view axis) { return pipeline::is_tensor_axis(axis); });
      });
    }
    return whole;
  }

  // Each fragment once for all callers whose groups lie alike: those of the first one at its own
  // number, others behind all fragments.
  void cost_fragments() {
    fragments_.resize(program_.fragments.size());
    std::vector<std::vector<std::pair<int32_t, int32_t>>> of(fragments_.size());  // rank, timed
    for (size_t r = 0; r < flat_.ranks.size(); ++r) {
      const auto rank = static_cast<int32_t>(r);
      std::vector<int32_t> timed(of.size(), -1);  // on this rank
      for (FlatCall& call : flat_.ranks[r].calls) {
        const auto f = static_cast<size_t>(call.fragment);
        if (timed[f] < 0) timed[f] = timed_on(f, rank, of[f]);
        call.timed = timed[f];
      }
    }
    for (size_t f = 0; f < of.size(); ++f) {
      for (const auto& [rank, timed] : of[f]) cost_fragment(f, rank, timed);
    }
  }
  int32_t timed_on(size_t f, int32_t rank, std::vector<std::pair<int32_t, int32_t>>& known) {
    for (const auto& [other, timed] : known) {
      if (coster_.lie_alike(program_.fragments[f], other, rank)) return timed;
    }
    const size_t timed = known.empty() ? f : fragments_.size();
    if (!known.empty()) fragments_.emplace_back();
    known.emplace_back(rank, static_cast<int32_t>(timed));
    return known.back().second;
  }
  void cost_fragment(size_t f, int32_t rank, int32_t timed) {
    FragmentCost& cost = fragments_[static_cast<size_t>(timed)].cost;
    cost = coster_.cost(program_.fragments[f], rank);
    if (!options_.overlap.param_gather ||
        program_.fragments[f].kind != pipeline::ActionKind::kUpdate)
      return;
    for (const int32_t o : cost.gathers) cost.ops[static_cast<size_t>(o)].alias = true;
  }
  void find_fullest() {
    std::vector<int64_t> workspace;  // [timed]
    size_t commands = 0;
    for (const TimedFragment& fragment : fragments_)
      workspace.push_back(fragment.cost.workspace_end);
    for (const FlatRank& rank : flat_.ranks) commands += rank.commands.size();
    in_parallel(flat_.ranks.size(), threads_for(commands), [&](size_t r) {
      FlatRank& rank = flat_.ranks[r];
      const std::vector<int64_t> alive =
          held_.empty() ? pipeline::alive_bytes(program_, r, rank.uses)
                        : pipeline::alive_bytes(rank.memory, rank.commands.size());
      rank.fullest = fullest_of(rank, alive, workspace);
    });
  }
  void walk_fragments() {
    uint32_t levels = 0;  // of messages
    for (const FlatChannel& channel : flat_.channels) levels |= uint32_t{1} << channel.level;
    update_levels_ = 0;
    uint32_t update_fills = 0;
    for (const TimedFragment& fragment : fragments_) {
      if (!fragment.cost.update) continue;
      for (const OpCost& op : fragment.cost.ops) {
        update_levels_ |= op.levels;
        update_fills |= op.fills;
      }
    }
    for (TimedFragment& fragment : fragments_) {
      if (fragment.cost.ops.empty() || fragment.cost.crosses) continue;
      Walk walk;
      walk.begin(fragment.cost, 0);
      double meet = 0;
      MW_CHECK(!advance(fragment.cost, walk,
                        {.slowdowns = slowdowns_of(options_.overlap, cluster_.device)}, meet),
               "a fragment of its own meets others at {}", meet);
      fragment.time = divide(fragment.cost, walk, 0, walk.end, labels_.size());
      fragment.links = fragment.cost.update ? std::vector<std::vector<Interval>>{}
                                            : link_use(fragment.cost, walk.spans, levels);
      fragment.taken = fragment.cost.update
                           ? std::vector<std::vector<Interval>>{}
                           : link_use(fragment.cost, walk.spans, update_fills, &OpCost::fills);
      fragment.spans = std::move(walk.spans);
    }
    time_pairs(levels);
  }
  // Calls that a schedule lays together run so where that is shorter.
  void time_pairs(uint32_t levels) {
    pairs_.clear();
    std::map<std::pair<int32_t, int32_t>, int32_t> known;
    for (FlatRank& rank : flat_.ranks) {
      for (size_t c = 0; c < rank.calls.size(); ++c) {
        FlatCall& call = rank.calls[c];
        if (call.paired < 0 || !options_.overlap.pairs) continue;
        const auto [it, is_new] = known.try_emplace({call.timed, rank.calls[c + 1].timed}, -1);
        if (is_new) it->second = time_pair_of(it->first.first, it->first.second, levels);
        call.pair = it->second;
      }
    }
  }
  int32_t time_pair_of(int32_t a, int32_t b, uint32_t levels) {
    const TimedFragment &first = fragments_[static_cast<size_t>(a)],
                        &second = fragments_[static_cast<size_t>(b)];
    if (first.cost.crosses || second.cost.crosses) return -1;
    if (!has_exchanges(first.cost) && !has_exchanges(second.cost)) return -1;
    TimedPair pair =
        time_pair(first.cost, second.cost, slowdowns_of(options_.overlap, cluster_.device), levels,
                  labels_.size());
    if (pair.time.duration >= first.time.duration + second.time.duration) return -1;
    pairs_.push_back(std::move(pair));
    return static_cast<int32_t>(pairs_.size()) - 1;
  }

  Result collect(const LoopInput& input, EventLoop& loop) {
    Result result;
    result.step = Seconds(loop.end());
    result.events = loop.events();
    std::vector<double> ends;
    std::vector<int32_t> commands;
    size_t all_commands = 0;
    for (size_t r = 0; r < program_.ranks.size(); ++r) {
      all_commands += program_.ranks[r].commands.size();
      ends.push_back(loop.sums()[r].end);
      commands.push_back(static_cast<int32_t>(program_.ranks[r].commands.size()));
    }
    result.ranks.resize(program_.ranks.size());
    in_parallel(result.ranks.size(), threads_for(all_commands),
                [&](size_t r) { result.ranks[r] = rank_result(r, loop); });
    share_cores(result);
    if (options_.trace) {
      result.trace = make_trace(input, loop, labels_, devices_);
      if (options_.program_hash) result.trace.program_hash = pipeline::program_hash(program_);
    }
    for (RankLog& log : loop.logs()) result.waits.push_back(std::move(log.waits));
    result.critical_path = critical_path(result.waits, ends, commands);
    return result;
  }

  // Devices that are threads share the cores: the step is no shorter than all their work on them.
  void share_cores(Result& result) const {
    if (cluster_.cores == 0) return;
    double busy = 0;
    for (const RankResult& rank : result.ranks)
      busy += (rank.compute + rank.gaps + rank.total_exposed_comm()).value;
    busy *= static_cast<double>(program_.mesh.size()) / static_cast<double>(result.ranks.size());
    const Seconds alone = result.step;
    result.step = std::max(alone, Seconds(busy / static_cast<double>(cluster_.cores)));
    for (RankResult& rank : result.ranks) rank.core_wait = result.step - alone;
  }

  RankResult rank_result(size_t r, const EventLoop& loop) const {
    const RankSums& sums = loop.sums()[r];
    RankResult made;
    made.rank = devices_[r];
    made.compute = Seconds(sums.compute);
    made.gaps = Seconds(sums.gaps);
    made.idle = Seconds(loop.end() - sums.end);
    for (size_t w = 0; w < kWaitReasons; ++w) made.waits[w] = Seconds(sums.waits[w]);
    made.flops = Flops(sums.flops);
    made.recomputed_flops = Flops(sums.recomputed_flops);
    made.instructions = sums.instructions;
    made.order_hash = sums.order.value();
    for (size_t l = 0; l < labels_.size(); ++l) {
      const std::string& label = labels_[l].name;
      if (sums.comm[l] > 0) made.comm[label] += Seconds(sums.comm[l]);
      if (sums.exposed[l] > 0) made.exposed_comm[labels_[l].entry] += Seconds(sums.exposed[l]);
      if (sums.collectives[l] > 0) {
        made.bytes_by_group[label] += Bytes(sums.sent[l]);
        made.collectives_by_group[label] += sums.collectives[l];
      }
      made.bytes_sent += Bytes(sums.sent[l]);
    }
    made.bytes_sent += Bytes(sums.messages_sent);
    if (sums.messages_sent > 0) made.bytes_by_group["pp"] += Bytes(sums.messages_sent);
    made.reserved = Bytes(flat_.ranks[r].reserved);
    made.peak = peak(r, sums);
    return made;
  }

  MemoryPeak peak(size_t r, const RankSums& sums) const {
    MemoryPeak peak;
    const Fullest& fullest = flat_.ranks[r].fullest;
    peak.bytes = Bytes(fullest.bytes);
    peak.time = Seconds(sums.peak_time);
    peak.command = fullest.command;
    if (peak.command >= 0) peak.at = command_name(program_, static_cast<int32_t>(r), peak.command);
    if (!held_.empty()) {
      peak.by_category = held_[r].by_category;
      peak.largest = held_[r].largest;
      return peak;
    }
    std::vector<size_t> buffers = buffers_alive(r, fullest.command);
    peak.by_category = by_category(r, buffers, fullest.workspace);
    peak.largest = largest(r, fullest.command, std::move(buffers));
    return peak;
  }

  // States, and the step's buffers that a command of the rank finds alive.
  std::vector<size_t> buffers_alive(size_t r, int32_t command) const {
    using pipeline::Storage;
    const pipeline::RankProgram& rank = program_.ranks[r];
    const std::vector<pipeline::BufferUse>& uses = flat_.ranks[r].uses;
    std::vector<size_t> alive;
    for (size_t b = 0; b < rank.buffers.size(); ++b) {
      const bool named = uses[b].first >= 0,
                 used = named && uses[b].first <= command && command <= uses[b].last;
      // Most are of other microbatches: those are not looked at.
      if (named && !used && b >= static_cast<size_t>(rank.states)) continue;
      const Storage::Kind kind = rank.buffers[b].storage.kind;
      if (kind == Storage::Kind::kState || (used && kind == Storage::Kind::kArena))
        alive.push_back(b);
    }
    return alive;
  }

  std::map<Category, Bytes> by_category(size_t r, const std::vector<size_t>& buffers,
                                        int64_t workspace) const {
    std::map<Category, Bytes> sums;
    const auto add = [&](Category category, int64_t bytes) {
      if (bytes > 0) sums[category] += Bytes(bytes);
    };
    add(Category::kWorkspace, workspace);
    for (const size_t b : buffers) {
      const pipeline::Buffer& buffer = program_.ranks[r].buffers[b];
      add(buffer.category, buffer.bytes().value);
    }
    for (const pipeline::Channel& channel : program_.channels) {
      if (channel.to == static_cast<int32_t>(r))
        add(Category::kBoundary, channel.type.bytes().value * channel.slots);
    }
    return sums;
  }

  // What is alive at a command of the rank besides buffers: slots of the channels it receives by,
  // and what a call works in.
  std::vector<LiveTensor> slots_and_workspace(size_t r, int32_t command) const {
    std::vector<LiveTensor> found;
    for (const pipeline::Channel& channel : program_.channels) {
      if (channel.to != static_cast<int32_t>(r)) continue;
      found.push_back({fmt::format("{} slots of {}", channel.slots, channel.name),
                       Category::kBoundary, Bytes(channel.type.bytes().value * channel.slots)});
    }
    if (command < 0) return found;
    const pipeline::Command& call = program_.ranks[r].commands[static_cast<size_t>(command)];
    if (call.kind != pipeline::Command::Kind::kCall) return found;
    const pipeline::Fragment& fragment = program_.fragments[call.fragment.index()];
    const ir::Value* widest = nullptr;  // inside the call
    for (size_t v = 0; v < fragment.graph.values.size(); ++v) {
      const ir::Value& value = fragment.graph.values[v];
      if (fragment.workspace_offset[v] >= 0 &&
          (widest == nullptr || value.type.bytes() > widest->type.bytes()))
        widest = &value;
    }
    if (widest == nullptr) return found;
    const std::string name =
        !widest->name.empty() ? widest->name
        : widest->producer.valid()
            ? std::string(ir::op_name(fragment.graph.op(widest->producer).kind))
            : "an input";
    found.push_back({fmt::format("temporaries of {}, largest {}",
                                 command_name(program_, static_cast<int32_t>(r), command), name),
                     Category::kWorkspace,
                     Bytes(fragments_[call.fragment.index()].cost.workspace_end)});
    return found;
  }

  // "add of F of stage 3, microbatch 0" where nobody named the value. `first`: the command that
  // makes it.
  std::string tensor_name(size_t r, size_t b, int32_t first) const {
    const pipeline::RankProgram& rank = program_.ranks[r];
    const std::string name = rank.buffers[b].name();
    const pipeline::Command& call = rank.commands[static_cast<size_t>(first)];
    if (!name.starts_with('%') || call.kind != pipeline::Command::Kind::kCall) return name;
    const pipeline::Fragment& fragment = program_.fragments[call.fragment.index()];
    for (size_t port = fragment.inputs.size(); port < call.buffers.size(); ++port) {
      if (pipeline::root_buffer(rank, call.buffers[port]).index() != b) continue;
      const ValueId made = fragment.graph.outputs[port - fragment.inputs.size()];
      const OpId producer = fragment.graph.value(made).producer;
      if (!producer.valid()) break;
      return fmt::format("{} of {}", ir::op_name(fragment.graph.op(producer).kind),
                         command_name(program_, static_cast<int32_t>(r), first));
    }
    return name;
  }

  std::vector<LiveTensor> largest(size_t r, int32_t command, std::vector<size_t> alive) const {
    const pipeline::RankProgram& rank = program_.ranks[r];
    const std::vector<pipeline::BufferUse>& uses = flat_.ranks[r].uses;
    const size_t count = std::min(kLargest, alive.size());
    std::partial_sort(alive.begin(), alive.begin() + static_cast<std::ptrdiff_t>(count),
                      alive.end(), [&](size_t a, size_t b) {
                        const int64_t x = rank.buffers[a].bytes().value;
                        const int64_t y = rank.buffers[b].bytes().value;
                        return x != y ? x > y : a < b;
                      });
    std::vector<LiveTensor> tensors = slots_and_workspace(r, command);
    for (size_t i = 0; i < count; ++i) {
      const pipeline::Buffer& buffer = rank.buffers[alive[i]];
      tensors.push_back(
          {tensor_name(r, alive[i], uses[alive[i]].first), buffer.category, buffer.bytes()});
    }
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const LiveTensor& a, const LiveTensor& b) { return a.bytes > b.bytes; });
    if (tensors.size() > kLargest) tensors.resize(kLargest);
    return tensors;
  }

  const Program& program_;
  const cluster::Cluster& cluster_;
  const Options& options_;
  const std::vector<Held>& held_;
  Labels labels_;
  FragmentCoster coster_;
  FlatProgram flat_;
  std::vector<TimedFragment> fragments_;
  std::vector<TimedPair> pairs_;
  std::vector<RankId> devices_;  // [pipeline rank] that stands for it
  int32_t gather_label_ = -1;
  uint32_t update_levels_ = 0;
  std::vector<int32_t> last_early_;  // LoopInput::last_early
  Options paired_;                   // with pairs where these make the step shorter
};

}  // namespace

Options options_of(const cluster::Stack& stack) {
  Options options;
  options.scatter_gather = stack.scatter_gather;
  for (const std::string& word : stack.overlap) {
    if (!set_overlap(options.overlap, word))
      throw_error("profile of {}: overlap: unknown word '{}'{}", stack.name, word,
                  did_you_mean(word, overlap_words()));
  }
  return options;
}

std::string_view wait_reason_name(WaitReason reason) {
  switch (reason) {
    case WaitReason::kReceive: return "receive";
    case WaitReason::kSlot: return "slot";
    case WaitReason::kCollective: return "collective";
    case WaitReason::kSend: return "send";
    case WaitReason::kGather: return "gather";
  }
  return "?";
}

Seconds RankResult::total_wait() const {
  Seconds sum;
  for (const Seconds wait : waits) sum += wait;
  return sum;
}

Seconds RankResult::total_exposed_comm() const {
  Seconds sum;
  for (const auto& [label, time] : exposed_comm) sum += time;
  return sum;
}

double Result::bubble() const {
  if (ranks.empty() || step.value <= 0) return 0;
  double sum = 0;
  for (const RankResult& rank : ranks) sum += (rank.total_wait() + rank.idle).value;
  return sum / static_cast<double>(ranks.size()) / step.value;
}

Result simulate(const Program& program, const cluster::Cluster& cluster, const Options& options,
                const std::vector<Held>& held) {
  const cluster::Cluster on = cluster::slice_of(cluster, program.mesh.size());
  return Simulation(program, on, options, held).run();
}

struct Prepared::Parts {
  Parts(Program given, const cluster::Cluster& on, const Options& how)
      : program(std::move(given)),
        cluster(cluster::slice_of(on, program.mesh.size())),
        options(how),
        simulation(program, cluster, options, held) {
    simulation.prepare();
    for (pipeline::Fragment& fragment : program.fragments) {  // the clock reads none of these
      const auto kind = fragment.kind;
      const std::vector<pipeline::Port> inputs = std::move(fragment.inputs);
      fragment = {};
      fragment.kind = kind;
      fragment.inputs = inputs;
    }
    for (pipeline::RankProgram& rank : program.ranks) {
      rank.commands.clear();
      rank.commands.shrink_to_fit();
    }
  }

  Program program;
  cluster::Cluster cluster;
  Options options;
  std::vector<Held> held;
  Simulation simulation;
};

Prepared::Prepared(Program program, const cluster::Cluster& cluster, Options options) {
  options.trace = false;
  options.figures = false;
  parts_ = std::make_unique<Parts>(std::move(program), cluster, options);
}
Prepared::~Prepared() = default;
Prepared::Prepared(Prepared&&) noexcept = default;
Prepared& Prepared::operator=(Prepared&&) noexcept = default;

Seconds Prepared::step(const cluster::Cluster& cluster) {
  parts_->cluster = cluster::slice_of(cluster, parts_->program.mesh.size());
  return parts_->simulation.step_again();
}

}  // namespace mw::simulate
