// The ops on flat groups: views, assembly, the global norm, AdamW.
#include <cmath>

#include "ops/update_ops.h"
#include "runtime/test_op_case.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

constexpr int64_t kBlock = ops::kNormBlock;

// Two groups over a module of 4 parameters, each split over two devices (dp) of {dp:2, tp:2}:
//   group 0: 4 blocks: parameter 2 in [0, 600), parameter 0 (no decay) in [768, 1000)
//   group 1: 2 blocks: parameter 3 in [0, 300), counted where tp is 0 alone
ir::FlatAttrs flat_attrs() {
  ir::FlatAttrs attrs;
  attrs.groups = {
      {{.begin = 0, .end = 600, .parameter = 2, .counted_at_origin_of = {}},
       {.begin = 768, .end = 1000, .parameter = 0, .decay = false, .counted_at_origin_of = {}}},
      {{.begin = 0, .end = 300, .parameter = 3, .counted_at_origin_of = {"tp"}}}};
  attrs.group_elements = {4 * kBlock, 2 * kBlock};
  attrs.shard_axes = {"dp"};
  attrs.parameters = 4;
  attrs.weight_decay = 0.1;
  attrs.max_norm = 1;
  return attrs;
}

cluster::Mesh mesh() { return cluster::Mesh({{"dp", 2}, {"tp", 2}}); }

// A flat group with zeros where no parameter is.
at::Tensor flat_group(const std::vector<ir::Segment>& segments, int64_t elements, uint64_t seed) {
  const at::Tensor x = random_tensor({elements}, seed);
  at::Tensor kept = at::zeros({elements});
  for (const ir::Segment& s : segments) kept.slice(0, s.begin, s.end).fill_(1);
  return x * kept;
}

// Sums of squares by norm block.
at::Tensor block_sums(const at::Tensor& g) {
  return g.to(at::kDouble).square().view({-1, kBlock}).sum(1);
}

void add_large_norm(std::vector<OpCase>& cases) {
  ir::FlatAttrs attrs = flat_attrs();
  // More blocks than one thread's share, of which a part counts.
  attrs.groups = {
      {{.begin = 0, .end = 300 * kBlock - 7, .parameter = 0, .counted_at_origin_of = {}},
       {.begin = 300 * kBlock,
        .end = 302 * kBlock,
        .parameter = 1,
        .counts = false,
        .counted_at_origin_of = {}}}};
  attrs.group_elements = {302 * kBlock};
  attrs.shard_axes = {};
  cases.push_back({.kind = OpKind::kNormBlocks,
                   .attrs = attrs,
                   .operands = {flat_group(attrs.groups[0], 302 * kBlock, 4)},
                   .expected =
                       [](const Tensors& g) {
                         at::Tensor blocks = block_sums(g[0]);
                         blocks.slice(0, 300, 302).zero_();
                         return Tensors{blocks};
                       },
                   .tolerance = 1e-12,
                   .mesh = mesh()});
}

void add_norm(std::vector<OpCase>& cases) {
  const ir::FlatAttrs attrs = flat_attrs();
  const at::Tensor g0 = flat_group(attrs.groups[0], 4 * kBlock, 1),
                   g1 = flat_group(attrs.groups[1], 2 * kBlock, 2);
  for (int rank = 0; rank < 4; ++rank) {
    const int dp = rank / 2, tp = rank % 2;
    cases.push_back(
        {.kind = OpKind::kNormBlocks,
         .attrs = attrs,
         .operands = {g0.chunk(2)[static_cast<size_t>(dp)], g1.chunk(2)[static_cast<size_t>(dp)]},
         .expected =
             [=](const Tensors& g) {
               return Tensors{at::cat({block_sums(g[0]), block_sums(g[1]) * (tp == 0)})};
             },
         .tolerance = 1e-12,
         .mesh = mesh(),
         .rank = rank});
  }
  // As gathered: blocks 0, 1 of group 0 and 0 of group 1, then the second shard's.
  const at::Tensor blocks = random_tensor({6}, 3).to(at::kDouble).abs();
  for (const int rank : {0, 2}) {  // at the origin of dp, which splits the groups, and not
    ir::FlatAttrs at_origin = attrs;
    at_origin.groups[1][0].counted_at_origin_of = {"dp"};
    cases.push_back({.kind = OpKind::kNormParameters,
                     .attrs = at_origin,
                     .operands = {blocks},
                     .expected =
                         [rank](const Tensors& x) {
                           const at::Tensor& b = x[0];
                           return Tensors{
                               at::stack({b[4], at::zeros({}, at::kDouble), b[0] + b[1] + b[3],
                                          (b[2] + b[5]) * (rank == 0)})};
                         },
                     .tolerance = 1e-14,
                     .mesh = mesh(),
                     .rank = rank});
  }
}

