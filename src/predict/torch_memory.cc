#include "predict/torch_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/in_parallel.h"
#include "pipeline/buffer_lives.h"
#include "predict/fsdp_groups.h"
#include "predict/torch_fragments.h"
#include "predict/torch_tensors.h"

namespace mw::predict {
namespace {

using pipeline::Category;
using pipeline::Command;
using pipeline::Fragment;
using pipeline::Program;
using pipeline::RankProgram;
using pipeline::Storage;

class Replay {
 public:
  Replay(const Program& program, size_t rank, const std::vector<FragmentMemory>& fragments,
         DType dtype, int32_t last_layer, const cluster::Cluster& cluster)
      : program_(program),
        rank_(program.ranks[rank]),
        fragments_(fragments),
        dtype_(dtype),
        last_layer_(last_layer),
        capacity_(cluster.device.usable_memory()),
        torch_2_6_(cluster.stack.torch_2_6),
        tensors_(cluster.stack.allocator, capacity_),
        groups_(tensors_, dtype) {}

  // Empty: given up, as the rank, or another with the same `full`, has no room. null: never.
  std::optional<simulate::Held> run(int steps, std::atomic<bool>* full) {
    full_ = full;
    find_groups();
    uses_ = pipeline::buffer_uses(rank_);
    find_last_backwards();
    groups_.hold_weights(divided_bytes());
    hold_received();
    // Behind a step that changed nothing all are like it; one without room is the last there is.
    std::vector<int64_t> before;
    for (int done = 1; done < steps; ++done) {
      if (!step(nullptr)) return {};
      begin_step();
      std::vector<int64_t> behind = tensors_.layout();
      if (behind == before || tensors_.most_reserved() > capacity_) break;
      before = std::move(behind);
    }
    simulate::Held held;
    held.workspace.assign(rank_.commands.size(), 0);
    if (!step(&held)) return {};
    held.reserved = tensors_.most_reserved();
    held.by_category = tensors_.by_category_at_fullest();
    held.largest = tensors_.at_fullest();
    begin_step();
    MW_CHECK(tensors_.by_category() == held.lives.fixed, "a step leaves {} bytes behind",
             tensors_.alive());
    return held;
  }

 private:
  using Handle = TorchTensors::Handle;

  FsdpGroups::Key key(const Command& call, int32_t layer) const {
    const bool block = layer > 0 && layer < last_layer_;
    return {call.action.stage.value, block ? layer : FsdpGroups::kEnds};
  }

  void find_groups() {
    std::set<int32_t> stages;
    for (const Command& call : rank_.commands) {
      if (call.kind != Command::Kind::kCall) continue;
      const FragmentMemory& fragment = fragments_[call.fragment.index()];
      if (!fragment.forward || !stages.insert(call.action.stage.value).second) continue;
      for (const auto& [layer, weights] : fragment.weights) groups_.add(key(call, layer), weights);
    }
  }

  void find_last_backwards() {
    if (program_.ranks.size() <= 1) return;
    for (size_t c = 0; c < rank_.commands.size(); ++c) {
      const Command& call = rank_.commands[c];
      if (call.kind != Command::Kind::kCall) continue;
      const bool of_stage = call.action.stage.valid();
      const FragmentMemory& fragment = fragments_[call.fragment.index()];
      if (of_stage && !fragment.forward)
        last_backward_[call.action.stage.value] = static_cast<int32_t>(c);
    }
  }

  // f32 bytes of the weights that one device updates: as many as of one moment.
  int64_t divided_bytes() const { return moment_bytes(program_, rank_) / 2; }

  void hold_received() {
    std::map<int32_t, int64_t> received;  // [channel]
    for (const Command& command : rank_.commands)
      received[command.channel] += command.kind == Command::Kind::kReceive ? 1 : 0;
    for (const auto& [channel, count] : received) {
      if (channel < 0) continue;
      const int64_t bytes = program_.channels[static_cast<size_t>(channel)].type.bytes().value;
      for (int64_t i = 0; i < count; ++i) tensors_.add(bytes, Category::kBoundary, What::kReceived);
    }
  }

  void begin_step() {
    groups_.forget_gradients();
    tensors_.drop(sent_);
    logits_ = 0;
  }

