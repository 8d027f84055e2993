#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "ops/op_def.h"
#include "runtime/cpu_backend.h"
#include "runtime/test_op_case.h"

namespace mw::runtime {
namespace {

std::vector<OpCase> all_cases() {
  std::vector<OpCase> all;
  for (const auto& cases : {primitive_cases, composite_cases, token_cases, update_cases}) {
    for (OpCase& c : cases()) all.push_back(std::move(c));
  }
  return all;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

// The largest |a - b| - tolerance * |b| over the elements, at most `tolerance` where they agree.
double distance(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.sizes() != b.sizes()) return 1e30;
  if (a.numel() == 0) return 0;
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  if (!at::isfinite(y).all().item<bool>()) return at::equal(x, y) ? 0 : 1e30;
  const double worst = ((x - y).abs() - tolerance * y.abs()).max().item<double>();
  return std::isnan(worst) ? 1e30 : worst;
}

// What the interpreter leaves out: rounding to bf16, truncation of an integer quotient, zeros where
// a shard of random numbers is padded.
bool is_approximate(const OpCase& c) {
  if (c.kind == ir::OpKind::kRandom) return c.expected({})[0].eq(0).any().item<bool>();
  if (c.kind == ir::OpKind::kDiv && !c.operands[0].is_floating_point()) return true;
  return std::any_of(c.operands.begin(), c.operands.end(),
                     [](const at::Tensor& x) { return x.element_size() == 2; }) ||
         (!c.declared.empty() && c.declared[0].dtype == DType::kBF16);
}

TEST_CASE(
    "every op gives what ATen and the reference interpreter give, the same bits in place and on "
    "any number of threads") {
  for (const OpCase& c : all_cases()) {
    std::string types;
    for (const at::Tensor& x : c.operands) types += ir::to_string(type_of(x)) + " ";
    CAPTURE(ir::op_name(c.kind));
    CAPTURE(ir::to_string(c.attrs));
    CAPTURE(types);
    Tensors expected = c.expected(c.operands);
    if (c.accumulates) expected[0] = expected[0] + c.operands.back();
    const Tensors results = run_case(c, 1, false), reference = interpret_case(c);
    REQUIRE(results.size() == expected.size());
    const Tensors two_threads = run_case(c, 2, false), in_place = run_case(c, 1, true);
    for (size_t r = 0; r < results.size(); ++r) {
      CAPTURE(r);
      CHECK(distance(results[r], expected[r], c.tolerance) <= c.tolerance);
      if (!is_approximate(c)) CHECK(distance(results[r], reference[r], c.tolerance) <= c.tolerance);
      if (c.one_thread_bits) CHECK(same_bits(results[r], two_threads[r]));
      CHECK(same_bits(results[r], in_place[r]));
    }
  }
}

TEST_CASE("what accumulates has the bits of the op and a sum") {
  int seen = 0;
  for (OpCase c : all_cases()) {
    if (!c.accumulates) continue;
    CAPTURE(ir::op_name(c.kind));
    CAPTURE(ir::to_string(c.attrs));
    ++seen;
    const Tensors sum = run_case(c, 1, true);
    const at::Tensor accumulator = c.operands.back();
    c.accumulates = false;
    c.operands.pop_back();
    CHECK(same_bits(sum[0], accumulator + run_case(c, 1, true)[0]));
  }
  CHECK(seen > 20);
}

TEST_CASE("every op that is no collective has a case") {
  std::set<ir::OpKind> seen;
  for (const OpCase& c : all_cases()) seen.insert(c.kind);
  for (int k = 0; k < ir::kOpKinds; ++k) {
    const auto kind = static_cast<ir::OpKind>(k);
    CAPTURE(ir::op_name(kind));
    // The ops of a mixture of experts have no kernels: they are only simulated.
    if (kind >= ir::OpKind::kMoeTopK && kind <= ir::OpKind::kMoeGateGrad) continue;
    CHECK((ir::is_collective(kind) || seen.count(kind) == 1));
  }
}

TEST_CASE("an op without a kernel for its types says so") {
  OpCase c{.kind = ir::OpKind::kGelu,
           .attrs = ir::GeluAttrs{},
           .operands = {random_tensor({3}).to(at::kDouble)},
           .expected = {}};
  CHECK_THROWS_WITH_AS(run_case(c, 1, false),
                       "op gelu on f64[3]: the CPU backend has no kernel for these types; it "
                       "computes composites in f32",
                       Error);
}

TEST_CASE("attention within a window, or with values of another size than keys, has no kernel") {
  for (const bool window : {false, true}) {
    ir::AttentionAttrs attrs;
    attrs.window = window ? 2 : 0;
    const at::Tensor q = random_tensor({1, 3, 2, 4}), v = random_tensor({1, 3, 2, window ? 4 : 6});
    OpCase c{.kind = ir::OpKind::kAttention,
             .attrs = attrs,
             .operands = {q, q, v, at::arange(3, at::kInt).unsqueeze(0)},
             .expected = {}};
    CHECK_THROWS_AS(run_case(c, 1, false), Error);
    const at::Tensor out = random_tensor({1, 3, 2, window ? 4 : 6}, 2);
    c.kind = ir::OpKind::kAttentionGrad;
    c.operands = {out, q, q, v, out, random_tensor({1, 2, 3}), c.operands.back()};
    CHECK_THROWS_AS(run_case(c, 1, false), Error);
  }
}

TEST_CASE("a norm that is not finite, of all or of one rank, makes the scale NaN") {
  const auto squares = [](double last) { return at::tensor({1.0, last}, at::kDouble); };
  const at::Tensor loss = at::scalar_tensor(0.5f);
  ir::FlatAttrs attrs;
  attrs.parameters = 2;
  for (const double max_norm : {0.0, 1.0}) {
    attrs.max_norm = max_norm;
    for (const double last : {std::nan(""), HUGE_VAL}) {
      const OpCase clip{ir::OpKind::kClip, attrs, {squares(last)}, {}};
      for (const Tensors& y : {run_case(clip, 1, false), interpret_case(clip)}) {
        CHECK_FALSE(std::isfinite(y[0].item<double>()));
        CHECK(std::isnan(y[1].item<double>()));
      }
      const auto amended = [&](double first, double second) {
        const OpCase c{ir::OpKind::kValidate, attrs, {squares(first), squares(second), loss}, {}};
        const Tensors y = run_case(c, 1, false), reference = interpret_case(c);
        CHECK(std::isnan(y[1].item<double>()));
        CHECK(std::isnan(reference[1].item<double>()));
        CHECK(y[2].item<double>() == reference[2].item<double>());
        return y[2].item<double>();
      };
      CHECK(amended(last, last) == 0);  // both ranks' own scales were NaN
      CHECK(amended(last, 4) == 1);
      CHECK(amended(4, last) == 1);
    }
  }
}

TEST_CASE("memory is zeroed and starts at a page") {
  CpuBackend backend;
  const auto memory = backend.allocate(Bytes(5000), {});
  const auto* data = static_cast<const char*>(memory.get());
  CHECK(reinterpret_cast<uintptr_t>(data) % 4096 == 0);
  CHECK(std::all_of(data, data + 5000, [](char c) { return c == 0; }));
}

}  // namespace
}  // namespace mw::runtime
