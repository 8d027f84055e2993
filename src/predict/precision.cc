#include "predict/precision.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/in_parallel.h"
#include "base/round.h"
#include "cost/attention_time.h"
#include "cost/op_time.h"
#include "pipeline/memory_plan.h"
#include "predict/gathered_weights.h"
#include "predict/kept_products.h"
#include "predict/narrow_saved.h"

namespace mw::predict {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using pipeline::Buffer;
using pipeline::Category;
using pipeline::Command;
using pipeline::Fragment;
using pipeline::Program;
using pipeline::RankProgram;
using pipeline::Storage;

// A row's log-sum-exp, mean, maximum, sum or loss, which an op keeps beside its main result.
bool is_statistic(ir::OpKind kind, int32_t result) {
  switch (kind) {
    case ir::OpKind::kCrossEntropyMax:
    case ir::OpKind::kCrossEntropySum:
    case ir::OpKind::kCrossEntropyLoss: return true;
    case ir::OpKind::kAttention:
    case ir::OpKind::kLayerNorm:
    case ir::OpKind::kRmsNorm: return result > 0;
    default: return false;
  }
}

// Collectives and the local ops that go with them: each result is what its operand was.
bool moves(ir::OpKind kind) {
  return ir::is_collective(kind) || kind == ir::OpKind::kShardSlice ||
         kind == ir::OpKind::kPadMask || kind == ir::OpKind::kTrim || kind == ir::OpKind::kCopy;
}

class Converter {
 public:
  Converter(Program program, DType dtype, const StackMemory& memory)
      : program_(std::move(program)), dtype_(dtype), memory_(memory) {}

  Program run(bool arenas) {
    find_callers();
    converted_.resize(program_.fragments.size(), false);
    for (size_t f = 0; f < program_.fragments.size(); ++f) convert_behind_writers(f);
    find_port_layouts();
    std::optional<NarrowSaved> narrow;
    if (memory_.narrow != cost::Fp8::kOff) narrow.emplace(program_, dtype_, memory_.narrow);
    size_t commands = 0;
    for (const RankProgram& rank : program_.ranks) commands += rank.commands.size();
    std::vector<Sent> sent(program_.ranks.size());
    in_parallel(program_.ranks.size(), threads_for(commands), [&](size_t r) {
      RankProgram& rank = program_.ranks[r];
      sent[r] = convert_buffers(rank);
      if (narrow) narrow->convert(rank);
      place_states(rank);
      if (arenas) pipeline::plan_rank(program_, rank);
    });
    for (const Sent& of_rank : sent) {
      for (const auto& [channel, dtype] : of_rank)
        program_.channels[static_cast<size_t>(channel)].type.dtype = dtype;
    }
    return std::move(program_);
  }

 private:
  // An output that a call writes; of no fragment: it comes from another rank, or is a state.
  struct Writer {
    int32_t fragment = -1, output = 0;
  };

  // [fragment][port, inputs, then outputs] the category of the buffer that calls give it, who wrote
  // it, and the lists of names that calls go by.
  void find_callers() {
    categories_.resize(program_.fragments.size());
    names_.resize(program_.fragments.size());
    writers_.resize(program_.fragments.size());
    for (const RankProgram& rank : program_.ranks) {
      std::vector<Writer> last(rank.buffers.size());
      for (const Command& command : rank.commands) {
        if (command.kind != Command::Kind::kCall) continue;
        const size_t f = command.fragment.index();
        std::vector<int32_t>& names = names_[f];
        if (command.names >= 0 && (names.empty() || names.back() != command.names))
          names.push_back(command.names);
        const size_t inputs = program_.fragments[f].inputs.size();
        if (categories_[f].empty()) find_ports(rank, command, inputs, last);
        for (size_t b = inputs; b < command.buffers.size(); ++b)
          last[command.buffers[b].index()] = {command.fragment.value,
                                              static_cast<int32_t>(b - inputs)};
      }
    }
    for (std::vector<int32_t>& names : names_) {
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
    }
  }

