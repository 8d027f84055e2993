// Sums over any dimensions, one run of neighbouring dimensions after the other, the last run first.
// Maxima and minima are ATen's: their order does not matter.
#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "runtime/kernel_table.h"
#include "runtime/parallel.h"

namespace mw::runtime {
namespace {

// One kernel call: outer x reduce x inner -> outer x inner.
struct Stage {
  int64_t outer = 1, reduce = 1, inner = 1;
};

std::vector<Stage> stages_of(const ir::TensorType& type, const std::vector<int>& dims) {
  std::vector<Stage> stages;
  int64_t inner = 1;  // of what is left behind the run
  int d = type.rank() - 1;
  while (d >= 0) {
    const auto reduced = [&](int i) {
      return std::find(dims.begin(), dims.end(), i) != dims.end();
    };
    if (!reduced(d)) {
      inner *= type.dim(d--);
      continue;
    }
    Stage stage;
    stage.inner = inner;
    while (d >= 0 && reduced(d)) stage.reduce *= type.dim(d--);
    for (int i = 0; i <= d; ++i) stage.outer *= type.dim(i);
    stages.push_back(stage);
  }
  return stages;
}

Prepared prepare_sum(const OpContext& c) {
  const auto& attrs = c.op.as<ir::ReduceAttrs>();
  if (attrs.op != ir::Reduction::kSum || !c.all_are(DType::kF32)) return nullptr;
  const std::vector<Stage> stages = stages_of(c.operand(0), attrs.dims);
  if (stages.empty())
    return make_kernel(
        [bytes = c.result().bytes().value](const Args& a) { bring(a.out(), a.in(0), bytes); });
  // All but the last stage write to scratch, in turn to its two halves.
  int64_t half = 0;
  for (size_t s = 0; s + 1 < stages.size(); ++s)
    half = std::max(half, stages[s].outer * stages[s].inner);
  return make_kernel(
      [stages, half, threads = c.threads()](const Args& a) {
        const float* from = a.in(0);
        for (size_t s = 0; s < stages.size(); ++s) {
          float* to = s + 1 == stages.size()
                          ? a.out()
                          : static_cast<float*>(a.scratch) + (s % 2 == 0 ? 0 : half);
          const Stage& stage = stages[s];
          parallel_for(threads, stage.outer * stage.inner, row_grain(stage.reduce),
                       [&](int64_t begin, int64_t end) {
                         kernels::reduce_sum(from, stage.reduce, stage.inner, to, begin, end);
                       });
          from = to;
        }
      },
      2 * half * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

void register_reductions(KernelTable& table) { table.add(ir::OpKind::kReduce, prepare_sum); }

}  // namespace mw::runtime
