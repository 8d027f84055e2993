#include "runtime/dot_plan.h"

#include <doctest/doctest.h>

namespace mw::runtime {
namespace {

ir::TensorType f32(const std::vector<int64_t>& sizes) { return ir::make_type(DType::kF32, sizes); }

TEST_CASE("the products of a transformer and their gradients are one gemm call each") {
  struct Case {
    ir::DotAttrs spec;
    std::vector<int64_t> lhs, rhs, out;
    int64_t m, n, k;
  };
  const std::vector<Case> cases = {
      {{"bsk", "nk", "bsn"}, {2, 3, 5}, {7, 5}, {2, 3, 7}, 6, 7, 5},
      {{"bsn", "nk", "bsk"}, {2, 3, 7}, {7, 5}, {2, 3, 5}, 6, 5, 7},
      {{"bsn", "bsk", "nk"}, {2, 3, 7}, {2, 3, 5}, {7, 5}, 7, 5, 6},
      {{"bsd", "chkd", "bschk"}, {2, 4, 5}, {3, 2, 6, 5}, {2, 4, 3, 2, 6}, 8, 36, 5},
      {{"bschk", "chkd", "bsd"}, {2, 4, 3, 2, 6}, {3, 2, 6, 5}, {2, 4, 5}, 8, 5, 36},
      {{"bschk", "bsd", "chkd"}, {2, 4, 3, 2, 6}, {2, 4, 5}, {3, 2, 6, 5}, 36, 5, 8},
      {{"bshk", "dhk", "bsd"}, {2, 4, 3, 6}, {5, 3, 6}, {2, 4, 5}, 8, 5, 18},
      {{"bsd", "bshk", "dhk"}, {2, 4, 5}, {2, 4, 3, 6}, {5, 3, 6}, 5, 18, 8}};
  for (const Case& c : cases) {
    CAPTURE(c.spec.lhs + "," + c.spec.rhs + "->" + c.spec.out);
    const auto plan = plan_dot(c.spec, f32(c.lhs), f32(c.rhs), f32(c.out));
    REQUIRE(plan);
    CHECK(plan->loops.empty());
    CHECK_FALSE(plan->swapped);
    CHECK(plan->m == c.m);
    CHECK(plan->n == c.n);
    CHECK(plan->k == c.k);
  }
}

TEST_CASE("letters that do not fold become loops around the largest product") {
  const auto plan =
      plan_dot({"bshd", "bthd", "bhst"}, f32({2, 9, 3, 4}), f32({2, 8, 3, 4}), f32({2, 3, 9, 8}));
  REQUIRE(plan);
  CHECK(plan->products() == 6);
  CHECK(plan->m == 9);
  CHECK(plan->n == 8);
  CHECK(plan->k == 4);
  CHECK(plan->lda == 12);
  CHECK(plan->b_transposed);
  const auto summed = plan_dot({"asb", "bsc", "ac"}, f32({4, 3, 7}), f32({7, 3, 5}), f32({4, 5}));
  REQUIRE(summed);
  CHECK(summed->k == 7);
  CHECK(summed->products() == 3);
}

TEST_CASE(
    "a letter twice in an operand, or of one operand alone and summed, is no matrix product") {
  CHECK_FALSE(plan_dot({"aa", "ab", "b"}, f32({3, 3}), f32({3, 2}), f32({2})));
  CHECK_FALSE(plan_dot({"ab", "b", ""}, f32({3, 2}), f32({2}), f32({})));
}

}  // namespace
}  // namespace mw::runtime