  // Of the first call of a fragment. `last`: [buffer] who wrote it before.
  void find_ports(const RankProgram& rank, const Command& call, size_t inputs,
                  const std::vector<Writer>& last) {
    const size_t f = call.fragment.index();
    for (const BufferId buffer : call.buffers)
      categories_[f].push_back(rank.buffers[buffer.index()].category);
    for (size_t i = 0; i < inputs; ++i) {
      const size_t buffer = call.buffers[i].index();
      const bool inner = rank.buffers[buffer].storage.kind == Storage::Kind::kArena;
      writers_[f].push_back(inner ? last[buffer] : Writer());
    }
  }

  // What a fragment reads has the precision in which it was written.
  void convert_behind_writers(size_t f) {
    if (converted_[f]) return;
    converted_[f] = true;
    for (const Writer& writer : writers_[f]) {
      if (writer.fragment >= 0) convert_behind_writers(static_cast<size_t>(writer.fragment));
    }
    convert(f);
  }
  bool written_in_f32(const Writer& writer) const {
    if (writer.fragment < 0) return false;
    const ir::Graph& graph = program_.fragments[static_cast<size_t>(writer.fragment)].graph;
    return graph.type(graph.outputs[static_cast<size_t>(writer.output)]).dtype == DType::kF32;
  }

  void convert(size_t f) {
    Fragment& fragment = program_.fragments[f];
    if (categories_[f].empty()) return;  // nobody calls it
    ir::Graph& graph = fragment.graph;
    const bool update = fragment.kind == pipeline::ActionKind::kUpdate;
    std::vector<std::optional<Category>> of_state(graph.values.size());
    const auto root = [&](ValueId v) {
      return fragment.alias_of[v.index()].valid() ? fragment.alias_of[v.index()] : v;
    };
    for (size_t i = 0; i < fragment.inputs.size(); ++i) {
      if (fragment.inputs[i].kind == pipeline::PortKind::kState)
        of_state[fragment.inputs[i].value.index()] = categories_[f][i];
    }
    if (update) {
      // Weights that the update makes whole again have no input.
      for (size_t o = 0; o < graph.outputs.size(); ++o) {
        const Category category = categories_[f][fragment.inputs.size() + o];
        if (category == Category::kWeights) of_state[root(graph.outputs[o]).index()] = category;
      }
      for (const ir::Op& op : graph.ops) {
        if (op.kind != ir::OpKind::kAllGather) continue;
        const auto& gathered = of_state[root(op.results[0]).index()];
        if (gathered) of_state[root(op.operands[0]).index()] = gathered;
      }
    }
    std::vector<bool> half(graph.values.size(), false);
    const auto decide = [&](ValueId v, bool in_f32) {
      const ir::TensorType& type = graph.type(v);
      if (dtype_ == DType::kF32 || type.dtype != DType::kF32) return;
      const std::optional<Category> state = of_state[root(v).index()];
      half[v.index()] =
          state ? *state == Category::kWeights : !update && type.elements() > 1 && !in_f32;
    };
    for (size_t i = 0; i < fragment.inputs.size(); ++i)
      decide(fragment.inputs[i].value, written_in_f32(writers_[f][i]));
    for (const ir::Op& op : graph.ops) {
      for (size_t r = 0; r < op.results.size(); ++r) {
        bool in_f32 = is_statistic(op.kind, static_cast<int32_t>(r));
        if (moves(op.kind)) {
          const ValueId moved = op.operands[std::min(r, op.operands.size() - 1)];
          in_f32 = graph.type(moved).dtype == DType::kF32 && !half[moved.index()];
        }
        decide(op.results[r], in_f32);
      }
    }
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (!half[v]) continue;
      graph.values[v].type.dtype = dtype_;
      fragment.global_types[v].dtype = dtype_;
    }
    if (!update && memory_.beside_loss()) add_loss_memory(f);
    if (!update && memory_.saved()) widen_statistics(fragment);
    if (!update && memory_.scores) add_score_gradients(f);
    pipeline::plan_fragment(fragment);
  }