  // Whether it was not given up. `held`: what the step is recorded in.
  bool step(simulate::Held* held) {
    begin_step();
    saved_.assign(rank_.buffers.size(), -1);
    if (held != nullptr) {
      held->lives.fixed = tensors_.by_category();
      tensors_.write_down();
    }
    for (size_t c = 0; c < rank_.commands.size(); ++c) {
      const auto before = tensors_.by_category();
      const int64_t alive = tensors_.alive();
      tensors_.watch();
      command(static_cast<int32_t>(c));
      if (held != nullptr) record(*held, c, before, alive);
      if (is_full()) return false;
    }
    return true;
  }

  bool is_full() {
    if (full_ == nullptr) return false;
    if (tensors_.most_reserved() > capacity_) *full_ = true;
    return *full_;
  }

  void record(simulate::Held& held, size_t c,
              const std::array<int64_t, pipeline::kCategories>& before, int64_t alive) const {
    held.workspace[c] = tensors_.most() - alive;
    const auto& behind = tensors_.by_category();
    const bool last = c + 1 == rank_.commands.size();
    for (size_t category = 0; category < pipeline::kCategories; ++category) {
      const int64_t more =
          (last ? held.lives.fixed[category] : behind[category]) - before[category];
      const auto named = static_cast<Category>(category);
      const auto index = static_cast<int32_t>(c);
      if (more < 0) held.lives.died.push_back({index, named, -more});
      if (more > 0 && !last) held.lives.born.push_back({index + 1, named, more});
    }
  }

  void command(int32_t c) {
    const Command& command = rank_.commands[static_cast<size_t>(c)];
    if (command.kind != Command::Kind::kCall) return;
    const Fragment& fragment = program_.fragments[command.fragment.index()];
    if (fragment.kind == pipeline::ActionKind::kUpdate) return update();
    // A pipeline's first stage has all of its backward pass where the weights' gradients are.
    const bool first = command.action.stage.valid() && command.action.stage.value == 0;
    if (first && fragment.kind == pipeline::ActionKind::kI) {
      put_off_[command.action.first] = c;
      return;
    }
    if (first && fragment.kind == pipeline::ActionKind::kW) {
      const auto it = put_off_.find(command.action.first);
      if (it != put_off_.end()) call_at(it->second);
    }
    call_at(c);
  }

  void call_at(int32_t c) {
    const Command& command = rank_.commands[static_cast<size_t>(c)];
    const Fragment& fragment = program_.fragments[command.fragment.index()];
    Call call(command, fragment, fragments_[command.fragment.index()], c);
    for (size_t o = 0; o < fragment.graph.ops.size(); ++o) run(call, o);
    end(call);
  }

  // A call on its way.
  struct Call {
    Call(const Command& command, const Fragment& fragment, const FragmentMemory& memory,
         int32_t index)
        : command(command), fragment(fragment), memory(memory), index(index) {
      here.assign(fragment.graph.values.size(), -1);
    }
    const Command& command;
    const Fragment& fragment;
    const FragmentMemory& memory;
    int32_t index;
    int group = -1;                // whose weights were read last
    std::vector<Handle> here;      // [root]
    bool loss = false;             // the loss has begun
    std::map<int, bool> in_place;  // [group] whether its gradients are added to others
  };

  void run(Call& call, size_t o) {
    const OpMemory& op = call.memory.ops[o];
    if (op.kind != OpMemory::Kind::kNothing) {
      enter(call, op.layer);
      if (op.kind == OpMemory::Kind::kLoss && !call.loss) {
        call.loss = true;
        groups_.end_forward();
        cast_logits(op);
      }
      if (op.kind == OpMemory::Kind::kWeightGradient) {
        const int g = groups_.find(key(call.command, op.layer));
        if (g >= 0 && !adds_in_place(call, g)) groups_.add_gradient(g, op.elements);
      }
      Handle f32 = op.kind == OpMemory::Kind::kLossGradient ? gradient_of_logits(op) : -1;
      Handle copy = tensors_.add(op.copy, Category::kWorkspace, What::kCopy);
      for (const int32_t v : op.makes) make(call, v, op);
      tensors_.drop(copy);
      tensors_.drop(f32);
    }
    for (const int32_t v : call.memory.last_reads[o]) read_last(call, static_cast<size_t>(v));
  }

