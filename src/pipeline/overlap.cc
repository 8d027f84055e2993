#include "pipeline/overlap.h"

#include <algorithm>
#include <span>

#include "pipeline/groups.h"
#include "pipeline/sharing.h"

namespace mw::pipeline {
namespace {

// 0: no collective, or one of a single device.
int32_t stream_of(const ir::Op& op, const cluster::Mesh& mesh) {
  if (!ir::is_collective(op.kind)) return 0;
  const auto several = static_cast<int32_t>(mesh.axes().size()) + 1;
  const auto* group = std::get_if<ir::AxisGroup>(&op.as<ir::CollectiveAttrs>().group);
  if (group == nullptr) return several;
  if (mesh.group_size(group->axes) == 1) return 0;
  // A layer's sums wait for no sums of weights.
  if (group->axes.size() > 1) return several + (divided_by(*group, false) == Divides::kTensor);
  for (size_t i = 0; i < mesh.axes().size(); ++i) {
    if (mesh.axes()[i].name == group->axes[0]) return static_cast<int32_t>(i) + 1;
  }
  return several;
}

// The order of the ops.
class Orderer {
 public:
  Orderer(const Fragment& fragment, const cluster::Mesh& mesh)
      : graph_(fragment.graph),
        mesh_(mesh),
        is_state_(graph_.values.size(), false),
        held_(graph_.values.size(), Held::kNo) {
    order_.reserve(graph_.ops.size());
    for (const Port& port : fragment.inputs) {
      if (port.kind == PortKind::kState) is_state_[port.value.index()] = true;
    }
  }

  std::vector<size_t> order(int64_t gather_ahead) {
    for (size_t o = 0; o < graph_.ops.size(); ++o) place(o);
    release(gradients_);
    release(products_);
    release(sums_);
    return gather_ahead > 0 ? gathered_ahead(gather_ahead) : std::move(order_);
  }

 private:
  bool gathers_weight(size_t o) const {
    const ir::Op& op = graph_.ops[o];
    return op.kind == ir::OpKind::kAllGather && stream_of(op, mesh_) != 0 && op.layer.valid() &&
           is_state_[op.operands[0].index()];
  }

  // The first of a layer's weights, up to so many elements, are gathered behind the last gather
  // that stays in the layer before, or where its first was; those of the first layer behind its
  // first.
  std::vector<size_t> gathered_ahead(int64_t most) const {
    struct Layer {
      size_t first = 0;  // of its gathers
      size_t turn = 0;   // where those of the next layer go
      std::vector<size_t> moved;
      int64_t elements = 0;
    };
    std::vector<Layer> layers;  // in order
    std::vector<bool> moves(graph_.ops.size(), false);
    LayerId last;
    for (const size_t o : order_) {
      if (!gathers_weight(o)) continue;
      const ir::Op& op = graph_.ops[o];
      if (layers.empty() || last != op.layer) layers.push_back({o, o, {}, 0});
      last = op.layer;
      Layer& layer = layers.back();
      layer.elements += graph_.type(op.results[0]).elements();
      moves[o] = o != layers.front().first && layer.elements <= most;
      if (moves[o]) {
        layer.moved.push_back(o);
      } else {
        layer.turn = o;
      }
    }
    std::vector<size_t> ahead;
    const auto gather = [&](size_t layer) {
      if (layer >= layers.size()) return;
      ahead.insert(ahead.end(), layers[layer].moved.begin(), layers[layer].moved.end());
    };
    size_t at = 0;  // layer whose turn comes next
    for (const size_t o : order_) {
      if (!moves[o]) ahead.push_back(o);
      if (layers.empty()) continue;
      if (o == layers.front().first) gather(0);
      if (at < layers.size() && o == layers[at].turn) gather(++at);
    }
    return ahead;
  }