  // Statistics that forward makes and backward reads get the bytes of what the stack has there.
  void widen_statistics(Fragment& fragment) const {
    ir::Graph& graph = fragment.graph;
    std::set<ValueId> widened;
    const auto widen = [&](ValueId statistic, int64_t bytes_a_row) {
      if (bytes_a_row == 0 || !widened.insert(statistic).second) return;
      const auto grow = [&](ir::TensorType& type) {
        type.dims.back().size *= ceil_div(bytes_a_row, dtype_size(DType::kF32));
      };
      grow(graph.value(statistic).type);
      grow(fragment.global_types[statistic.index()]);
    };
    for (const ir::Op& op : graph.ops) {
      switch (op.kind) {
        case ir::OpKind::kAttention: widen(op.results[1], score_bytes(graph, op, 0)); break;
        case ir::OpKind::kAttentionGrad: {
          const bool packed = op.as<ir::AttentionAttrs>().packed;
          widen(op.operands[packed ? 3 : 5], score_bytes(graph, op, 1));
          break;
        }
        case ir::OpKind::kLayerNorm:
        case ir::OpKind::kRmsNorm: widen(op.results[1], norm_bytes(graph, op)); break;
        case ir::OpKind::kLayerNormInputGrad:
        case ir::OpKind::kRmsNormInputGrad: widen(op.operands[3], norm_bytes(graph, op)); break;
        case ir::OpKind::kLayerNormWeightGrad:
        case ir::OpKind::kRmsNormWeightGrad: widen(op.operands[2], norm_bytes(graph, op)); break;
        default: break;
      }
    }
  }

  // Unfused attention's backward pass has two gradients of the scores at a time: that of softmax or
  // of its dropout beside that of what comes before.
  void add_score_gradients(size_t f) {
    const ir::Graph& graph = program_.fragments[f].graph;
    for (size_t o = 0, ops = graph.ops.size(); o < ops; ++o) {
      const ir::Op& op = graph.ops[o];
      if (op.kind != ir::OpKind::kAttentionGrad || score_bytes(graph, op, 1) == 0) continue;
      const ir::TensorType& out = graph.type(op.operands[0]);
      const int64_t pairs = out.dim(0) * out.dim(1) * out.dim(2) * keys(graph, op, 1);
      const DType dtype = softmax_in_f32(graph, op, 1) ? DType::kF32 : dtype_;
      hold(f, OpId(static_cast<int64_t>(o)), {dtype, {2 * pairs}}, "gradients of the scores");
    }
  }

  // With the queries at operand `q`.
  static int64_t keys(const ir::Graph& graph, const ir::Op& op, size_t q) {
    return graph.type(op.operands[op.as<ir::AttentionAttrs>().packed ? q : q + 1]).dim(1);
  }

  // PyTorch's, in place of a kernel that does not take these scores.
  bool softmax_in_f32(const ir::Graph& graph, const ir::Op& op, size_t q) const {
    if (!memory_.blocked_softmax) return false;
    const ir::TensorType& out = graph.type(q == 0 ? op.results[0] : op.operands[0]);
    const cost::ProductShape scores = {.batch = out.dim(0) * out.dim(2),
                                       .m = out.dim(1),
                                       .n = keys(graph, op, q),
                                       .k = out.dim(3)};
    return !cost::takes_softmax_kernel(scores, dtype_);
  }

  // A row's scores, with the queries at operand `q`: softmax and its dropout, and a byte of mask.
  // And its part of the copies of keys and values.
  int64_t score_bytes(const ir::Graph& graph, const ir::Op& op, size_t q) const {
    if (!memory_.scores) return 0;
    const int64_t all = keys(graph, op, q);
    if (all > cost::kUnfusedKeys) return 0;
    const DType softmax = softmax_in_f32(graph, op, q) ? DType::kF32 : dtype_;
    int64_t bytes = all * (dtype_size(softmax) + dtype_size(dtype_) + 1);
    if (memory_.attention_copies) {
      const ir::TensorType& out = graph.type(q == 0 ? op.results[0] : op.operands[0]);
      bytes += 2 * dtype_size(dtype_) * out.dim(3) * all / out.dim(1);
    }
    return bytes;
  }

