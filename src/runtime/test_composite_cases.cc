// Composites: activations, norms, rope, attention. Gradients are checked against autograd.
#include <cmath>

#include "base/rng.h"
#include "ops/random_index.h"
#include "runtime/test_op_case.h"

namespace mw::runtime {
namespace {

using ir::OpKind;
using Function = std::function<at::Tensor(const Tensors&)>;

void add_gelu(std::vector<OpCase>& cases, const at::Tensor& x, const at::Tensor& dy,
              const at::Tensor& bias) {
  for (const bool tanh : {false, true}) {
    const Function gelu = [tanh](const Tensors& x) {
      return at::gelu(x[0], tanh ? "tanh" : "none");
    };
    const Function bias_gelu = [gelu](const Tensors& x) { return gelu({x[0] + x[1]}); };
    const ir::GeluAttrs attrs{tanh};
    cases.push_back(
        {.kind = OpKind::kGelu, .attrs = attrs, .operands = {x}, .expected = [=](const Tensors& x) {
           return Tensors{gelu(x)};
         }});
    cases.push_back({.kind = OpKind::kGeluGrad,
                     .attrs = attrs,
                     .operands = {dy, x},
                     .expected = [=](const Tensors& g) { return gradients(gelu, {g[1]}, g[0]); }});
    cases.push_back({.kind = OpKind::kBiasGelu,
                     .attrs = attrs,
                     .operands = {x, bias},
                     .expected = [=](const Tensors& x) { return Tensors{bias_gelu(x)}; }});
    cases.push_back({.kind = OpKind::kGeluGrad,
                     .attrs = attrs,
                     .operands = {dy, x, bias},
                     .expected = [=](const Tensors& g) {
                       return Tensors{gradients(bias_gelu, {g[1], g[2]}, g[0])[0]};
                     }});
  }
}

void add_activations(std::vector<OpCase>& cases) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{3, 7}, {2, 5, 33}, {129, 515}}) {
    const at::Tensor x = 3 * random_tensor(shape), dy = random_tensor(shape, 2),
                     up = random_tensor(shape, 3);
    const at::Tensor bias = random_tensor({shape.back()}, 4);
    cases.push_back({.kind = OpKind::kBiasAdd,
                     .attrs = ir::NoAttrs{},
                     .operands = {x, bias},
                     .expected = [](const Tensors& x) { return Tensors{x[0] + x[1]}; }});
    add_gelu(cases, x, dy, bias);
    const Function silu = [](const Tensors& x) { return at::silu(x[0]); };
    const Function swiglu = [](const Tensors& x) { return at::silu(x[0]) * x[1]; };
    const Function softmax = [](const Tensors& x) { return at::softmax(x[0], -1); };
    cases.push_back({.kind = OpKind::kSilu,
                     .attrs = ir::NoAttrs{},
                     .operands = {x},
                     .expected = [=](const Tensors& x) { return Tensors{silu(x)}; }});
    cases.push_back({.kind = OpKind::kSiluGrad,
                     .attrs = ir::NoAttrs{},
                     .operands = {dy, x},
                     .expected = [=](const Tensors& g) { return gradients(silu, {g[1]}, g[0]); }});
    cases.push_back({.kind = OpKind::kSwiglu,
                     .attrs = ir::NoAttrs{},
                     .operands = {x, up},
                     .expected = [=](const Tensors& x) { return Tensors{swiglu(x)}; }});
    cases.push_back(
        {.kind = OpKind::kSwigluGrad,
         .attrs = ir::NoAttrs{},
         .operands = {dy, x, up},
         .expected = [=](const Tensors& g) { return gradients(swiglu, {g[1], g[2]}, g[0]); }});
    cases.push_back({.kind = OpKind::kSoftmax,
                     .attrs = ir::NoAttrs{},
                     .operands = {x},
                     .expected = [=](const Tensors& x) { return Tensors{softmax(x)}; }});
    cases.push_back({.kind = OpKind::kSoftmaxGrad,
                     .attrs = ir::NoAttrs{},
                     .operands = {dy, softmax({x})},
                     .expected = [=](const Tensors& g) { return gradients(softmax, {x}, g[0]); }});
  }
}

