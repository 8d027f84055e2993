#include "pipeline/accumulation.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "ops/update_ops.h"

namespace mw::pipeline {
namespace {

using ir::OpKind;

// A contribution to the elements [begin, end) of a value, made by op `by`.
struct Added {
  int64_t begin = 0, end = 0;
  int32_t by = -1;
};
// A state whose element `offset` is the value's first.
struct Base {
  size_t port = 0;
  int64_t offset = 0;
  friend bool operator==(const Base&, const Base&) = default;
};

// How a value came about: from states and zeros by adding contributions, or otherwise (`plain`).
struct Origin {
  bool plain = true;
  bool zero = false;
  std::vector<Base> bases;
  std::vector<Added> added;
  std::vector<size_t> sums;  // over holders
};

class Tracker {
 public:
  Tracker(const Fragment& fragment, const cluster::Mesh& mesh)
      : fragment_(fragment), graph_(fragment.graph), mesh_(mesh), origins_(graph_.values.size()) {
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      if (!graph_.inputs[i].state.valid()) continue;
      Origin& origin = origins_[graph_.inputs[i].value.index()];
      origin.plain = false;
      origin.bases = {{i, 0}};
    }
    result_.effects.resize(graph_.inputs.size());
  }

  AccumulationInfo run() {
    for (size_t o = 0; o < graph_.ops.size(); ++o) add_op(static_cast<int32_t>(o));
    for (const ir::StateUpdate& update : graph_.updates) add_effect(update);
    return std::move(result_);
  }

 private:
  Origin& origin(ValueId v) { return origins_[v.index()]; }
  // Of all dp shards of a split flat buffer; a parameter that is sharded over other axes counts as
  // what this rank has of it.
  int64_t elements(ValueId v) const {
    return flat_elements(graph_.type(v), fragment_.global_types[v.index()],
                         fragment_.shardings[v.index()]);
  }

  void add_op(int32_t o) {
    const ir::Op& op = graph_.ops[static_cast<size_t>(o)];
    if (op.accumulates) {
      Origin sum = origin(op.operands.back());
      add(sum, {0, elements(op.results[0]), o});
      origin(op.results[0]) = std::move(sum);
      return;
    }
    switch (op.kind) {
      case OpKind::kConstant:
        if (op.as<ir::ConstantAttrs>().value == 0) zero(op.results[0]);
        break;
      case OpKind::kZero: zero(op.results[0]); break;
      case OpKind::kAccumulate: accumulate(o, op); break;
      case OpKind::kView: view(op); break;
      case OpKind::kAssemble: assemble(op); break;
      case OpKind::kAllReduce: all_reduce(o, op); break;
      case OpKind::kReduceScatter:
      case OpKind::kAllGather:
      case OpKind::kShardSlice:
      case OpKind::kReshape:
      case OpKind::kCopy:
      case OpKind::kPadMask:
      case OpKind::kTrim: carry(op); break;
      case OpKind::kAdamW: optimize(o, op); break;
      default: break;
    }
  }

  void zero(ValueId v) {
    origin(v).plain = false;
    origin(v).zero = true;
  }

  void carry(const ir::Op& op) {
    for (size_t i = 0; i < op.operands.size() && i < op.results.size(); ++i)
      origin(op.results[i]) = origin(op.operands[i]);
  }
  void all_reduce(int32_t o, const ir::Op& op) {
    const auto* holders = std::get_if<ir::Holders>(&op.as<ir::CollectiveAttrs>().group);
    if (holders == nullptr) return carry(op);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const Origin& mine = origin(op.operands[i]);
      HolderSum sum{o, holders->state, {}, mine.sums, mine.plain};
      for (const Base& base : mine.bases) sum.ports.push_back(base.port);
      Origin made;
      made.plain = false;
      made.sums = {result_.holder_sums.size()};
      result_.holder_sums.push_back(std::move(sum));
      origin(op.results[i]) = std::move(made);
    }
  }