  // Elements of the largest scores of a rank's calls.
  int64_t score_buffer(const RankProgram& rank) const {
    int64_t most = 0;
    for (const Command& command : rank.commands) {
      if (command.kind != Command::Kind::kCall) continue;
      const ir::Graph& graph = program_.fragments[command.fragment.index()].graph;
      for (const ir::Op& op : graph.ops) {
        if (op.kind != ir::OpKind::kAttention || score_bytes(graph, op, 0) == 0) continue;
        const ir::TensorType& out = graph.type(op.results[0]);
        most = std::max(most, out.dim(0) * out.dim(1) * out.dim(2) * keys(graph, op, 0));
      }
    }
    return most;
  }

  int64_t norm_bytes(const ir::Graph& graph, const ir::Op& op) const {
    const bool forward = op.kind == ir::OpKind::kLayerNorm || op.kind == ir::OpKind::kRmsNorm;
    const bool layer = op.kind == ir::OpKind::kLayerNorm ||
                       op.kind == ir::OpKind::kLayerNormInputGrad ||
                       op.kind == ir::OpKind::kLayerNormWeightGrad;
    const ir::TensorType& x = graph.type(op.operands[forward ? 0 : 1]);
    const int64_t width = x.dim(x.rank() - 1), own = dtype_size(DType::kF32);
    if (layer) return memory_.masks ? own + width : 0;
    const bool last =
        memory_.wide_last_norm && dtype_ != DType::kF32 && op.layer == layer_of_loss(graph);
    const bool wide = memory_.wide_norms || last;
    return wide ? own + width * own : 0;
  }

  static LayerId layer_of_loss(const ir::Graph& graph) {
    for (const ir::Op& op : graph.ops) {
      if (op.kind == ir::OpKind::kCrossEntropyMax || op.kind == ir::OpKind::kCrossEntropyGrad)
        return op.layer;
    }
    return {};
  }

  // What is held beside the operands and results of the loss's gradient: values that it makes and
  // nobody reads, none of its results.
  void add_loss_memory(size_t f) {
    const ir::Graph& graph = program_.fragments[f].graph;
    const size_t ops = graph.ops.size();
    for (size_t o = 0; o < ops; ++o) {
      if (graph.ops[o].kind != ir::OpKind::kCrossEntropyGrad) continue;
      const ValueId logits_id = graph.ops[o].operands[0];
      const ir::TensorType logits = graph.type(logits_id);
      const OpId at(static_cast<int64_t>(o));
      if (memory_.f32_loss && dtype_ != DType::kF32) {
        for (const char* name :
             {"log-probabilities in f32", "d.log-probabilities in f32", "d.logits in f32"})
          hold(f, at, {DType::kF32, logits.dims}, name);
        const ir::TensorType& global = program_.fragments[f].global_types[logits_id.index()];
        if (logits.dims.back().size < global.dims.back().size)
          hold(f, at, {DType::kF32, logits.dims}, "probabilities in f32");
      }
      // A copy: the logits in half precision live meanwhile, then the gradient in their type
      // [NVIDIA/Megatron-LM megatron/core/tensor_parallel/cross_entropy.py].
      if (memory_.f32_softmax && dtype_ != DType::kF32)
        hold(f, at, {DType::kF32, logits.dims}, "softmax in f32");
      const int64_t gathered = memory_.gathered_ends
                                   ? gathered_ends(program_) - gathered_at(program_.fragments[f], o)
                                   : 0;
      if (gathered > 0) hold(f, at, {dtype_, {gathered}}, "weights that stay gathered");
      const int64_t kept = memory_.kept_products ? kept_elements() : 0;
      if (kept > 0) hold(f, at, {dtype_, {kept}}, "products that nobody reads again");
    }
  }

  void hold(size_t f, OpId at, const ir::TensorType& type, const char* name) {
    Fragment& fragment = program_.fragments[f];
    const ValueId logits = fragment.graph.op(at).operands[0];
    const bool like_logits = type.rank() > 1;
    ir::TensorType global = like_logits ? fragment.global_types[logits.index()] : type;
    global.dtype = type.dtype;
    const ValueId held = fragment.graph.add_value(type, name);
    fragment.graph.value(held).producer = at;
    fragment.global_types.push_back(std::move(global));
    fragment.shardings.push_back(like_logits ? fragment.shardings[logits.index()]
                                             : sharding::replicated(type.rank()));
    for (const int32_t list : names_[f])
      program_.names[static_cast<size_t>(list)].emplace_back(name);
  }