  // Whether its inputs' gradients and its weights' are taken apart: not on the first stage.
  static bool is_split(const Call& call) {
    return call.command.action.stage.valid() && call.command.action.stage.value > 0 &&
           (call.fragment.kind == pipeline::ActionKind::kI ||
            call.fragment.kind == pipeline::ActionKind::kW);
  }
  // To what the pass before it left.
  bool adds_in_place(Call& call, int g) {
    if (!is_split(call) || call.memory.scatters) return false;
    return call.in_place.try_emplace(g, groups_.has_gradients(g)).first->second;
  }

  void enter(Call& call, int32_t layer) {
    if (layer < 0) return;
    const int g = groups_.find(key(call.command, layer));
    if (g < 0 || g == call.group) return;
    const bool ends = groups_.is_ends(g);
    if (call.memory.forward) {
      if (call.group >= 0 && !ends) leave_forward(call);
      groups_.gather(g, true);
    } else {
      if (call.group >= 0 && !ends) leave_backward(call);
      groups_.gather(g, false);
      const int next = groups_.before(g);
      if (call.memory.gathers && !ends && next >= 0) groups_.begin_gather(next);
    }
    if (!ends) call.group = g;
  }
  std::pair<FsdpGroups::Key, int32_t> kept_key(const Call& call) const {
    return {key(call.command, 0), call.command.action.first};
  }
  void leave_forward(Call& call) {
    if (call.memory.gathers && !groups_.is_last_block(call.group)) groups_.release(call.group);
  }
  void leave_backward(Call& call) {
    if (call.memory.gathers) groups_.release(call.group);
    reduce(call, call.group);
    const auto it = kept_.find(kept_key(call));
    if (it != kept_.end()) tensors_.drop(it->second[call.group]);
  }
  // Summed where the inputs' gradients have been taken, which FSDP2 waits for: those of a pass of
  // the weights' alone behind the next one [torch/distributed/fsdp/_fully_shard/_fsdp_state.py,
  // RegisterPostBackwardFunction].
  void reduce(Call& call, int g) {
    if (is_split(call) && call.fragment.kind == pipeline::ActionKind::kW && !call.memory.scatters)
      return;
    if (call.memory.scatters) {
      groups_.scatter(g);
    } else {
      groups_.sum_gradients(g);
    }
  }

  void make(Call& call, int32_t v, const OpMemory& op) {
    const auto value = static_cast<size_t>(v);
    const int64_t bytes = call.fragment.graph.values[value].type.bytes().value;
    const int32_t output = call.memory.output[value];
    if (output < 0) {
      Handle made =
          tensors_.add(bytes * call.memory.repeats[value], Category::kWorkspace, What::kTemporary);
      if (op.kept) {
        kept_[kept_key(call)][call.group].push_back(made);
      } else {
        call.here[value] = made;
      }
      return;
    }
    const size_t port = call.fragment.inputs.size() + static_cast<size_t>(output);
    const size_t b = pipeline::root_buffer(rank_, call.command.buffers[port]).index();
    const pipeline::Buffer& buffer = rank_.buffers[b];
    if (buffer.storage.kind == Storage::Kind::kSlot) {
      sent(call).push_back(tensors_.add(bytes, Category::kBoundary, What::kSent));
    } else if (saved_[b] < 0) {
      const int64_t times = call.memory.saves_repeats ? call.memory.repeats[value] : 1;
      saved_[b] = tensors_.add(buffer.bytes().value * times, buffer.category, What::kSaved);
    }
  }

  // Where what a call sends is kept: 2.6 does until the next step, later ones a result until its
  // gradient has been taken, a gradient until the call ends or, of inputs alone, the weights' does.
  std::vector<Handle>& sent(const Call& call) {
    if (torch_2_6_) return sent_;
    if (call.memory.forward) return results_[kept_key(call)];
    return call.fragment.kind == pipeline::ActionKind::kI ? graphs_[kept_key(call)] : passing_;
  }

  void read_last(Call& call, size_t v) {
    tensors_.drop(call.here[v]);
    const int32_t port = call.memory.input[v];
    if (port < 0 || call.memory.forward || call.memory.output[v] >= 0) return;
    const size_t b =
        pipeline::root_buffer(rank_, call.command.buffers[static_cast<size_t>(port)]).index();
    let_go(call, b);
  }

