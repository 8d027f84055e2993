// Primitives: elementwise, shapes, reductions, products, convolutions.
#include <limits>

#include "base/rng.h"
#include "runtime/test_op_case.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

// Sizes around the vectors' and the threads' borders.
const std::vector<std::vector<int64_t>> kShapes = {{}, {1}, {7}, {3, 5, 7}, {16, 16}, {37, 1031}};

void add_unary(std::vector<OpCase>& cases) {
  struct Unary {
    OpKind kind;
    at::Tensor (*f)(const at::Tensor&);
  };
  const std::vector<Unary> unary = {{OpKind::kNeg, [](const at::Tensor& x) { return -x; }},
                                    {OpKind::kExp, [](const at::Tensor& x) { return x.exp(); }},
                                    {OpKind::kLog, [](const at::Tensor& x) { return x.log(); }},
                                    {OpKind::kTanh, [](const at::Tensor& x) { return x.tanh(); }},
                                    {OpKind::kSqrt, [](const at::Tensor& x) { return x.sqrt(); }},
                                    {OpKind::kRsqrt, [](const at::Tensor& x) { return x.rsqrt(); }},
                                    {OpKind::kErf, [](const at::Tensor& x) { return x.erf(); }},
                                    {OpKind::kRelu, [](const at::Tensor& x) { return x.relu(); }}};
  for (const auto& shape : kShapes) {
    for (const Unary& u : unary) {
      const bool positive =
          u.kind == OpKind::kLog || u.kind == OpKind::kSqrt || u.kind == OpKind::kRsqrt;
      const at::Tensor x = positive ? random_tensor(shape).abs() + 1e-3 : 3 * random_tensor(shape);
      cases.push_back({.kind = u.kind,
                       .attrs = ir::NoAttrs{},
                       .operands = {x},
                       .expected = [f = u.f](const Tensors& x) { return Tensors{f(x[0])}; }});
    }
  }
}

void add_binary(std::vector<OpCase>& cases) {
  struct Binary {
    OpKind kind;
    at::Tensor (*f)(const at::Tensor&, const at::Tensor&);
  };
  const std::vector<Binary> binary = {
      {OpKind::kAdd, [](const at::Tensor& a, const at::Tensor& b) { return a + b; }},
      {OpKind::kAccumulate, [](const at::Tensor& a, const at::Tensor& b) { return a + b; }},
      {OpKind::kSub, [](const at::Tensor& a, const at::Tensor& b) { return a - b; }},
      {OpKind::kMul, [](const at::Tensor& a, const at::Tensor& b) { return a * b; }},
      {OpKind::kDiv, [](const at::Tensor& a, const at::Tensor& b) { return a / b; }},
      {OpKind::kMax, [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); }},
      {OpKind::kMin, [](const at::Tensor& a, const at::Tensor& b) { return at::minimum(a, b); }},
      {OpKind::kReluGrad, [](const at::Tensor& dy, const at::Tensor& x) { return dy * (x > 0); }}};
  for (const auto& shape : kShapes) {
    for (const Binary& b : binary) {
      cases.push_back({.kind = b.kind,
                       .attrs = ir::NoAttrs{},
                       .operands = {random_tensor(shape), random_tensor(shape, 2)},
                       .expected = [f = b.f](const Tensors& x) { return Tensors{f(x[0], x[1])}; }});
    }
  }
}

void add_other_elementwise(std::vector<OpCase>& cases) {
  for (const auto& shape : kShapes) {
    cases.push_back({.kind = OpKind::kScale,
                     .attrs = ir::ScaleAttrs{0.3},
                     .operands = {random_tensor(shape)},
                     .expected = [](const Tensors& x) { return Tensors{x[0] * 0.3f}; }});
    cases.push_back(
        {.kind = OpKind::kSelect,
         .attrs = ir::NoAttrs{},
         .operands = {random_tensor(shape) > 0, random_tensor(shape, 2), random_tensor(shape, 3)},
         .expected = [](const Tensors& x) { return Tensors{at::where(x[0], x[1], x[2])}; }});
    cases.push_back({.kind = OpKind::kZero,
                     .attrs = ir::NoAttrs{},
                     .operands = {random_tensor(shape)},
                     .expected = [](const Tensors& x) { return Tensors{at::zeros_like(x[0])}; }});
    for (const double value : {1.5, -std::numeric_limits<double>::infinity()}) {
      cases.push_back(
          {.kind = OpKind::kConstant,
           .attrs = ir::ConstantAttrs{value},
           .operands = {},
           .expected = [=](const Tensors&) { return Tensors{at::full(shape, value, at::kFloat)}; },
           .declared = {ir::make_type(DType::kF32, shape)}});
    }
  }
}