  // Elements of the products that the forward pass with the loss keeps beside its outputs.
  int64_t kept_elements() const {
    const Fragment* forward = forward_with_loss(program_);
    if (forward == nullptr) return 0;
    int64_t sum = 0;
    for (const OpId op : kept_products(*forward))
      sum += forward->graph.type(forward->graph.op(op).results[0]).elements();
    return sum;
  }

  // Channels by whose slots a rank's calls write or read, and in which type.
  using Sent = std::vector<std::pair<int32_t, DType>>;

  // What a buffer has that is given to a port.
  using PortLayout = pipeline::Shared<pipeline::Layout>;
  void find_port_layouts() {
    port_layouts_.resize(program_.fragments.size());
    no_states_.resize(program_.fragments.size());
    for (size_t f = 0; f < program_.fragments.size(); ++f) {
      const Fragment& fragment = program_.fragments[f];
      const auto add = [&](ValueId v) {
        port_layouts_[f].emplace_back(pipeline::Layout{fragment.graph.type(v),
                                                       fragment.global_types[v.index()],
                                                       fragment.shardings[v.index()]});
      };
      for (const pipeline::Port& port : fragment.inputs) {
        if (port.kind != pipeline::PortKind::kState)
          no_states_[f].push_back(port_layouts_[f].size());
        add(port.value);
      }
      for (const ValueId v : fragment.graph.outputs) {
        no_states_[f].push_back(port_layouts_[f].size());
        add(v);
      }
    }
  }

  // States in `dtype_`.
  bool is_narrow(Category category) const {
    return category == Category::kWeights ||
           (category == Category::kGradients && memory_.f16_gradients && dtype_ == DType::kF16);
  }

  // A buffer has the type of the port that it is first given to, which writes it.
  Sent convert_buffers(RankProgram& rank) const {
    Sent sent;
    std::vector<bool> seen(rank.buffers.size(), false);
    // [fragment] by whom it was called: a copy of a stage has one state.
    std::vector<std::vector<std::pair<StageId, int32_t>>> callers(program_.fragments.size());
    for (const Command& command : rank.commands) {
      if (command.kind != Command::Kind::kCall) continue;
      const size_t f = command.fragment.index();
      const std::vector<PortLayout>& ports = port_layouts_[f];
      const std::pair caller(command.action.stage, command.action.replica);
      std::vector<std::pair<StageId, int32_t>>& known = callers[f];
      const bool first = std::find(known.begin(), known.end(), caller) == known.end();
      if (first) known.push_back(caller);
      for (size_t i = 0; i < (first ? ports.size() : no_states_[f].size()); ++i) {
        const size_t p = first ? i : no_states_[f][i];
        const size_t b = command.buffers[p].index();
        if (seen[b]) continue;
        seen[b] = true;
        Buffer& buffer = rank.buffers[b];
        if (buffer.type() == ports[p]->type) continue;
        MW_CHECK(buffer.type().dtype == DType::kF32, "{} has two types", buffer.name());
        set_types(buffer, ports[p]);
        const Storage& storage = buffer.storage;
        if (storage.kind == Storage::Kind::kSlot &&
            (sent.empty() || sent.back().first != storage.channel))
          sent.emplace_back(storage.channel, buffer.type().dtype);
      }
    }
    for (size_t b = 0; b < rank.buffers.size(); ++b) {
      Buffer& buffer = rank.buffers[b];
      if (!is_narrow(buffer.category) || buffer.type().dtype == dtype_) continue;
      pipeline::Layout& layout = buffer.layout.edit();
      layout.type.dtype = layout.global_type.dtype = dtype_;
    }
    return sent;
  }

  // A state's layout is its own beside its types.
  static void set_types(Buffer& buffer, const PortLayout& port) {
    if (buffer.storage.kind != Storage::Kind::kState &&
        buffer.storage.kind != Storage::Kind::kView) {
      buffer.layout = port;
      return;
    }
    pipeline::Layout& layout = buffer.layout.edit();
    layout.type = port->type;
    layout.global_type = port->global_type;
  }

