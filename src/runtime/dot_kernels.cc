// Matrix products: the loops of a DotPlan around the project's gemm().
#include "kernels/gemm.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/scratch.h"
#include "runtime/dot_plan.h"
#include "runtime/kernel_table.h"
#include "runtime/parallel.h"

namespace mw::runtime {
namespace {

// Multiply-adds that are worth a thread of their own.
constexpr int64_t kProductGrain = int64_t{1} << 18;
// Every part packs its operands for itself: fewer parts than other loops have.
constexpr int64_t kPartsPerThread = 2;

// A plan split into work items: one part of C of one turn of the loops that are not summed over.
// The summed ones run inside of an item, in their order, so that an element is one thread's sum;
// its parts wait in scratch where C accumulates, and are added to it as a whole.
class DotWork {
 public:
  DotWork(const DotPlan& plan, bool accumulates, int threads)
      : plan_(plan), accumulates_(accumulates) {
    for (const DotPlan::Loop& loop : plan.loops) {
      (loop.contracted ? summed_ : free_).push_back(loop);
      if (!loop.contracted) turns_ *= loop.size;
    }
    const int64_t products = plan.m * plan.n * plan.k;
    const int64_t wanted = threads == 1 ? 1 : threads * kPartsPerThread;
    const int64_t parts =
        turns_ >= wanted ? 1 : std::clamp<int64_t>(products / kProductGrain, 1, wanted);
    grid_ = kernels::gemm_grid(plan.m, plan.n, parts);
    grain_ = std::max<int64_t>(1, kProductGrain / std::max<int64_t>(1, products / grid_.parts()));
    waits_ = accumulates && !summed_.empty();
    const bool adds = accumulates || !summed_.empty();
    scratch_bytes_ = kernels::round_up(
        static_cast<int64_t>(kernels::gemm_scratch_bytes(plan.m, plan.n, plan.k, adds)), 64);
    if (waits_)
      scratch_bytes_ +=
          kernels::round_up(plan.m * plan.n * static_cast<int64_t>(sizeof(float)), 64);
  }

  int64_t items() const { return turns_ * grid_.parts(); }
  int64_t grain() const { return grain_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }  // of one thread

  void run(int64_t item, const float* a, const float* b, float* c, void* scratch) const {
    int64_t turn = item / grid_.parts();
    for (size_t l = free_.size(); l-- > 0;) {
      const DotPlan::Loop& loop = free_[l];
      const int64_t i = turn % loop.size;
      turn /= loop.size;
      a += i * loop.a;
      b += i * loop.b;
      c += i * loop.c;
    }
    const kernels::GemmPart part = grid_.part(item % grid_.parts());
    if (!waits_) return sum(0, part, a, b, {c, plan_.ldc}, accumulates_, scratch);
    auto* sums = static_cast<float*>(scratch);
    void* rest = sums + kernels::round_up(plan_.m * plan_.n, 16);
    sum(0, part, a, b, {sums, plan_.n}, false, rest);
    for (int64_t row = part.row_begin; row < part.row_end; ++row)
      kernels::accumulate(sums + row * plan_.n, c + row * plan_.ldc, part.column_begin,
                          part.column_end);
  }

 private:
  struct Target {
    float* data;
    int64_t stride;
  };

  void sum(size_t loop, const kernels::GemmPart& part, const float* a, const float* b, Target c,
           bool accumulates, void* scratch) const {
    if (loop == summed_.size()) {
      const kernels::Gemm gemm = {.M = plan_.m,
                                  .N = plan_.n,
                                  .K = plan_.k,
                                  .a = {a, plan_.lda, plan_.a_transposed},
                                  .b = {b, plan_.ldb, plan_.b_transposed},
                                  .c = c.data,
                                  .c_stride = c.stride,
                                  .accumulates = accumulates};
      return kernels::gemm(gemm, part, scratch);
    }
    const DotPlan::Loop& l = summed_[loop];
    for (int64_t i = 0; i < l.size; ++i)
      sum(loop + 1, part, a + i * l.a, b + i * l.b, c, accumulates || i > 0, scratch);
  }

  DotPlan plan_;
  bool accumulates_, waits_ = false;
  std::vector<DotPlan::Loop> free_, summed_;
  int64_t turns_ = 1, grain_ = 1, scratch_bytes_ = 0;
  kernels::GemmGrid grid_;
};

Prepared prepare_dot(const OpContext& c) {
  if (!c.all_are(DType::kF32)) return nullptr;
  const auto plan = plan_dot(c.op.as<ir::DotAttrs>(), c.operand(0), c.operand(1), c.result());
  if (!plan) return nullptr;
  const bool accumulates = c.op.accumulates;
  const DotWork work(*plan, accumulates, c.threads());
  return make_kernel(
      [work, accumulates, swapped = plan->swapped, threads = c.threads(),
       bytes = c.result().bytes().value](const Args& args) {
        if (accumulates) bring(args.out(), args.in(2), bytes);
        const float* a = args.in(swapped ? 1 : 0);
        const float* b = args.in(swapped ? 0 : 1);
        parallel_for(
            threads, work.items(), work.grain(), [&](int thread, int64_t begin, int64_t end) {
              void* scratch = static_cast<char*>(args.scratch) + thread * work.scratch_bytes();
              for (int64_t item = begin; item < end; ++item)
                work.run(item, a, b, args.out(), scratch);
            });
      },
      work.scratch_bytes() * c.threads());
}

}  // namespace

void register_products(KernelTable& table) { table.add(ir::OpKind::kDot, prepare_dot); }

}  // namespace mw::runtime
