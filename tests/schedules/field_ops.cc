#include "field_ops.h"

#include <algorithm>

#include "base/error.h"

namespace mw::field {
namespace {

using ir::OpKind;

template <typename F>
bool map(const Call& call, F f) {
  for (size_t i = 0; i < call.out().size(); ++i) call.out()[i] = f(i);
  return true;
}

bool unary(const Call& call, Function function) {
  return map(call, [&](size_t i) { return hash(function, call.in(0)[i]); });
}

// Of integers as the machine's, of floating types in the field.
bool arithmetic(const Call& call) {
  const bool floats = is_floating(call.out_type().dtype);
  return map(call, [&](size_t i) -> uint64_t {
    const uint64_t a = call.in(0)[i], b = call.in(1)[i];
    switch (call.op.kind) {
      case OpKind::kSub: return floats ? sub(a, b) : a - b;
      case OpKind::kMul: return floats ? mul(a, b) : a * b;
      default: return floats ? add(a, b) : a + b;
    }
  });
}

// Numbers of the field are ordered as integers from 0 on.
bool extremum(const Call& call, bool largest) {
  return map(call, [&](size_t i) {
    const auto a = static_cast<int64_t>(call.in(0)[i]), b = static_cast<int64_t>(call.in(1)[i]);
    return static_cast<uint64_t>(largest ? std::max(a, b) : std::min(a, b));
  });
}

bool compare(const Call& call) {
  using Direction = ir::CompareAttrs::Direction;
  return map(call, [&](size_t i) -> uint64_t {
    const auto a = static_cast<int64_t>(call.in(0)[i]), b = static_cast<int64_t>(call.in(1)[i]);
    switch (call.op.as<ir::CompareAttrs>().direction) {
      case Direction::kEq: return a == b;
      case Direction::kNe: return a != b;
      case Direction::kLt: return a < b;
      case Direction::kLe: return a <= b;
      case Direction::kGt: return a > b;
      case Direction::kGe: return a >= b;
    }
    return 0;
  });
}

bool convert(const Call& call) {
  const bool from = is_floating(call.in_type(0).dtype), to = is_floating(call.out_type().dtype);
  const bool truth = call.out_type().dtype == DType::kBool;
  return map(call, [&](size_t i) -> uint64_t {
    const uint64_t x = call.in(0)[i];
    if (truth) return x != 0;
    return !from && to ? from_int(static_cast<int64_t>(x)) : x;
  });
}

bool evaluate_elementwise(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kAdd:
    case OpKind::kAccumulate:
    case OpKind::kSub:
    case OpKind::kMul: return arithmetic(call);
    case OpKind::kDiv:
      return map(call, [&](size_t i) { return div(call.in(0)[i], call.in(1)[i]); });
    case OpKind::kMax: return extremum(call, true);
    case OpKind::kMin: return extremum(call, false);
    case OpKind::kNeg: return map(call, [&](size_t i) { return negate(call.in(0)[i]); });
    case OpKind::kExp: return unary(call, Function::kExp);
    case OpKind::kLog: return unary(call, Function::kLog);
    case OpKind::kTanh: return unary(call, Function::kTanh);
    case OpKind::kSqrt: return unary(call, Function::kSqrt);
    case OpKind::kRsqrt: return unary(call, Function::kRsqrt);
    case OpKind::kErf: return unary(call, Function::kErf);
    case OpKind::kScale: {
      const Num factor = from_double(call.op.as<ir::ScaleAttrs>().factor);
      return map(call, [&](size_t i) { return mul(call.in(0)[i], factor); });
    }
    case OpKind::kCompare: return compare(call);
    case OpKind::kSelect: {
      const bool scalar = call.in_type(0).rank() == 0;
      return map(call,
                 [&](size_t i) { return call.in(call.in(0)[scalar ? 0 : i] != 0 ? 1 : 2)[i]; });
    }
    case OpKind::kConvert: return convert(call);
    default: return false;
  }
}

// Every element of the result is the one of operand 0 that `source` gives for its index.
template <typename Source>
bool gather(const Call& call, Source source) {
  Index from(call.in_type(0).dims.size());
  for_each(call.out_type(), [&](const Index& index, size_t at) {
    source(index, from);
    call.out()[at] = call.in(0)[place(call.in_type(0), from)];
  });
  return true;
}

bool pad(const Call& call) {
  const auto& attrs = call.op.as<ir::PadAttrs>();
  for_each(call.in_type(0), [&](const Index& index, size_t at) {
    Index to = index;
    for (size_t d = 0; d < to.size(); ++d) to[d] += attrs.low[d];
    call.out()[place(call.out_type(), to)] = call.in(0)[at];
  });
  return true;
}

bool concat(const Call& call) {
  const auto dim = static_cast<size_t>(call.op.as<ir::ConcatAttrs>().dim);
  int64_t start = 0;
  for (const Array& part : call.operands) {
    for_each(part.type, [&](const Index& index, size_t at) {
      Index to = index;
      to[dim] += start;
      call.out()[place(call.out_type(), to)] = part.values[at];
    });
    start += part.type.dims[dim].size;
  }
  return true;
}

Num reduced(ir::Reduction op, Num a, Num b) {
  switch (op) {
    case ir::Reduction::kSum: return add(a, b);
    case ir::Reduction::kMax: return std::max(a, b);
    case ir::Reduction::kMin: return std::min(a, b);
  }
  return 0;
}

bool reduce(const Call& call) {
  const auto& attrs = call.op.as<ir::ReduceAttrs>();
  std::vector<bool> begun(call.out().size());
  for_each(call.in_type(0), [&](const Index& index, size_t at) {
    Index to;
    for (int d = 0; d < static_cast<int>(index.size()); ++d)
      if (std::find(attrs.dims.begin(), attrs.dims.end(), d) == attrs.dims.end())
        to.push_back(index[static_cast<size_t>(d)]);
    const size_t y = place(call.out_type(), to);
    call.out()[y] = begun[y] ? reduced(attrs.op, call.out()[y], call.in(0)[at]) : call.in(0)[at];
    begun[y] = true;
  });
  return true;
}

bool dot(const Call& call) {
  const auto& attrs = call.op.as<ir::DotAttrs>();
  struct Letter {
    int64_t size, lhs, rhs, out;
  };
  std::string letters;
  for (const char c : attrs.out + attrs.lhs + attrs.rhs)
    if (letters.find(c) == std::string::npos) letters += c;
  const auto stride = [](const std::string& of, const ir::TensorType& type, char letter) {
    int64_t step = 1;
    for (size_t d = of.size(); d-- > 0; step *= type.dims[d].size)
      if (of[d] == letter) return std::pair(step, type.dims[d].size);
    return std::pair<int64_t, int64_t>(0, 0);
  };
  std::vector<Letter> all;
  for (const char c : letters) {
    const auto [lhs, in_lhs] = stride(attrs.lhs, call.in_type(0), c);
    const auto [rhs, in_rhs] = stride(attrs.rhs, call.in_type(1), c);
    all.push_back(
        {std::max(in_lhs, in_rhs), lhs, rhs, stride(attrs.out, call.out_type(), c).first});
  }
  const uint64_t *a = call.in(0).data(), *b = call.in(1).data();
  uint64_t* y = call.out().data();
  const auto loop = [&](const auto& self, size_t depth, int64_t l, int64_t r, int64_t o) -> void {
    if (depth == all.size()) {
      y[o] = add(y[o], mul(a[l], b[r]));
      return;
    }
    const Letter& letter = all[depth];
    for (int64_t i = 0; i < letter.size; ++i)
      self(self, depth + 1, l + i * letter.lhs, r + i * letter.rhs, o + i * letter.out);
  };
  loop(loop, 0, 0, 0, 0);
  return true;
}

bool random(const Call& call) {
  const auto& attrs = call.op.as<ir::RandomAttrs>();
  for_each(call.out_type(), [&](const Index& index, size_t at) {
    uint64_t global = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      const int64_t first =
          attrs.offsets.empty() ? 0 : call.first(attrs.offsets[d], call.out_type().dims[d].size);
      global = global * static_cast<uint64_t>(attrs.global_sizes[d]) +
               static_cast<uint64_t>(first + index[d]);
    }
    call.out()[at] = random_value(attrs, call.operands.empty() ? 0 : call.in(0)[0], global);
  });
  return true;
}