  void accumulate(int32_t o, const ir::Op& op) {
    Origin sum = origin(op.operands[0]);
    const Origin& g = origin(op.operands[1]);
    if (g.plain) {
      add(sum, {0, elements(op.results[0]), o});
    } else if (!sum.plain) {
      for (const Base& base : g.bases) {
        if (std::find(sum.bases.begin(), sum.bases.end(), base) != sum.bases.end()) {
          report(o, fmt::format("adds {} to itself", fragment_.inputs[base.port].name));
        }
        sum.bases.push_back(base);
      }
      for (const Added& added : g.added) add(sum, added);
      sum.sums.insert(sum.sums.end(), g.sums.begin(), g.sums.end());
      sum.zero = sum.zero && g.zero;
    }
    origin(op.results[0]) = std::move(sum);
  }

  void report(int32_t o, const std::string& what) {
    const ir::Op& op = graph_.ops[static_cast<size_t>(o)];
    result_.findings.push_back(fmt::format("op {} ({} -> {}) {}", o, ir::op_name(op.kind),
                                           graph_.label(op.results[0]), what));
  }

  // What op `o` adds, apart from where it adds it.
  ValueIds summands(int32_t o) const {
    const ir::Op& op = graph_.ops[static_cast<size_t>(o)];
    if (op.kind == OpKind::kAccumulate) return {op.operands[1]};
    return {op.operands.begin(), op.operands.end() - 1};
  }

  void add(Origin& sum, const Added& added) {
    const ir::Op& op = graph_.ops[static_cast<size_t>(added.by)];
    for (const Added& before : sum.added) {
      if (before.end <= added.begin || added.end <= before.begin) continue;
      const ir::Op& other = graph_.ops[static_cast<size_t>(before.by)];
      if (other.kind != op.kind || !(other.attrs == op.attrs) ||
          summands(before.by) != summands(added.by))
        continue;
      report(added.by, fmt::format("adds the same contribution as op {} once more", before.by));
    }
    sum.added.push_back(added);
    sum.zero = false;
  }

  static std::vector<Added> cut(const std::vector<Added>& all, int64_t begin, int64_t end,
                                int64_t move) {
    std::vector<Added> part;
    for (Added added : all) {
      added.begin = std::max(added.begin, begin) + move;
      added.end = std::min(added.end, end) + move;
      if (added.begin < added.end) part.push_back(added);
    }
    return part;
  }

  void view(const ir::Op& op) {
    Origin part = origin(op.operands[0]);
    const int64_t at = op.as<ir::ViewAttrs>().offset;
    part.added = cut(part.added, at, at + graph_.type(op.results[0]).elements(), -at);
    for (Base& base : part.bases) {
      base.offset += at;
      const int64_t end = base.offset + graph_.type(op.results[0]).elements();
      result_.parts.push_back(
          {graph_.value(op.results[0]).producer.value, base.port, {base.offset, end}});
    }
    origin(op.results[0]) = std::move(part);
  }

