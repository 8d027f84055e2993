#include "sharding/pending.h"

#include <algorithm>
#include <string>

namespace mw::sharding {
namespace {

using ir::OpKind;

bool passes(OpKind kind) {
  return kind == OpKind::kAdd || kind == OpKind::kReshape || kind == OpKind::kTranspose ||
         kind == OpKind::kScale || kind == OpKind::kNeg;
}

// Ops of one tensor that are linear in it and sum over nothing.
bool moves(OpKind kind) {
  return kind == OpKind::kReshape || kind == OpKind::kTranspose || kind == OpKind::kScale ||
         kind == OpKind::kNeg || kind == OpKind::kRopeGrad;
}

// Whether a product sums over a dimension of operand i that is split.
bool sums_over_split(const ir::Op& op, size_t i, const Sharding& sharding) {
  if (op.kind != OpKind::kDot || i > 1) return false;
  const ir::DotAttrs& attrs = op.as<ir::DotAttrs>();
  const std::string& letters = i == 0 ? attrs.lhs : attrs.rhs;
  for (size_t d = 0; d < letters.size(); ++d) {
    if (attrs.out.find(letters[d]) == std::string::npos && !sharding.dims[d].empty()) return true;
  }
  return false;
}

}  // namespace

std::vector<bool> accumulated_only(const ir::Graph& graph) {
  std::vector<bool> accumulated(graph.values.size(), false);
  std::vector<int> readers(graph.values.size(), 0), sinks(graph.values.size(), 0);
  for (const ValueId output : graph.outputs) ++readers[output.index()];
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const ir::Op& op = graph.ops[i];
    bool sink = op.kind == OpKind::kAccumulate;
    for (const ValueId v : op.results) {
      accumulated[v.index()] = readers[v.index()] > 0 && readers[v.index()] == sinks[v.index()];
      if (passes(op.kind) && accumulated[v.index()]) sink = true;
    }
    for (const ValueId v : op.operands) {
      ++readers[v.index()];
      if (sink) ++sinks[v.index()];
    }
  }
  return accumulated;
}

std::vector<bool> carried(const ir::Graph& graph, const std::vector<std::optional<Sharding>>& given,
                          const std::vector<bool>& accumulated) {
  enum class Reader : uint8_t { kNone, kAccumulates, kSums, kOther };
  std::vector<Reader> strongest(graph.values.size(), Reader::kNone);
  const auto read = [&](ValueId v, Reader reader) {
    strongest[v.index()] = std::max(strongest[v.index()], reader);
  };
  for (const ValueId output : graph.outputs) read(output, Reader::kOther);
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const ir::Op& op = graph.ops[i];
    for (size_t o = 0; o < op.operands.size(); ++o) {
      const ValueId v = op.operands[o];
      Reader reader = Reader::kOther;
      if (op.kind == OpKind::kAccumulate) {
        reader = Reader::kAccumulates;
      } else if (moves(op.kind) && o == 0) {
        reader = strongest[op.results[0].index()];
      } else if (given[v.index()] && sums_over_split(op, o, *given[v.index()])) {
        reader = Reader::kSums;
      } else if ((op.kind == OpKind::kDot || op.kind == OpKind::kReduce) &&
                 accumulated[op.results[0].index()]) {
        reader = Reader::kAccumulates;
      }
      read(v, reader);
    }
  }
  std::vector<bool> result(graph.values.size(), false);
  for (size_t v = 0; v < result.size(); ++v) {
    const ir::Value& value = graph.values[v];
    result[v] = strongest[v] == Reader::kSums && value.producer.valid() &&
                graph.op(value.producer).work != ir::Work::kForward;
  }
  return result;
}

Sharding pending_as(Sharding wanted, const Sharding& made) {
  wanted.partial = made.reduction == ir::Reduction::kSum ? made.partial : Axes();
  for (const Axes& axes : wanted.dims) {
    for (const Name axis : axes) erase(wanted.partial, axis);
  }
  wanted.reduction = ir::Reduction::kSum;
  return wanted;
}

}  // namespace mw::sharding
