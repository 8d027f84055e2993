#include "runtime/dot_plan.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "runtime/strided_plan.h"

namespace mw::runtime {
namespace {

// Letters that fold into one index: its size and its strides in the three tensors, 0 where it does
// not occur.
struct Index {
  int64_t size = 1;
  int64_t a = 0, b = 0, c = 0;
};

class Planner {
 public:
  Planner(const ir::DotAttrs& spec, const ir::TensorType& lhs, const ir::TensorType& rhs,
          const ir::TensorType& out)
      : spec_(spec),
        a_(strides_of(lhs)),
        b_(strides_of(rhs)),
        c_(strides_of(out)),
        lhs_(lhs),
        rhs_(rhs) {}

  std::optional<DotPlan> plan() {
    if (!sort_letters()) return std::nullopt;
    return best();
  }

 private:
  static int64_t stride(const std::string& letters, const std::vector<int64_t>& strides,
                        char letter) {
    const size_t at = letters.find(letter);
    return at == std::string::npos ? 0 : strides[at];
  }

  bool sort_letters() {
    for (const std::string* letters : {&spec_.lhs, &spec_.rhs, &spec_.out}) {
      if (std::set<char>(letters->begin(), letters->end()).size() != letters->size()) return false;
    }
    // In the order of the result, contracted letters in that of the lhs.
    for (const char letter : spec_.out + spec_.lhs + spec_.rhs) {
      if (!seen_.insert(letter).second) continue;
      const size_t in_lhs = spec_.lhs.find(letter), in_rhs = spec_.rhs.find(letter);
      Index index;
      index.size = in_lhs != std::string::npos ? lhs_.dims[in_lhs].size : rhs_.dims[in_rhs].size;
      index.a = stride(spec_.lhs, a_, letter);
      index.b = stride(spec_.rhs, b_, letter);
      index.c = stride(spec_.out, c_, letter);
      if (index.size == 0) return false;
      const bool l = in_lhs != std::string::npos, r = in_rhs != std::string::npos;
      const bool o = spec_.out.find(letter) != std::string::npos;
      std::vector<Index>* group = nullptr;
      if (l && r) group = o ? &batch_ : &k_;
      if (l && !r && o) group = &m_;
      if (!l && r && o) group = &n_;
      if (group == nullptr) return false;
      if (index.size > 1) add(*group, index);
    }
    return true;
  }

  // Folds the index into the group's last one if they are neighbours in all tensors that have them.
  static void add(std::vector<Index>& group, const Index& index) {
    if (!group.empty()) {
      Index& outer = group.back();
      const bool folds = outer.a == index.size * index.a && outer.b == index.size * index.b &&
                         outer.c == index.size * index.c;
      if (folds) {
        outer = {outer.size * index.size, index.a, index.b, index.c};
        return;
      }
    }
    group.push_back(index);
  }

  // The choice of one index a group that makes the largest product; the other indices become loops.
  std::optional<DotPlan> best() const {
    std::optional<DotPlan> chosen;
    const auto choices = [](const std::vector<Index>& group) {
      return std::max<size_t>(group.size(), 1);
    };
    for (size_t m = 0; m < choices(m_); ++m) {
      for (size_t n = 0; n < choices(n_); ++n) {
        for (size_t k = 0; k < choices(k_); ++k) {
          auto plan = product(m, n, k);
          if (plan && (!chosen || plan->m * plan->n * plan->k > chosen->m * chosen->n * chosen->k))
            chosen = plan;
        }
      }
    }
    return chosen;
  }

  std::optional<DotPlan> product(size_t mi, size_t ni, size_t ki) const {
    const auto at = [](const std::vector<Index>& group, size_t i) {
      return group.empty() ? Index() : group[i];
    };
    Index m = at(m_, mi), n = at(n_, ni), k = at(k_, ki);
    DotPlan plan;
    // The result's rows must be contiguous in one of its two indices; in m means that the roles
    // change.
    if (n.size > 1 && n.c != 1) {
      if (m.size > 1 && m.c != 1) return std::nullopt;
      plan.swapped = true;
      const auto swap = [](Index i) { return Index{i.size, i.b, i.a, i.c}; };
      const Index was_m = m;
      m = swap(n);
      n = swap(was_m);
      k = swap(k);
    }
    plan.m = m.size;
    plan.n = n.size;
    plan.k = k.size;
    plan.ldc = m.size > 1 ? m.c : n.size;
    if (!side(k, k.a, m, m.a, plan.a_transposed, plan.lda)) return std::nullopt;
    if (!side(n, n.b, k, k.b, plan.b_transposed, plan.ldb)) return std::nullopt;
    add_loops(plan, mi, ni, ki);
    const int64_t most = std::numeric_limits<int32_t>::max();
    if (std::max({plan.m, plan.n, plan.k, plan.lda, plan.ldb, plan.ldc}) > most)
      return std::nullopt;
    return plan;
  }

  // A matrix [row, column]: stored so if the column has unit stride, transposed if the row has.
  static bool side(const Index& column, int64_t column_stride, const Index& row, int64_t row_stride,
                   bool& transposed, int64_t& ld) {
    if (column.size == 1 || column_stride == 1) {
      ld = row.size > 1 ? row_stride : column.size;
      transposed = false;
      return true;
    }
    if (row.size == 1 || row_stride == 1) {
      ld = column_stride;
      transposed = true;
      return true;
    }
    return false;
  }

  void add_loops(DotPlan& plan, size_t mi, size_t ni, size_t ki) const {
    const auto add = [&](const Index& i, bool contracted) {
      plan.loops.push_back(plan.swapped ? DotPlan::Loop{i.size, i.b, i.a, i.c, contracted}
                                        : DotPlan::Loop{i.size, i.a, i.b, i.c, contracted});
    };
    for (const Index& i : batch_) add(i, false);
    for (size_t i = 0; i < m_.size(); ++i)
      if (i != mi) add(m_[i], false);
    for (size_t i = 0; i < n_.size(); ++i)
      if (i != ni) add(n_[i], false);
    for (size_t i = 0; i < k_.size(); ++i)
      if (i != ki) add(k_[i], true);
  }

  const ir::DotAttrs& spec_;
  const std::vector<int64_t> a_, b_, c_;
  const ir::TensorType &lhs_, &rhs_;
  std::set<char> seen_;
  std::vector<Index> batch_, m_, n_, k_;
};

}  // namespace

std::optional<DotPlan> plan_dot(const ir::DotAttrs& spec, const ir::TensorType& lhs,
                                const ir::TensorType& rhs, const ir::TensorType& out) {
  return Planner(spec, lhs, rhs, out).plan();
}

}  // namespace mw::runtime