// Numbers that are no f32: ATen's.
void add_other_numbers(std::vector<OpCase>& cases) {
  for (const auto dtype : {at::kLong, at::kDouble, at::kInt}) {
    cases.push_back({.kind = OpKind::kAdd,
                     .attrs = ir::NoAttrs{},
                     .operands = {random_ints({5}, 100, dtype), random_ints({5}, 9, dtype)},
                     .expected = [](const Tensors& x) { return Tensors{x[0] + x[1]}; },
                     .by_aten = true});
    cases.push_back({.kind = OpKind::kDiv,
                     .attrs = ir::NoAttrs{},
                     .operands = {random_ints({5}, 100, dtype), random_ints({5}, 9, dtype) + 1},
                     .expected =
                         [=](const Tensors& x) {
                           return Tensors{dtype == at::kDouble ? x[0] / x[1]
                                                               : at::div(x[0], x[1], "trunc")};
                         },
                     .by_aten = true});
  }
  cases.push_back(
      {.kind = OpKind::kMul,
       .attrs = ir::NoAttrs{},
       .operands = {random_tensor({9}).to(at::kBFloat16), random_tensor({9}, 2).to(at::kBFloat16)},
       .expected = [](const Tensors& x) { return Tensors{x[0] * x[1]}; },
       .by_aten = true});
}

void add_comparisons(std::vector<OpCase>& cases) {
  using Direction = ir::CompareAttrs::Direction;
  struct Compare {
    Direction direction;
    at::Tensor (*f)(const at::Tensor&, const at::Tensor&);
  };
  const std::vector<Compare> directions = {
      {Direction::kEq, [](const at::Tensor& a, const at::Tensor& b) { return a == b; }},
      {Direction::kNe, [](const at::Tensor& a, const at::Tensor& b) { return a != b; }},
      {Direction::kLt, [](const at::Tensor& a, const at::Tensor& b) { return a < b; }},
      {Direction::kLe, [](const at::Tensor& a, const at::Tensor& b) { return a <= b; }},
      {Direction::kGt, [](const at::Tensor& a, const at::Tensor& b) { return a > b; }},
      {Direction::kGe, [](const at::Tensor& a, const at::Tensor& b) { return a >= b; }}};
  for (const Compare& d : directions) {
    for (const auto dtype : {at::kFloat, at::kInt, at::kLong}) {
      cases.push_back({.kind = OpKind::kCompare,
                       .attrs = ir::CompareAttrs{d.direction},
                       .operands = {random_ints({61}, 4, dtype), random_ints({61}, 3, dtype)},
                       .expected = [f = d.f](const Tensors& x) { return Tensors{f(x[0], x[1])}; },
                       .by_aten = dtype == at::kLong});
    }
  }
  struct Conversion {
    at::ScalarType from, to;
    DType type;
    bool by_aten;
  };
  for (const Conversion& t :
       std::vector<Conversion>{{at::kFloat, at::kDouble, DType::kF64, false},
                               {at::kDouble, at::kFloat, DType::kF32, false},
                               {at::kInt, at::kFloat, DType::kF32, false},
                               {at::kBool, at::kFloat, DType::kF32, false},
                               {at::kFloat, at::kFloat, DType::kF32, false},
                               {at::kLong, at::kInt, DType::kI32, true},
                               {at::kFloat, at::kBFloat16, DType::kBF16, true},
                               {at::kBFloat16, at::kFloat, DType::kF32, true}}) {
    cases.push_back({.kind = OpKind::kConvert,
                     .attrs = ir::NoAttrs{},
                     .operands = {random_ints({5, 13}, 200).to(t.from)},
                     .expected = [to = t.to](const Tensors& x) { return Tensors{x[0].to(to)}; },
                     .declared = {ir::make_type(t.type, {5, 13})},
                     .by_aten = t.by_aten});
  }
}

// Operands and results of one dtype.
struct OfType {
  at::ScalarType dtype;
  bool by_aten() const { return dtype == at::kBFloat16; }
  at::Tensor operator()(const std::vector<int64_t>& sizes) const {
    return random_ints(sizes, 100).to(dtype);
  }
  std::vector<ir::TensorType> declared(const std::vector<int64_t>& sizes) const {
    return {ir::make_type(type_of((*this)({1})).dtype, sizes)};
  }
};