void add_clip(std::vector<OpCase>& cases) {
  const at::Tensor blocks = random_tensor({6}, 3).to(at::kDouble).abs();
  for (const double max_norm : {0.0, 0.7, 100.0}) {
    ir::FlatAttrs clip = flat_attrs();
    clip.max_norm = max_norm;
    cases.push_back({.kind = OpKind::kClip,
                     .attrs = clip,
                     .operands = {blocks.slice(0, 0, 4)},
                     .expected =
                         [max_norm](const Tensors& x) {
                           const double norm = std::sqrt(x[0].sum().item<double>());
                           const double scale =
                               max_norm > 0 && norm > max_norm ? max_norm / (norm + 1e-6) : 1;
                           return Tensors{at::scalar_tensor(norm), at::scalar_tensor(scale)};
                         },
                     .tolerance = 1e-7});
    // Of three ranks' squares and losses.
    cases.push_back(
        {.kind = OpKind::kValidate,
         .attrs = clip,
         .operands = {blocks.slice(0, 0, 4), blocks.slice(0, 2, 6), blocks.slice(0, 1, 5),
                      at::scalar_tensor(2.5F), at::scalar_tensor(0.25F), at::scalar_tensor(8.0F)},
         .expected =
             [max_norm](const Tensors& x) {
               const auto scale = [max_norm](double norm) {
                 return max_norm > 0 && norm > max_norm ? max_norm / (norm + 1e-6) : 1;
               };
               const double norm = std::sqrt((x[0] + x[1] + x[2]).sum().item<double>());
               bool amended = false;
               for (const size_t r : {0, 1, 2})
                 amended = amended || scale(std::sqrt(x[r].sum().item<double>())) != scale(norm);
               return Tensors{at::scalar_tensor(norm), at::scalar_tensor(scale(norm)),
                              at::scalar_tensor(amended ? 1.0 : 0.0), at::scalar_tensor(10.75)};
             },
         .tolerance = 1e-7});
  }
}

// A shard's step in double from weight, grad, m and v.
Tensors stepped(const ir::FlatAttrs& attrs, int dp, const at::Tensor& weight,
                const at::Tensor& grad, const at::Tensor& m_old, const at::Tensor& v_old,
                double scale, int64_t step) {
  at::Tensor decay = at::zeros({attrs.group_elements[0]}, at::kDouble);
  for (const ir::Segment& s : attrs.groups[0])
    decay.slice(0, s.begin, s.end).fill_(s.decay ? attrs.weight_decay : 0);
  decay = decay.chunk(2)[static_cast<size_t>(dp)];
  const double rate = 0.01f, n = static_cast<double>(step);
  const at::Tensor g = grad.to(at::kDouble) * scale, m = 0.9 * m_old.to(at::kDouble) + 0.1 * g,
                   v = 0.999 * v_old.to(at::kDouble) + 0.001 * g * g;
  const at::Tensor denominator = (v / (1 - std::pow(0.999, n))).sqrt() + 1e-8;
  const at::Tensor w =
      weight.to(at::kDouble) * (1 - rate * decay) - rate * m / (1 - std::pow(0.9, n)) / denominator;
  return {w.to(at::kFloat), m.to(at::kFloat), v.to(at::kFloat)};
}