void add_norms(std::vector<OpCase>& cases) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{2, 3, 8}, {5, 33}, {3, 67, 384}}) {
    const int64_t D = shape.back();
    const at::Tensor x = random_tensor(shape) + 0.3, dy = random_tensor(shape, 2);
    const at::Tensor gamma = random_tensor({D}, 3), beta = random_tensor({D}, 4);
    const ir::NormAttrs attrs{1e-5};
    const at::Tensor mean = x.mean(-1), rstd = (x.var(-1, false) + 1e-5).rsqrt();
    const at::Tensor rms = (x.square().mean(-1) + 1e-5).rsqrt();
    const Function layer_norm = [D](const Tensors& x) {
      return at::layer_norm(x[0], {D}, x[1], x[2], 1e-5);
    };
    const Function rms_norm = [](const Tensors& x) {
      return x[0] * (x[0].square().mean(-1, true) + 1e-5).rsqrt() * x[1];
    };
    cases.push_back(
        {.kind = OpKind::kLayerNorm,
         .attrs = attrs,
         .operands = {x, gamma, beta},
         .expected = [=](const Tensors& x) { return Tensors{layer_norm(x), mean, rstd}; }});
    cases.push_back({.kind = OpKind::kLayerNormInputGrad,
                     .attrs = ir::NoAttrs{},
                     .operands = {dy, x, gamma, mean, rstd},
                     .expected = [=](const Tensors& g) {
                       return Tensors{gradients(layer_norm, {x, gamma, beta}, g[0])[0]};
                     }});
    cases.push_back({.kind = OpKind::kLayerNormWeightGrad,
                     .attrs = ir::NoAttrs{},
                     .operands = {dy, x, mean, rstd},
                     .expected =
                         [=](const Tensors& g) {
                           const Tensors all = gradients(layer_norm, {x, gamma, beta}, g[0]);
                           return Tensors{all[1], all[2]};
                         },
                     .tolerance = 5e-5});
    cases.push_back({.kind = OpKind::kRmsNorm,
                     .attrs = attrs,
                     .operands = {x, gamma},
                     .expected = [=](const Tensors& x) { return Tensors{rms_norm(x), rms}; }});
    cases.push_back({.kind = OpKind::kRmsNormInputGrad,
                     .attrs = ir::NoAttrs{},
                     .operands = {dy, x, gamma, rms},
                     .expected = [=](const Tensors& g) {
                       return Tensors{gradients(rms_norm, {x, gamma}, g[0])[0]};
                     }});
    for (const bool accumulates : {false, true}) {
      Tensors operands = {dy, x, rms};
      if (accumulates) operands.push_back(random_tensor({D}, 5));
      cases.push_back(
          {.kind = OpKind::kRmsNormWeightGrad,
           .attrs = ir::NoAttrs{},
           .operands = operands,
           .expected =
               [=](const Tensors& g) { return Tensors{gradients(rms_norm, {x, gamma}, g[0])[1]}; },
           .tolerance = 5e-5,
           .accumulates = accumulates});
    }
  }
}

// Element i of the first half turns with element i of the second.
at::Tensor turned(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const Tensors halves = x.chunk(2, -1);
  const at::Tensor c = cos.unsqueeze(2), s = sin.unsqueeze(2);
  return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1);
}