  void assemble(const ir::Op& op) {
    Origin all = origin(op.operands[0]);
    const std::vector<int64_t>& offsets = op.as<ir::AssembleAttrs>().offsets;
    struct Part {
      int64_t at, end;
      ValueId value;
    };
    std::vector<Part> parts;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const ValueId v = op.operands[i + 1];
      parts.push_back({offsets[i], offsets[i] + graph_.type(v).elements(), v});
    }
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.at < b.at; });
    std::vector<Added> added;
    int64_t end = 0;
    const auto append = [&](const std::vector<Added>& more) {
      added.insert(added.end(), more.begin(), more.end());
    };
    for (const Part& part : parts) {
      const Origin& of_part = origin(part.value);
      append(cut(all.added, end, part.at, 0));
      append(cut(of_part.added, 0, part.end - part.at, part.at));
      // A part that is not grown from the flat buffer replaces what was there.
      all.plain = all.plain || of_part.plain;
      for (const Base& base : all.bases) {
        const Base wanted{base.port, base.offset + part.at};
        if (std::find(of_part.bases.begin(), of_part.bases.end(), wanted) == of_part.bases.end())
          all.plain = true;
      }
      all.zero = all.zero && of_part.zero;
      end = part.end;
    }
    append(cut(all.added, end, elements(op.operands[0]), 0));
    if (all.plain) return;
    all.added = std::move(added);
    origin(op.results[0]) = std::move(all);
  }

  void optimize(int32_t o, const ir::Op& op) {
    const ir::FlatAttrs& attrs = op.as<ir::FlatAttrs>();
    Optimized optimized;
    optimized.op = o;
    for (const Base& base : origin(op.operands[0]).bases) optimized.weights.push_back(base.port);
    for (const Base& base : origin(op.operands[1]).bases) optimized.gradients.push_back(base.port);
    for (const auto& group : attrs.groups) {
      for (const ir::Segment& segment : group) {
        optimized.ranges.push_back({segment.begin, segment.end});
        optimized.parameters.push_back(segment.parameter);
        optimized.at_origin.push_back(segment.counted_at_origin_of);
      }
    }
    optimized.all_parameters = attrs.parameters;
    optimized.sums = origin(op.operands[1]).sums;
    for (const Added& added : origin(op.operands[1]).added)
      report(o, fmt::format("takes a gradient to which op {} of this call adds", added.by));
    if (!is_final(op)) {
      optimized.kept = kept(op);
      if (!optimized.kept) {
        report(
            o,
            "makes a step with a norm that lacks other pipeline ranks, and keeps not all that it "
            "takes to amend it");
      }
    }
    result_.optimized.push_back(std::move(optimized));
  }

  // The scale of an adamw comes from the norm of all pipeline ranks.
  bool is_final(const ir::Op& adamw) const {
    const OpId by = graph_.value(adamw.operands[4]).producer;
    if (!by.valid() || graph_.op(by).kind != OpKind::kClip) return true;
    const ValueId sums = graph_.op(by).operands[0];
    return sharding::normalized(fragment_.shardings[sums.index()], mesh_).partial.empty();
  }

  // Copies of the operands, and the squares, among the fragment's outputs.
  std::optional<Kept> kept(const ir::Op& adamw) const {
    const auto output_that = [&](const auto& fits) -> std::optional<size_t> {
      for (size_t i = 0; i < graph_.outputs.size(); ++i)
        if (fits(graph_.outputs[i])) return i;
      return std::nullopt;
    };
    const auto copy_of = [&](ValueId of) {
      return output_that([&](ValueId v) {
        const OpId by = graph_.value(v).producer;
        return by.valid() && graph_.op(by).kind == OpKind::kCopy && graph_.op(by).operands[0] == of;
      });
    };
    const ValueId squares = graph_.op(graph_.value(adamw.operands[4]).producer).operands[0];
    const std::optional<size_t> weight = copy_of(adamw.operands[0]),
                                gradient = copy_of(adamw.operands[1]),
                                moment = copy_of(adamw.operands[2]),
                                variance = copy_of(adamw.operands[3]),
                                all = output_that([&](ValueId v) { return v == squares; });
    if (!weight || !gradient || !moment || !variance || !all) return std::nullopt;
    return Kept{*weight, *gradient, *moment, *variance, *all};
  }

  void add_effect(const ir::StateUpdate& update) {
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      if (graph_.inputs[i].state != update.state) continue;
      const Origin& made = origin(update.value);
      StateEffect& effect = result_.effects[i];
      if (made.zero) {
        effect.kind = StateEffect::Kind::kCleared;
      } else if (made.plain ||
                 std::find(made.bases.begin(), made.bases.end(), Base{i, 0}) == made.bases.end()) {
        effect.kind = StateEffect::Kind::kReplaced;
      } else {
        effect.kind = StateEffect::Kind::kAdded;
        effect.added = merged(made.added);
        for (const Added& added : made.added)
          result_.parts.push_back({added.by, i, {added.begin, added.end}});
      }
    }
  }

  static std::vector<ElementRange> merged(std::vector<Added> added) {
    std::sort(added.begin(), added.end(),
              [](const Added& a, const Added& b) { return a.begin < b.begin; });
    std::vector<ElementRange> ranges;
    for (const Added& a : added) {
      if (!ranges.empty() && a.begin <= ranges.back().end) {
        ranges.back().end = std::max(ranges.back().end, a.end);
      } else {
        ranges.push_back({a.begin, a.end});
      }
    }
    return ranges;
  }

  const Fragment& fragment_;
  const ir::Graph& graph_;
  const cluster::Mesh& mesh_;
  std::vector<Origin> origins_;
  AccumulationInfo result_;
};

}  // namespace

AccumulationInfo make_accumulation_info(const Fragment& fragment, const cluster::Mesh& mesh) {
  return Tracker(fragment, mesh).run();
}

}  // namespace mw::pipeline