bool evaluate_shapes(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kConstant: {
      const double value = call.op.as<ir::ConstantAttrs>().value;
      const bool floats = is_floating(call.out_type().dtype);
      const uint64_t x =
          floats ? from_double(value) : static_cast<uint64_t>(static_cast<int64_t>(value));
      return map(call, [&](size_t) { return x; });
    }
    case OpKind::kReshape: return map(call, [&](size_t i) { return call.in(0)[i]; });
    case OpKind::kBroadcast:
      return gather(call, [&](const Index& index, Index& from) {
        for (size_t d = 0; d < from.size(); ++d)
          from[d] = index[static_cast<size_t>(call.op.as<ir::DimsAttrs>().dims[d])];
      });
    case OpKind::kTranspose:
      return gather(call, [&](const Index& index, Index& from) {
        for (size_t d = 0; d < from.size(); ++d)
          from[static_cast<size_t>(call.op.as<ir::DimsAttrs>().dims[d])] = index[d];
      });
    case OpKind::kSlice:
      return gather(call, [&](const Index& index, Index& from) {
        const auto& attrs = call.op.as<ir::SliceAttrs>();
        for (size_t d = 0; d < from.size(); ++d)
          from[d] = attrs.start[d] + index[d] * attrs.stride[d];
      });
    case OpKind::kPad: return pad(call);
    case OpKind::kConcat: return concat(call);
    case OpKind::kReduce: return reduce(call);
    case OpKind::kDot: return dot(call);
    case OpKind::kRandom: return random(call);
    default: return false;
  }
}