  // Behind the call that reads it last; behind the weights' gradients where those have a call of
  // their own, until which autograd's graph stays whole.
  void let_go(const Call& call, size_t b) {
    if (uses_[b].last != call.index) return;
    if (is_split(call) && call.fragment.kind == pipeline::ActionKind::kI && saved_[b] >= 0) {
      graphs_[kept_key(call)].push_back(saved_[b]);
      saved_[b] = -1;
    }
    tensors_.drop(saved_[b]);
  }

  // Logits in f32, and their logarithms of softmax, which stay [PyTorch
  // torch/distributed/tensor/parallel/loss.py, _log_softmax, where the vocabulary is divided].
  void cast_logits(const OpMemory& op) {
    const int64_t bytes = op.elements * dtype_size(DType::kF32);
    const auto add = [&](What what) { return tensors_.add(bytes, Category::kWorkspace, what); };
    Handle logits = dtype_ == DType::kF32 ? -1 : add(What::kLogits);
    if (op.divided) {
      Handle shifted = add(What::kLogits), powers = add(What::kLogits);
      tensors_.drop(powers);
      logarithms_.push_back(add(What::kLogarithms));
      tensors_.drop(shifted);
    } else {
      logarithms_.push_back(add(What::kLogarithms));
    }
    tensors_.drop(logits);
  }
  // The logits' gradient in f32, from that of the logarithms.
  Handle gradient_of_logits(const OpMemory& op) {
    const int64_t bytes = op.elements * dtype_size(DType::kF32);
    const auto add = [&](What what) { return tensors_.add(bytes, Category::kWorkspace, what); };
    Handle of_logarithms = add(What::kLogarithmGradients);
    Handle made = -1;
    if (op.divided) {
      Handle powers = add(What::kProbabilities), sum = add(What::kLogitGradients);
      tensors_.drop(powers);
      made = add(What::kLogitGradients);
      tensors_.drop(sum);
    } else {
      made = add(What::kLogitGradients);
    }
    tensors_.drop(of_logarithms);
    if (!logarithms_.empty()) {
      tensors_.drop(logarithms_.front());
      logarithms_.erase(logarithms_.begin());
    }
    return made;
  }

  void end(Call& call) {
    if (call.memory.forward) {
      groups_.end_forward();
      if (call.loss) drop_logits(call);
      if (call.group >= 0) leave_forward(call);
    } else {
      if (call.group >= 0) leave_backward(call);
      const int ends = groups_.find(key(call.command, 0));
      if (ends >= 0) {
        reduce(call, ends);
        if (call.memory.gathers) groups_.release(ends);
      }
      if (program_.ranks.size() <= 1) groups_.end_backward();
      const int32_t stage = call.command.action.stage.value;
      const auto last = last_backward_.find(stage);
      if (last != last_backward_.end() && last->second == call.index) {
        groups_.scatter_stage(stage);
        if (!torch_2_6_) groups_.end_backward();
      }
      if (call.fragment.kind != pipeline::ActionKind::kW) tensors_.drop(results_[kept_key(call)]);
      tensors_.drop(passing_);
    }
    for (Handle& handle : call.here) tensors_.drop(handle);
    for (const BufferId id : call.command.buffers) {
      const size_t b = pipeline::root_buffer(rank_, id).index();
      let_go(call, b);
    }
    if (call.fragment.kind == pipeline::ActionKind::kW) tensors_.drop(graphs_[kept_key(call)]);
  }
  // What the loss read in the weights' type: a pipeline's engine keeps it with the outputs, in 2.6
  // of all microbatches.
  void drop_logits(Call& call) {
    for (size_t o = 0; o < call.memory.ops.size(); ++o) {
      if (call.memory.ops[o].kind != OpMemory::Kind::kLoss) continue;
      const ValueId logits = call.fragment.graph.ops[o].operands[0];
      const auto root = static_cast<size_t>(call.memory.root[logits.index()]);
      const int32_t output = call.memory.output[root];
      if (output < 0) return;
      const size_t port = call.fragment.inputs.size() + static_cast<size_t>(output);
      Handle& saved = saved_[pipeline::root_buffer(rank_, call.command.buffers[port]).index()];
      if (program_.ranks.size() > 1) {
        if (torch_2_6_) logits_ += call.fragment.graph.values[root].type.bytes().value;
        sent(call).push_back(saved);
        saved = -1;
      }
      return tensors_.drop(saved);
    }
  }