  // Whether a value's op is held back.
  enum class Held : uint8_t {
    kNo,
    kGradient,  // in gradients_
    kGathered,  // no, but a collective has gathered it for weight gradients alone
    kProduct,   // of such a value, in products_
    kReduced,   // no, but a collective has reduced it from weight gradients
    kSum,       // in sums_
  };

  void place(size_t o) {
    const ir::Op& op = graph_.ops[o];
    const bool communicates = stream_of(op, mesh_) != 0;
    const bool of_weights = op.work == ir::Work::kWeightGrad;
    const auto reads = [&](Held held) {
      return std::any_of(op.operands.begin(), op.operands.end(),
                         [&](ValueId v) { return held_[v.index()] == held; });
    };
    if (of_weights && !communicates) {
      const bool sum = reads(Held::kReduced) || reads(Held::kSum);
      const bool product = !sum && (reads(Held::kGathered) || reads(Held::kProduct));
      if ((sum || product) && reads(Held::kGradient)) release(gradients_);
      if (sum && reads(Held::kProduct)) release(products_);
      if (sum) {
        hold(o, sums_, Held::kSum);
      } else if (product) {
        hold(o, products_, Held::kProduct);
      } else {
        hold(o, gradients_, Held::kGradient);
      }
      return;
    }
    if (!gradients_.empty() && graph_.ops[gradients_.front()].layer != op.layer)
      release(gradients_);
    if (reads(Held::kGradient)) release(gradients_);
    if (reads(Held::kProduct)) release(products_);
    if (reads(Held::kSum)) release(sums_);
    const bool gathers = op.kind == ir::OpKind::kAllGather;
    if (communicates && of_weights) {
      release_before(op.layer, products_);
      if (!gathers) release_before(op.layer, sums_);
    }
    order_.push_back(o);
    if (!communicates) return;
    const Held made = !of_weights ? Held::kNo : gathers ? Held::kGathered : Held::kReduced;
    for (const ValueId v : op.results) held_[v.index()] = made;
    release(gradients_);
  }

  void hold(size_t o, std::vector<size_t>& list, Held held) {
    list.push_back(o);
    for (const ValueId v : graph_.ops[o].results) held_[v.index()] = held;
  }
  void release(std::vector<size_t>& list) {
    for (const size_t o : list) {
      order_.push_back(o);
      for (const ValueId v : graph_.ops[o].results) held_[v.index()] = Held::kNo;
    }
    list.clear();
  }

  // A layer's own wait on: another group of its gradients is no work beside which one is reduced.
  void release_before(LayerId layer, std::vector<size_t>& list) {
    const auto own = std::stable_partition(list.begin(), list.end(),
                                           [&](size_t o) { return graph_.ops[o].layer != layer; });
    std::vector<size_t> others(list.begin(), own);
    list.erase(list.begin(), own);
    release(others);
  }

  const ir::Graph& graph_;
  const cluster::Mesh& mesh_;
  std::vector<bool> is_state_;  // [value]
  std::vector<Held> held_;      // [value]
  std::vector<size_t> gradients_, products_, sums_, order_;
};

void reorder(ir::Graph& graph, const std::vector<size_t>& order) {
  std::vector<ir::Op> ops;
  ops.reserve(order.size());
  for (const size_t o : order) ops.push_back(std::move(graph.ops[o]));
  graph.ops = std::move(ops);
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (const ValueId v : graph.ops[o].results)
      graph.value(v).producer = OpId(static_cast<int64_t>(o));
  }
}

// Streams, and the fewest events that make every op start after what it needs.
class Launcher {
 public:
  Launcher(Fragment& fragment, const cluster::Mesh& mesh)
      : fragment_(fragment),
        graph_(fragment.graph),
        mesh_(mesh),
        streams_(mesh.axes().size() + 3),
        known_(streams_ * streams_, -1),
        ended_(graph_.ops.size() * streams_, -1),
        root_(graph_.values.size()),
        readers_(graph_.values.size()) {}