void add_layouts(std::vector<OpCase>& cases, const OfType& x) {
  cases.push_back({.kind = OpKind::kBroadcast,
                   .attrs = ir::DimsAttrs{{1}},
                   .operands = {x({5})},
                   .expected =
                       [](const Tensors& x) {
                         return Tensors{x[0].view({1, 5, 1}).expand({3, 5, 4}).contiguous()};
                       },
                   .declared = x.declared({3, 5, 4}),
                   .by_aten = x.by_aten()});
  cases.push_back(
      {.kind = OpKind::kBroadcast,
       .attrs = ir::DimsAttrs{},
       .operands = {x({})},
       .expected = [](const Tensors& x) { return Tensors{x[0].expand({33}).contiguous()}; },
       .declared = x.declared({33}),
       .by_aten = x.by_aten()});
  cases.push_back({.kind = OpKind::kReshape,
                   .attrs = ir::NoAttrs{},
                   .operands = {x({6, 10})},
                   .expected = [](const Tensors& x) { return Tensors{x[0].view({4, 15})}; },
                   .declared = x.declared({4, 15})});
  cases.push_back({.kind = OpKind::kCopy,
                   .attrs = ir::NoAttrs{},
                   .operands = {x({6, 10})},
                   .expected = [](const Tensors& x) { return Tensors{x[0]}; },
                   .declared = x.declared({6, 10})});
  for (const std::vector<int>& order :
       std::vector<std::vector<int>>{{1, 0, 2, 3}, {3, 1, 0, 2}, {0, 1, 2, 3}, {0, 3, 1, 2}}) {
    const std::vector<int64_t> wide(order.begin(), order.end());
    cases.push_back(
        {.kind = OpKind::kTranspose,
         .attrs = ir::DimsAttrs{order},
         .operands = {x({3, 5, 7, 2})},
         .expected = [wide](const Tensors& x) { return Tensors{x[0].permute(wide).contiguous()}; },
         .by_aten = x.by_aten()});
  }
}

void add_parts(std::vector<OpCase>& cases, const OfType& x) {
  cases.push_back({.kind = OpKind::kSlice,
                   .attrs = ir::SliceAttrs{{1, 0, 2}, {4, 5, 9}, {1, 1, 3}},
                   .operands = {x({5, 5, 11})},
                   .expected =
                       [](const Tensors& x) {
                         return Tensors{x[0].slice(0, 1, 4).slice(2, 2, 9, 3).contiguous()};
                       },
                   .by_aten = x.by_aten()});
  cases.push_back(
      {.kind = OpKind::kPad,
       .attrs = ir::PadAttrs{{1, 0}, {2, 3}},
       .operands = {x({4, 6})},
       .expected =
           [](const Tensors& x) { return Tensors{at::constant_pad_nd(x[0], {0, 3, 1, 2}, 0)}; },
       .by_aten = x.by_aten()});
  cases.push_back({.kind = OpKind::kConcat,
                   .attrs = ir::ConcatAttrs{1},
                   .operands = {x({3, 2, 4}), x({3, 1, 4}), x({3, 5, 4})},
                   .expected = [](const Tensors& x) { return Tensors{at::cat(x, 1)}; },
                   .by_aten = x.by_aten()});
  cases.push_back({.kind = OpKind::kTrim,
                   .attrs = ir::NoAttrs{},
                   .operands = {x({4, 6})},
                   .expected =
                       [](const Tensors& x) {
                         return Tensors{x[0].slice(0, 0, 3).slice(1, 0, 5).contiguous()};
                       },
                   .declared = x.declared({3, 5}),
                   .by_aten = x.by_aten()});
}

// 7 rows over 4 devices: shards of 2, the last with one row of padding.
void add_shards(std::vector<OpCase>& cases, const OfType& x) {
  for (int rank = 0; rank < 4; ++rank) {
    const cluster::Mesh mesh({{"dp", 4}});
    ir::CollectiveAttrs slice;
    slice.group = ir::AxisGroup{{"dp"}};
    slice.global_size = 7;
    cases.push_back({.kind = OpKind::kShardSlice,
                     .attrs = slice,
                     .operands = {x({7, 3})},
                     .expected =
                         [rank](const Tensors& x) {
                           return Tensors{at::constant_pad_nd(x[0], {0, 0, 0, 1}, 0)
                                              .slice(0, 2 * rank, 2 * rank + 2)
                                              .contiguous()};
                         },
                     .declared = x.declared({2, 3}),
                     .mesh = mesh,
                     .rank = rank,
                     .by_aten = x.by_aten()});
    const ir::PadMaskAttrs mask{
        .dim = 1, .value = x.by_aten() || x.dtype == at::kBool ? 0.0 : 9.0, .offset = {{"dp"}, 7}};
    cases.push_back({.kind = OpKind::kPadMask,
                     .attrs = mask,
                     .operands = {x({3, 2, 2})},
                     .expected =
                         [rank, value = mask.value](const Tensors& x) {
                           at::Tensor y = x[0].clone();
                           if (rank == 3) y.select(1, 1).fill_(value);
                           return Tensors{y};
                         },
                     .mesh = mesh,
                     .rank = rank});
  }
}