void add_adamw(std::vector<OpCase>& cases) {
  ir::FlatAttrs small = flat_attrs(), large = small;
  for (ir::FlatAttrs* attrs : {&small, &large}) {
    attrs->groups.pop_back();
    attrs->group_elements.pop_back();
  }
  large.groups[0][1].end = 300 * kBlock - 7;  // more than one thread's share
  large.group_elements[0] = 300 * kBlock;
  const float nan = std::nanf("");
  for (const int dp : {0, 1}) {
    const auto shard = [dp](const ir::FlatAttrs& attrs, uint64_t seed) {
      return flat_group(attrs.groups[0], attrs.group_elements[0], seed)
          .chunk(2)[static_cast<size_t>(dp)];
    };
    const auto add = [&](const ir::FlatAttrs& attrs, int64_t step, float scale,
                         const Tensors& before, auto expected) {
      Tensors operands = {shard(attrs, 1),
                          shard(attrs, 2),
                          0.1 * shard(attrs, 3),
                          0.01 * shard(attrs, 4).square(),
                          at::scalar_tensor(scale),
                          at::scalar_tensor(0.01f),
                          scalar(step)};
      operands.insert(operands.end(), before.begin(), before.end());
      cases.push_back({.kind = OpKind::kAdamW,
                       .attrs = attrs,
                       .operands = operands,
                       .expected = expected,
                       .tolerance = 2e-6,
                       .mesh = mesh(),
                       .rank = 2 * dp});
    };
    for (const ir::FlatAttrs& attrs : {small, large}) {
      for (const int64_t step : {1, 17}) {
        add(attrs, step, 0.5f, {}, [=](const Tensors& x) {
          return stepped(attrs, dp, x[0], x[1], x[2], x[3], 0.5, step);
        });
      }
    }
    const auto as_they_are = [](const Tensors& x) { return Tensors{x[0], x[2], x[3]}; };
    add(small, 3, nan, {}, as_they_are);
    // A step that is amended: made with another scale than it should have been.
    const Tensors before = {shard(small, 5), shard(small, 6), shard(small, 7).square()};
    const auto with_used = [&](float used) {
      return Tensors{at::scalar_tensor(used), before[0], before[1], before[2]};
    };
    add(small, 3, 0.5f, with_used(0.5f), as_they_are);
    add(small, 3, nan, with_used(nan), as_they_are);
    add(small, 3, nan, with_used(0.5f),
        [](const Tensors& x) { return Tensors{x[8], x[9], x[10]}; });
    for (const float used : {0.25f, nan}) {
      add(small, 3, 0.5f, with_used(used), [small, dp](const Tensors& x) {
        return stepped(small, dp, x[8], x[1], x[9], x[10], 0.5, 3);
      });
    }
  }
}

}  // namespace

std::vector<OpCase> update_cases() {
  std::vector<OpCase> cases;
  cases.push_back(
      {.kind = OpKind::kView,
       .attrs = ir::ViewAttrs{5},
       .operands = {random_tensor({30})},
       .expected = [](const Tensors& x) { return Tensors{x[0].slice(0, 5, 17).view({3, 4})}; },
       .declared = {ir::make_type(DType::kF32, {3, 4})}});
  cases.push_back(
      {.kind = OpKind::kAssemble,
       .attrs = ir::AssembleAttrs{{2, 20}},
       .operands = {random_tensor({30}), random_tensor({3, 4}, 2), random_tensor({7}, 3)},
       .expected = [](const Tensors& x) {
         at::Tensor y = x[0].clone();
         y.slice(0, 2, 14).copy_(x[1].flatten());
         y.slice(0, 20, 27).copy_(x[2]);
         return Tensors{y};
       }});
  add_norm(cases);
  add_large_norm(cases);
  add_clip(cases);
  add_adamw(cases);
  return cases;
}

}  // namespace mw::runtime