  static constexpr int64_t kF32 = 4;  // bytes of an element in the program

  // States one behind the other, and the master copy: as many bytes as one of the two moments.
  void place_states(RankProgram& rank) const {
    int64_t end = 0;
    const int64_t optimizer = moment_bytes(program_, rank);
    for (Buffer& buffer : rank.buffers) {
      if (is_narrow(buffer.category) && buffer.storage.kind == Storage::Kind::kView) {
        buffer.storage.offset = buffer.storage.offset / kF32 * dtype_size(dtype_);
        if (buffer.storage.part->stride > 0)
          buffer.storage.part.edit().stride =
              buffer.storage.part->stride / kF32 * dtype_size(dtype_);
      }
      if (buffer.storage.kind != Storage::Kind::kState) continue;
      buffer.storage.offset = end;
      end += aligned(buffer.bytes().value);
    }
    if (optimizer > 0 && dtype_ != DType::kF32) {
      add_state(rank, "master weights", {DType::kF32, {optimizer / 2 / kF32}}, Category::kOptimizer,
                end);
      end += aligned(optimizer / 2);
    }
    if (const int64_t buffers = memory_.gathered_ends ? gather_buffers(program_, rank) : 0;
        buffers > 0) {
      add_state(rank, "buffers of weight gathers", {dtype_, {buffers}}, Category::kWorkspace, end);
      end += aligned(rank.buffers.back().bytes().value);
    }
    if (const int64_t scores = memory_.attention_copies ? score_buffer(rank) : 0; scores > 0) {
      add_state(rank, "buffer of scores", {dtype_, {scores}}, Category::kWorkspace, end);
      end += aligned(rank.buffers.back().bytes().value);
    }
    rank.state_arena = Bytes(end);
  }
  static void add_state(RankProgram& rank, Name name, const ir::TensorType& type, Category category,
                        int64_t offset) {
    Buffer state;
    state.value = name;
    state.layout = {type, type, sharding::replicated(1)};
    state.category = category;
    state.storage.kind = Storage::Kind::kState;
    state.storage.offset = offset;
    rank.buffers.push_back(std::move(state));
  }
  static int64_t aligned(int64_t bytes) {
    return (bytes + pipeline::kAlignment - 1) / pipeline::kAlignment * pipeline::kAlignment;
  }

  Program program_;
  DType dtype_;
  StackMemory memory_;
  std::vector<std::vector<Category>> categories_;
  std::vector<std::vector<Writer>> writers_;           // [fragment][input]
  std::vector<bool> converted_;                        // [fragment], or under way
  std::vector<std::vector<int32_t>> names_;            // [fragment] in order
  std::vector<std::vector<PortLayout>> port_layouts_;  // [fragment] inputs, then outputs
  std::vector<std::vector<size_t>> no_states_;         // [fragment] ports
};

}  // namespace

Program in_precision(Program program, DType dtype, const StackMemory& memory, bool arenas) {
  if (!plans_memory(dtype, memory)) return program;
  return Converter(std::move(program), dtype, memory).run(arenas);
}

int64_t moment_bytes(const Program& program, const RankProgram& rank) {
  std::vector<bool> read(rank.buffers.size(), false);
  for (const pipeline::Command& command : rank.commands) {
    if (command.kind != pipeline::Command::Kind::kCall) continue;
    const Fragment& fragment = program.fragments[command.fragment.index()];
    if (fragment.kind <= ActionKind::kB) continue;  // work of a microbatch reads no moments
    for (size_t i = 0; i < fragment.inputs.size(); ++i) read[command.buffers[i].index()] = true;
  }
  int64_t bytes = 0;
  for (size_t b = 0; b < rank.buffers.size(); ++b) {
    const Buffer& buffer = rank.buffers[b];
    if (read[b] && buffer.category == Category::kOptimizer &&
        buffer.storage.kind == Storage::Kind::kState)
      bytes += buffer.bytes().value;
  }
  return bytes;
}

bool plans_memory(DType dtype, const StackMemory& memory) {
  return dtype != DType::kF32 || memory.beside_loss() || memory.saved();
}

}  // namespace mw::predict