void add_shapes(std::vector<OpCase>& cases) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt, at::kBool, at::kBFloat16}) {
    const OfType x{dtype};
    add_layouts(cases, x);
    add_parts(cases, x);
    add_shards(cases, x);
  }
}

void add_reductions(std::vector<OpCase>& cases) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt}) {
    for (const std::vector<int>& dims : std::vector<std::vector<int>>{
             {0}, {1}, {3}, {0, 1}, {2, 3}, {0, 2, 3}, {0, 3}, {1, 2}, {0, 1, 2, 3}, {}}) {
      const std::vector<int64_t> wide(dims.begin(), dims.end());
      for (const auto op : {ir::Reduction::kSum, ir::Reduction::kMax, ir::Reduction::kMin}) {
        cases.push_back({.kind = OpKind::kReduce,
                         .attrs = ir::ReduceAttrs{op, dims},
                         .operands = {dtype == at::kFloat ? random_tensor({5, 3, 7, 19})
                                                          : random_ints({5, 3, 7, 19}, 100, dtype)},
                         .expected =
                             [=](const Tensors& x) {
                               if (wide.empty()) return Tensors{x[0]};
                               if (op == ir::Reduction::kSum)
                                 return Tensors{x[0].sum(wide, false, dtype)};
                               return Tensors{op == ir::Reduction::kMax ? x[0].amax(wide)
                                                                        : x[0].amin(wide)};
                             },
                         .by_aten = dtype != at::kFloat || op != ir::Reduction::kSum});
      }
    }
  }
  cases.push_back({.kind = OpKind::kReduce,
                   .attrs = ir::ReduceAttrs{ir::Reduction::kSum, {0, 1}},
                   .operands = {random_tensor({4, 257, 771})},
                   .expected =
                       [](const Tensors& x) {
                         return Tensors{x[0].to(at::kDouble).sum({0, 1}).to(at::kFloat)};
                       },
                   .tolerance = 5e-5});
}

void add_products(std::vector<OpCase>& cases) {
  struct Dot {
    std::string lhs, rhs, out;
  };
  // Those of the models and their gradients, batches, swapped roles, letters that do not fold,
  // single letters.
  const std::vector<Dot> dots = {
      {"bsk", "nk", "bsn"},     {"bsn", "nk", "bsk"},     {"bsn", "bsk", "nk"},
      {"bsk", "bsn", "nk"},     {"bsd", "chkd", "bschk"}, {"bschk", "chkd", "bsd"},
      {"bschk", "bsd", "chkd"}, {"bshk", "dhk", "bsd"},   {"bsd", "dhk", "bshk"},
      {"bsd", "bshk", "dhk"},   {"mk", "kn", "mn"},       {"km", "kn", "nm"},
      {"bshd", "bthd", "bhst"}, {"bhst", "bthd", "bshd"}, {"ab", "cd", "acbd"},
      {"acbd", "cd", "ab"},     {"k", "k", ""},           {"m", "n", "mn"},
      {"mk", "k", "m"},         {"k", "kn", "n"},         {"", "n", "n"},
      {"b", "b", "b"},          {"asb", "bsc", "ac"}};
  const auto sizes = [](const std::string& letters, int scale) {
    std::vector<int64_t> list;
    for (const char letter : letters)
      list.push_back((letter * 7 % 5 + 1) * scale + (letter == 'd' ? 1 : 0));
    return list;
  };
  for (const Dot& d : dots) {
    for (const int scale : {1, 3}) {
      for (const bool accumulates : {false, true}) {
        Tensors operands = {random_tensor(sizes(d.lhs, scale)),
                            random_tensor(sizes(d.rhs, scale), 2)};
        if (accumulates) operands.push_back(random_tensor(sizes(d.out, scale), 3));
        cases.push_back({.kind = OpKind::kDot,
                         .attrs = ir::DotAttrs{d.lhs, d.rhs, d.out},
                         .operands = operands,
                         .expected =
                             [d](const Tensors& x) {
                               return Tensors{
                                   at::einsum(d.lhs + "," + d.rhs + "->" + d.out,
                                              {x[0].to(at::kDouble), x[1].to(at::kDouble)})
                                       .to(at::kFloat)};
                             },
                         .tolerance = 2e-5,
                         .accumulates = accumulates});
      }
    }
  }
  cases.push_back(
      {.kind = OpKind::kDot,
       .attrs = ir::DotAttrs{"bsk", "nk", "bsn"},
       .operands = {random_tensor({2, 129, 257}), random_tensor({391, 257}, 2)},
       .expected =
           [](const Tensors& x) { return Tensors{at::einsum("bsk,nk->bsn", {x[0], x[1]})}; },
       .tolerance = 5e-5});
  cases.push_back({.kind = OpKind::kDot,
                   .attrs = ir::DotAttrs{"mk", "kn", "mn"},
                   .operands = {random_tensor({5, 9}).to(at::kDouble),
                                random_tensor({9, 3}, 2).to(at::kDouble)},
                   .expected = [](const Tensors& x) { return Tensors{at::mm(x[0], x[1])}; },
                   .by_aten = true});
}

