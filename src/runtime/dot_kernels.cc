// Matrix products through the BLAS that libtorch exports.
#include "runtime/dot_plan.h"
#include "runtime/kernel_table.h"

// BLAS in Fortran's convention: column-major, everything by address.
extern "C" void sgemm_(const char* transa, const char* transb, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta, float* c, const int* ldc);

namespace mw::runtime {
namespace {

// c_mn = a b + beta c in row-major order, which is c' = b' a' in column-major.
void product(const DotPlan& plan, const float* a, const float* b, float* c, float beta) {
  const char a_mark = plan.a_transposed ? 'T' : 'N', b_mark = plan.b_transposed ? 'T' : 'N';
  const auto m = static_cast<int>(plan.m), n = static_cast<int>(plan.n),
             k = static_cast<int>(plan.k);
  const auto lda = static_cast<int>(plan.lda), ldb = static_cast<int>(plan.ldb),
             ldc = static_cast<int>(plan.ldc);
  const float one = 1;
  sgemm_(&b_mark, &a_mark, &n, &m, &k, &one, b, &ldb, a, &lda, &beta, c, &ldc);
}

void run_loops(const DotPlan& plan, size_t loop, const float* a, const float* b, float* c,
               float beta) {
  if (loop == plan.loops.size()) return product(plan, a, b, c, beta);
  const DotPlan::Loop& l = plan.loops[loop];
  for (int64_t i = 0; i < l.size; ++i) {
    run_loops(plan, loop + 1, a + i * l.a, b + i * l.b, c + i * l.c,
              l.contracted && i > 0 ? 1 : beta);
  }
}

Prepared prepare_dot(const OpContext& c) {
  if (!c.all_are(DType::kF32)) return nullptr;
  const auto plan = plan_dot(c.op.as<ir::DotAttrs>(), c.operand(0), c.operand(1), c.result());
  if (!plan) return nullptr;
  return make_kernel([plan = *plan, accumulates = c.op.accumulates,
                      bytes = c.result().bytes().value](const Args& a) {
    if (accumulates) bring(a.out(), a.in(2), bytes);
    const float* lhs = a.in(plan.swapped ? 1 : 0);
    const float* rhs = a.in(plan.swapped ? 0 : 1);
    run_loops(plan, 0, lhs, rhs, a.out(), accumulates ? 1 : 0);
  });
}

}  // namespace

void register_products(KernelTable& table) { table.add(ir::OpKind::kDot, prepare_dot); }

}  // namespace mw::runtime