void add_rope(std::vector<OpCase>& cases) {
  for (const int64_t D : {2, 6, 64}) {
    const at::Tensor positions = random_ints({2, 100}, 3000);
    const at::Tensor frequencies =
        at::pow(10000.0, -at::arange(0, D, 2, at::kDouble) / static_cast<double>(D));
    const at::Tensor angles = positions.to(at::kDouble).unsqueeze(-1) * frequencies;
    const at::Tensor cos = angles.cos().to(at::kFloat), sin = angles.sin().to(at::kFloat);
    cases.push_back({.kind = OpKind::kRopeTable,
                     .attrs = ir::RopeAttrs{10000, D, {}},
                     .operands = {positions},
                     .expected = [=](const Tensors&) { return Tensors{cos, sin}; },
                     .tolerance = 5e-4});  // fp32 angles
    const at::Tensor x = random_tensor({2, 100, 3, D}), dy = random_tensor({2, 100, 3, D}, 2);
    const Function rope = [=](const Tensors& x) { return turned(x[0], cos, sin); };
    cases.push_back({.kind = OpKind::kRope,
                     .attrs = ir::NoAttrs{},
                     .operands = {x, cos, sin},
                     .expected = [=](const Tensors& x) { return Tensors{rope(x)}; }});
    cases.push_back({.kind = OpKind::kRopeGrad,
                     .attrs = ir::NoAttrs{},
                     .operands = {dy, cos, sin},
                     .expected = [=](const Tensors& g) { return gradients(rope, {x}, g[0]); }});
  }
}

struct AttentionCase {
  int64_t B, S, H, K, D;
  bool causal;
  double dropout = 0;
  cluster::Mesh mesh = {};
  int rank = 0;
  int64_t before = 0;       // keys in front of the first query
  int64_t behind = 0;       // keys behind the last query
  bool of_queries = false;  // the mesh divides the queries, not the heads
  int64_t T() const { return before + S + behind; }
  int64_t first_head() const { return of_queries ? 0 : rank * H; }
};

constexpr double kScale = 0.21;

// 1 / (1 - rate) where the probability survives, else 0: [B, H, S, T].
at::Tensor dropout_mask(const AttentionCase& t, const ir::AttentionAttrs& attrs,
                        const at::Tensor& positions) {
  at::Tensor mask = at::zeros({t.B, t.H, t.S, t.T()});
  const RngKey key{.seed = 5, .step = 9, .site = rng_site(attrs.site)};
  const auto threshold = static_cast<uint32_t>(std::ceil(t.dropout * 0x1p32));
  const int64_t heads = attrs.heads.axes.empty() ? t.H : attrs.heads.global_size;
  for (int64_t b = 0; b < t.B; ++b) {
    for (int64_t h = 0; h < t.H; ++h) {
      for (int64_t q = 0; q < t.S; ++q) {
        for (int64_t k = 0; k < t.T(); ++k) {
          const uint64_t index = ops::attention_dropout_index(
              100 + b, t.first_head() + h, heads, positions[b][t.before + q].item<int>(),
              positions[b][k].item<int>());
          if (random_u32(key, index) >= threshold) mask[b][h][q][k] = 1 / (1 - t.dropout);
        }
      }
    }
  }
  return mask;
}

// q_BSHD, k_BTKD, v_BTKD -> scores [B, H, S, T], masked.
at::Tensor scores(const AttentionCase& t, const Tensors& qkv, const at::Tensor& positions) {
  const at::Tensor k = qkv[1].repeat_interleave(t.H / t.K, 2);
  at::Tensor s = at::einsum("bqhd,bkhd->bhqk", {qkv[0], k}) * kScale;
  if (!t.causal) return s;
  const at::Tensor hidden = positions.unsqueeze(1).unsqueeze(2) >
                            positions.narrow(1, t.before, t.S).unsqueeze(1).unsqueeze(3);
  return s.masked_fill(hidden, -INFINITY);
}