void add_convolutions(std::vector<OpCase>& cases) {
  struct Conv {
    std::vector<int64_t> x, w, stride, padding;
  };
  for (const Conv& v : std::vector<Conv>{{{2, 3, 9, 11}, {5, 3, 3, 3}, {1, 1}, {1, 1}},
                                         {{2, 4, 10, 7}, {6, 4, 3, 2}, {2, 3}, {0, 1}},
                                         {{1, 1, 5, 5}, {1, 1, 1, 1}, {1, 1}, {0, 0}}}) {
    const auto conv = [v](const Tensors& x) {
      return at::conv2d(x[0], x[1], {}, v.stride, v.padding);
    };
    const at::Tensor x = random_tensor(v.x), w = random_tensor(v.w, 2),
                     dy = random_tensor(conv({x, w}).sizes().vec(), 3);
    ir::ConvAttrs attrs{v.stride, v.padding, {}};
    cases.push_back({.kind = OpKind::kConv,
                     .attrs = attrs,
                     .operands = {x, w},
                     .expected = [conv](const Tensors& x) { return Tensors{conv(x)}; },
                     .by_aten = true,
                     .one_thread_bits = false});
    attrs.input_size = {v.x[2], v.x[3]};
    cases.push_back(
        {.kind = OpKind::kConvInputGrad,
         .attrs = attrs,
         .operands = {dy, w},
         .expected = [conv,
                      x](const Tensors& g) { return Tensors{gradients(conv, {x, g[1]}, g[0])[0]}; },
         .by_aten = true,
         .one_thread_bits = false});
    attrs.input_size = {v.w[2], v.w[3]};
    for (const bool accumulates : {false, true}) {
      Tensors operands = {x, dy};
      if (accumulates) operands.push_back(random_tensor(v.w, 4));
      cases.push_back(
          {.kind = OpKind::kConvWeightGrad,
           .attrs = attrs,
           .operands = operands,
           .expected =
               [conv, w](const Tensors& g) { return Tensors{gradients(conv, {g[0], w}, g[1])[1]}; },
           .tolerance = 1e-4,
           .accumulates = accumulates,
           .by_aten = true,
           .one_thread_bits = false});
    }
  }
}