  void run() {
    fragment_.launches.assign(graph_.ops.size(), Launch());
    for (size_t o = 0; o < graph_.ops.size(); ++o) launch(static_cast<int32_t>(o));
  }

 private:
  // [stream] its last op that is known to have ended, -1: none.
  using Clock = std::span<int32_t>;
  Clock clock(std::vector<int32_t>& clocks, int32_t at) const {
    return {clocks.data() + static_cast<size_t>(at) * streams_, streams_};
  }

  ValueId root(ValueId v) const { return root_[v.index()].valid() ? root_[v.index()] : v; }

  void launch(int32_t o) {
    const ir::Op& op = graph_.ops[static_cast<size_t>(o)];
    const int32_t stream = stream_of(op, mesh_);
    fragment_.launches[static_cast<size_t>(o)].stream = StreamId(stream);
    std::vector<int32_t>& needed = needed_;
    needed.clear();
    for (const ValueId v : op.operands) {
      if (graph_.value(v).producer.valid()) needed.push_back(graph_.value(v).producer.value);
    }
    if (stream != 0) needed.push_back(last_computed_);
    for (size_t i = 0; i < op.results.size(); ++i) {
      const Sharing sharing = sharing_of(graph_, op, static_cast<int>(i));
      if (sharing.kind == Sharing::Kind::kNone) continue;
      const ValueId memory = root(op.operands[static_cast<size_t>(std::max(0, sharing.operand))]);
      root_[op.results[i].index()] = memory;
      if (sharing.kind == Sharing::Kind::kView) continue;
      // Written over: collectives that read it must have ended.
      const std::vector<int32_t>& readers = readers_[memory.index()];
      needed.insert(needed.end(), readers.begin(), readers.end());
    }
    std::sort(needed.rbegin(), needed.rend());
    for (const int32_t before : needed) wait(o, stream, before);
    const Clock known = clock(known_, stream);
    std::copy(known.begin(), known.end(), clock(ended_, o).begin());
    known[static_cast<size_t>(stream)] = o;
    if (stream == 0) {
      last_computed_ = o;
    } else {
      for (const ValueId v : op.operands) readers_[root(v).index()].push_back(o);
    }
  }

  void wait(int32_t o, int32_t stream, int32_t before) {
    if (before < 0) return;
    const Clock known = clock(known_, stream);
    Launch& other = fragment_.launches[static_cast<size_t>(before)];
    if (known[other.stream.index()] >= before) return;
    if (!other.records.valid()) other.records = EventId(events_++);
    fragment_.launches[static_cast<size_t>(o)].waits.push_back(other.records);
    const Clock then = clock(ended_, before);
    for (size_t s = 0; s < streams_; ++s) known[s] = std::max(known[s], then[s]);
    known[other.stream.index()] = std::max(known[other.stream.index()], before);
  }

  Fragment& fragment_;
  const ir::Graph& graph_;
  const cluster::Mesh& mesh_;
  size_t streams_;
  std::vector<int32_t> known_;   // clocks of [stream], by its next op
  std::vector<int32_t> ended_;   // clocks of [op], when it starts
  std::vector<int32_t> needed_;  // by the op at hand
  int32_t last_computed_ = -1;
  int64_t events_ = 0;
  ValueIds root_;                              // [value] in whose memory it lies, invalid: its own
  std::vector<std::vector<int32_t>> readers_;  // [root] collectives
};

}  // namespace

void order_for_overlap(Fragment& fragment, const cluster::Mesh& mesh, int64_t gather_ahead) {
  const bool communicates = std::any_of(fragment.graph.ops.begin(), fragment.graph.ops.end(),
                                        [&](const ir::Op& op) { return stream_of(op, mesh) != 0; });
  if (!communicates) return;
  reorder(fragment.graph, Orderer(fragment, mesh).order(gather_ahead));
  Launcher(fragment, mesh).run();
}

}  // namespace mw::pipeline