void add_attention_case(std::vector<OpCase>& cases, const AttentionCase& t, bool packed) {
  ir::AttentionAttrs attrs{.scale = kScale,
                           .causal = t.causal,
                           .packed = packed,
                           .dropout = t.dropout,
                           .site = "h.0.attn",
                           .heads = {},
                           .queries = {}};
  if (t.mesh.size() > 1 && t.of_queries) attrs.queries = {{"cp"}, t.S * t.mesh.size()};
  if (t.mesh.size() > 1 && !t.of_queries) attrs.heads = {{"tp"}, t.H * t.mesh.size()};
  // Positions in any order: the mask is by value.
  const at::Tensor positions =
      at::cat({at::arange(t.T(), at::kInt).unsqueeze(0).expand({1, t.T()}),
               at::arange(t.T(), at::kInt).flip(0).unsqueeze(0).expand({t.B - 1, t.T()})});
  const at::Tensor mask = t.dropout > 0 ? dropout_mask(t, attrs, positions) : at::Tensor();
  const Function out = [=](const Tensors& qkv) {
    at::Tensor p = at::softmax(scores(t, qkv, positions), -1);
    if (mask.defined()) p = p * mask;
    return at::einsum("bhqk,bkhd->bqhd", {p, qkv[2].repeat_interleave(t.H / t.K, 2)});
  };
  const Tensors qkv = {random_tensor({t.B, t.S, t.H, t.D}),
                       random_tensor({t.B, t.T(), t.K, t.D}, 2),
                       random_tensor({t.B, t.T(), t.K, t.D}, 3)};
  const at::Tensor dy = random_tensor({t.B, t.S, t.H, t.D}, 4);
  const at::Tensor y = out(qkv), lse = at::logsumexp(scores(t, qkv, positions), {-1});
  const Tensors inputs = packed ? Tensors{at::stack(qkv, 2)} : qkv;
  Tensors tail = {positions};
  if (t.dropout > 0) {
    tail.insert(tail.end(), {scalar(5), scalar(9), at::arange(100, 100 + t.B, at::kLong)});
  }
  OpCase forward{.kind = OpKind::kAttention,
                 .attrs = attrs,
                 .operands = inputs,
                 .expected = [=](const Tensors&) { return Tensors{y, lse}; },
                 .tolerance = 2e-5,
                 .mesh = t.mesh,
                 .rank = t.rank};
  forward.operands.insert(forward.operands.end(), tail.begin(), tail.end());
  OpCase backward{.kind = OpKind::kAttentionGrad,
                  .attrs = attrs,
                  .operands = {dy},
                  .expected =
                      [=](const Tensors&) {
                        const Tensors grads = gradients(out, qkv, dy);
                        return packed ? Tensors{at::stack(grads, 2)} : grads;
                      },
                  .tolerance = 5e-5,
                  .mesh = t.mesh,
                  .rank = t.rank};
  for (const Tensors& part : {inputs, Tensors{y, lse}, tail}) {
    backward.operands.insert(backward.operands.end(), part.begin(), part.end());
  }
  cases.push_back(std::move(forward));
  cases.push_back(std::move(backward));
}

void add_attention(std::vector<OpCase>& cases) {
  const cluster::Mesh tp({{"tp", 2}});
  for (const AttentionCase& t : std::vector<AttentionCase>{{2, 7, 3, 3, 5, true},
                                                           {1, 65, 2, 2, 16, true},
                                                           {2, 33, 4, 4, 8, false},
                                                           {2, 6, 2, 2, 4, true, 0.3},
                                                           {2, 5, 2, 2, 4, true, 0.5, tp, 1}}) {
    add_attention_case(cases, t, true);
    add_attention_case(cases, t, false);
  }
  add_attention_case(cases, {2, 19, 6, 2, 8, true}, false);
  // Heads that take so long that threads work at once.
  add_attention_case(cases, {1, 200, 4, 4, 32, true}, false);
  add_attention_case(cases, {1, 8, 4, 1, 4, true, 0.25}, false);
  add_attention_case(cases, {2, 9, 4, 2, 8, true, 0, {}, 0, 13}, false);
  add_attention_case(cases, {2, 5, 2, 2, 4, true, 0.3, {}, 0, 10}, false);
  const cluster::Mesh cp({{"cp", 3}});
  for (const int rank : {0, 1, 2}) {
    for (const double dropout : {0.0, 0.3}) {
      add_attention_case(
          cases, {2, 5, 2, 2, 4, true, dropout, cp, rank, 5 * rank, 10 - 5 * rank, true}, false);
    }
  }
}

}  // namespace

std::vector<OpCase> composite_cases() {
  std::vector<OpCase> cases;
  add_activations(cases);
  add_norms(cases);
  add_rope(cases);
  add_attention(cases);
  return cases;
}

}  // namespace mw::runtime