// Rows over 3 devices (the last one's may be padding), columns over 2, each of `rows` x `columns`.
void add_random(std::vector<OpCase>& cases, int64_t rows, int64_t columns, int64_t global_rows,
                int64_t seed) {
  const cluster::Mesh mesh({{"dp", 3}, {"tp", 2}});
  const int64_t global_columns = 2 * columns - 1;  // and a column of padding
  for (const auto distribution :
       {ir::RandomAttrs::Distribution::kNormal, ir::RandomAttrs::Distribution::kUniform}) {
    for (int rank = 0; rank < 6; ++rank) {
      const ir::RandomAttrs attrs{distribution,
                                  0.5,
                                  0.02,
                                  "init/w",
                                  {global_rows, global_columns},
                                  {{{"dp"}, global_rows}, {{"tp"}, global_columns}}};
      cases.push_back(
          {.kind = OpKind::kRandom,
           .attrs = attrs,
           .operands = {scalar(seed)},
           .expected =
               [=](const Tensors&) {
                 at::Tensor y = at::zeros({rows, columns});
                 auto* element = y.data_ptr<float>();
                 const RngKey key{
                     .seed = static_cast<uint64_t>(seed), .step = 0, .site = rng_site("init/w")};
                 for (int64_t i = 0; i < rows; ++i) {
                   for (int64_t j = 0; j < columns; ++j, ++element) {
                     const int64_t row = rank / 2 * rows + i, column = rank % 2 * columns + j;
                     if (row >= global_rows || column >= global_columns) continue;
                     const auto index = static_cast<uint64_t>(row * global_columns + column);
                     const bool normal = distribution == ir::RandomAttrs::Distribution::kNormal;
                     *element = 0.5f + 0.02f * (normal ? random_normal(key, index)
                                                       : 2 * random_uniform(key, index) - 1);
                   }
                 }
                 return Tensors{y};
               },
           .declared = {ir::make_type(DType::kF32, {rows, columns})},
           .tolerance = 1e-6,
           .mesh = mesh,
           .rank = rank});
    }
  }
}

void add_random_scalar(std::vector<OpCase>& cases) {
  const RngKey key{.seed = 0, .step = 0, .site = rng_site("init/s")};
  cases.push_back(
      {.kind = OpKind::kRandom,
       .attrs = ir::RandomAttrs{ir::RandomAttrs::Distribution::kUniform, 1, 2, "init/s", {}, {}},
       .operands = {},
       .expected =
           [=](const Tensors&) {
             return Tensors{at::scalar_tensor(1 + 2 * (2 * random_uniform(key, 0) - 1))};
           },
       .declared = {ir::make_type(DType::kF32, {})},
       .tolerance = 1e-6});
}

// Enough elements that two threads have parts.
void add_large(std::vector<OpCase>& cases) {
  const at::Tensor x = random_tensor({300, 131}), y = random_tensor({300, 131}, 2);
  cases.push_back({.kind = OpKind::kCompare,
                   .attrs = ir::CompareAttrs{ir::CompareAttrs::Direction::kLt},
                   .operands = {x, y},
                   .expected = [](const Tensors& x) { return Tensors{x[0] < x[1]}; }});
  cases.push_back({.kind = OpKind::kConvert,
                   .attrs = ir::NoAttrs{},
                   .operands = {x},
                   .expected = [](const Tensors& x) { return Tensors{x[0].to(at::kDouble)}; },
                   .declared = {ir::make_type(DType::kF64, {300, 131})}});
  cases.push_back({.kind = OpKind::kCopy,
                   .attrs = ir::NoAttrs{},
                   .operands = {x},
                   .expected = [](const Tensors& x) { return Tensors{x[0]}; }});
  cases.push_back({.kind = OpKind::kTranspose,
                   .attrs = ir::DimsAttrs{{1, 0}},
                   .operands = {x},
                   .expected = [](const Tensors& x) { return Tensors{x[0].t().contiguous()}; }});
  // Two contracted letters that do not fold, one of more than a chunk of gemm's.
  cases.push_back(
      {.kind = OpKind::kDot,
       .attrs = ir::DotAttrs{"asb", "bsc", "ac"},
       .operands = {random_tensor({40, 3, 300}), random_tensor({300, 3, 50}, 2)},
       .expected =
           [](const Tensors& x) { return Tensors{at::einsum("asb,bsc->ac", {x[0], x[1]})}; },
       .tolerance = 5e-5});
  // Two runs of dimensions are summed behind one that is larger than what they leave.
  cases.push_back({.kind = OpKind::kReduce,
                   .attrs = ir::ReduceAttrs{ir::Reduction::kSum, {0, 2, 4}},
                   .operands = {random_tensor({3, 5, 2, 11, 7})},
                   .expected = [](const Tensors& x) { return Tensors{x[0].sum({0, 2, 4})}; }});
}

}  // namespace

std::vector<OpCase> primitive_cases() {
  std::vector<OpCase> cases;
  add_unary(cases);
  add_binary(cases);
  add_other_elementwise(cases);
  add_other_numbers(cases);
  add_comparisons(cases);
  add_shapes(cases);
  add_reductions(cases);
  add_products(cases);
  add_convolutions(cases);
  add_random(cases, 2, 4, 5, 11);
  add_random(cases, 64, 512, 100, (int64_t{3} << 32) + 11);
  add_random_scalar(cases);
  add_large(cases);
  return cases;
}

}  // namespace mw::runtime