// The part of an array along a dimension that `index` of `parts` equal ones is.
Array part_of(const Array& whole, size_t dim, int64_t index, int64_t parts) {
  Array part;
  part.type = whole.type;
  const int64_t size = whole.type.dims[dim].size / parts;
  part.type.dims[dim] = ir::Dim(size);
  for_each(part.type, [&](const Index& at, size_t) {
    Index from = at;
    from[dim] += index * size;
    part.values.push_back(whole.values[place(whole.type, from)]);
  });
  return part;
}

Array joined(const std::vector<Array>& parts, size_t dim) {
  Array whole;
  whole.type = parts[0].type;
  const int64_t size = parts[0].type.dims[dim].size;
  whole.type.dims[dim] = ir::Dim(size * static_cast<int64_t>(parts.size()));
  for_each(whole.type, [&](const Index& at, size_t) {
    Index from = at;
    from[dim] %= size;
    const Array& part = parts[static_cast<size_t>(at[dim] / size)];
    whole.values.push_back(part.values[place(part.type, from)]);
  });
  return whole;
}

Array sum_of(std::span<const Array* const> parts, ir::Reduction op) {
  Array sum = *parts[0];
  for (size_t p = 1; p < parts.size(); ++p)
    for (size_t i = 0; i < sum.values.size(); ++i)
      sum.values[i] = reduced(op, sum.values[i], parts[p]->values[i]);
  return sum;
}

}  // namespace

Array zeros(const ir::TensorType& type) {
  return {type, std::vector<uint64_t>(static_cast<size_t>(type.elements()))};
}

size_t place(const ir::TensorType& type, const Index& index) {
  int64_t at = 0;
  for (size_t d = 0; d < index.size(); ++d) at = at * type.dims[d].size + index[d];
  return static_cast<size_t>(at);
}

std::vector<Array> evaluate(const ir::Op& op, std::span<const Array> operands,
                            std::span<const ir::TensorType> results, const Device& device) {
  std::vector<Array> out;
  for (const ir::TensorType& type : results) out.push_back(zeros(type));
  const Call call{op, op.accumulates ? operands.first(operands.size() - 1) : operands, out, device};
  const bool known = evaluate_elementwise(call) || evaluate_shapes(call) ||
                     evaluate_composite(call) || evaluate_state(call);
  MW_CHECK(known, "{} has no meaning here", ir::op_name(op.kind));
  if (op.accumulates)
    for (size_t i = 0; i < out[0].values.size(); ++i)
      out[0].values[i] = add(out[0].values[i], operands.back().values[i]);
  return out;
}

Array combine(const ir::Op& op, std::span<const Array* const> parts,
              std::span<const RankId> members, size_t me, const ir::TensorType& result,
              const cluster::Mesh& mesh) {
  const auto& attrs = op.as<ir::CollectiveAttrs>();
  const auto dim = static_cast<size_t>(attrs.dim),
             concat_dim = static_cast<size_t>(attrs.concat_dim);
  const auto n = static_cast<int64_t>(parts.size()), mine = static_cast<int64_t>(me);
  std::vector<Array> pieces;
  Array made;
  switch (op.kind) {
    case OpKind::kAllReduce: made = sum_of(parts, attrs.op); break;
    case OpKind::kReduceScatter: made = part_of(sum_of(parts, attrs.op), dim, mine, n); break;
    case OpKind::kAllGather:
      for (const Array* part : parts) pieces.push_back(*part);
      made = joined(pieces, dim);
      break;
    case OpKind::kAllToAll:
      for (const Array* part : parts) pieces.push_back(part_of(*part, dim, mine, n));
      made = joined(pieces, concat_dim);
      break;
    case OpKind::kPermute: {
      const int64_t shard = mesh.index(members[me], attrs.to);
      const auto source = std::find_if(members.begin(), members.end(), [&](RankId member) {
        return mesh.index(member, attrs.from) == shard;
      });
      MW_CHECK(source != members.end(), "nobody has shard {}", shard);
      made = *parts[static_cast<size_t>(source - members.begin())];
      break;
    }
    default: MW_CHECK(false, "{} is no collective", ir::op_name(op.kind));
  }
  MW_CHECK(made.type == result, "{} makes {}, not {}", ir::op_name(op.kind),
           ir::to_string(made.type), ir::to_string(result));
  return made;
}

Num random_value(const ir::RandomAttrs& attrs, uint64_t seed, uint64_t index) {
  const auto kind = static_cast<uint64_t>(attrs.distribution);
  return add(from_double(attrs.mean),
             mul(from_double(attrs.scale),
                 hash(Function::kRandom, kind, seed, rng_site(attrs.site), index)));
}

}  // namespace mw::field