  void update() {
    if (program_.ranks.size() <= 1) {
      for (int g = 0; g < groups_.size(); ++g) groups_.scatter(g);
      groups_.end_backward();
    }
    groups_.end_step();
    Handle merged = tensors_.add(logits_, Category::kWorkspace, What::kMerged);
    tensors_.drop(merged);
    if (!updated_) groups_.hold_moments();
    if (!updated_ && rank_.repeatable > 0) groups_.hold_kept();
    updated_ = true;
    groups_.update();
  }

  const Program& program_;
  const RankProgram& rank_;
  const std::vector<FragmentMemory>& fragments_;
  DType dtype_;
  int32_t last_layer_;
  Bytes capacity_;
  bool torch_2_6_;
  std::atomic<bool>* full_ = nullptr;
  TorchTensors tensors_;
  FsdpGroups groups_;
  std::vector<pipeline::BufferUse> uses_;  // [root buffer]
  std::vector<Handle> saved_;              // [root buffer]
  std::vector<Handle> sent_, logarithms_;  // sent_: and all that a pipeline's engine keeps with it
  std::vector<Handle> passing_;            // gradients, of the call
  std::map<int32_t, int32_t> last_backward_;  // [stage] of a pipeline
  std::map<int32_t, int32_t> put_off_;        // [microbatch] I of the first stage
  // [stage, microbatch][group]
  std::map<std::pair<FsdpGroups::Key, int32_t>, std::map<int, std::vector<Handle>>> kept_;
  std::map<std::pair<FsdpGroups::Key, int32_t>, std::vector<Handle>> graphs_,
      results_;         // [the same]
  int64_t logits_ = 0;  // bytes of those that a pipeline's engine keeps
  bool updated_ = false;
};

size_t ops_of(const Program& program) {
  size_t ops = 0;
  for (const RankProgram& rank : program.ranks) {
    for (const Command& command : rank.commands) {
      if (command.kind == Command::Kind::kCall)
        ops += program.fragments[command.fragment.index()].graph.ops.size();
    }
  }
  return ops;
}

// Of all ranks. With `full`, which must be false, as much as was told before one had no room.
std::vector<simulate::Held> replay(const Program& program, DType dtype, const StackMemory& memory,
                                   const cluster::Cluster& cluster, int steps,
                                   std::atomic<bool>* full) {
  MW_CHECK(steps >= 2, "{} steps: the first has no moments", steps);
  const std::vector<FragmentMemory> fragments = read_fragments(program, memory);
  int32_t last_layer = 0;
  for (const Fragment& fragment : program.fragments) {
    for (const ir::Op& op : fragment.graph.ops) last_layer = std::max(last_layer, op.layer.value);
  }
  std::vector<simulate::Held> held(program.ranks.size());
  in_parallel(held.size(), threads_for(ops_of(program)), [&](size_t r) {
    Replay of(program, r, fragments, dtype, last_layer, cluster);
    if (std::optional<simulate::Held> made = of.run(steps, full)) held[r] = *std::move(made);
  });
  return held;
}

}  // namespace

bool has_processes(const cluster::Stack& stack, const compile::Plan& plan) {
  return stack.allocator != cluster::Allocator::kPlan && plan.sequence_slices() == 1;
}

std::vector<simulate::Held> torch_memory(const Program& program, DType dtype,
                                         const StackMemory& memory, const cluster::Cluster& cluster,
                                         int steps) {
  return replay(program, dtype, memory, cluster, steps, nullptr);
}

std::optional<std::vector<simulate::Held>> torch_memory_if_fits(const Program& program, DType dtype,
                                                                const StackMemory& memory,
                                                                const cluster::Cluster& cluster) {
  std::atomic<bool> full = false;
  std::vector<simulate::Held> held = replay(program, dtype, memory, cluster, kSettled, &full);
  if (full) return {};
  return held;
}

}  // namespace mw::predict
