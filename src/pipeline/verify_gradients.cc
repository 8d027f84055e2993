// Accumulators: what an update takes must hold every microbatch exactly once, and start at zero in
// the next call.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "pipeline/accumulation.h"
#include "pipeline/groups.h"
#include "pipeline/holder_sums.h"
#include "pipeline/verify.h"

namespace mw::pipeline {
namespace {

// Elements [begin, end) of an accumulator and how many calls added each microbatch to them.
struct Cell {
  int64_t end = 0;
  std::vector<int32_t> calls;  // [microbatch]
  bool empty() const {
    for (const int32_t n : calls) {
      if (n != 0) return false;
    }
    return true;
  }
};

// What an accumulator holds. Cells are keyed by their first element.
class Ledger {
 public:
  Ledger() = default;
  Ledger(int64_t elements, int32_t microbatches) {
    if (elements > 0)
      cells_[0] = {elements, std::vector<int32_t>(static_cast<size_t>(microbatches), 0)};
  }
  template <typename Function>
  void visit(int64_t begin, int64_t end, Function function) {
    if (begin >= end) return;
    split(begin);
    split(end);
    for (auto it = cells_.find(begin); it != cells_.end() && it->first < end; ++it)
      function(it->first, it->second);
  }
  const std::map<int64_t, Cell>& cells() const { return cells_; }

 private:
  void split(int64_t at) {
    auto it = cells_.upper_bound(at);
    if (it == cells_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    const Cell right = it->second;
    it->second.end = at;
    cells_[at] = right;
  }
  std::map<int64_t, Cell> cells_;
};

class GradientChecker {
 public:
  GradientChecker(const Checked& checked, Diagnostics& out)
      : checked_(checked), program_(checked.program), out_(out), holder_sums_(checked) {}

  void run() {
    for (size_t r = 0; r < program_.ranks.size(); ++r) run_rank(static_cast<int32_t>(r));
    check_holders_agree();
    check_all_parameters();
  }

 private:
  // An accumulator that a port is, or lies in.
  struct Target {
    BufferId root;
    int64_t offset = 0;  // elements
  };

  const Buffer& buffer(BufferId id) const { return checked_.rank(rank_).buffers[id.index()]; }
  bool is_accumulator(BufferId id) const {
    return buffer(id).category == Category::kGradients || buffer(id).category == Category::kMetrics;
  }
  Target target(BufferId id) const {
    Target at{id, 0};
    const int64_t element = std::max<int64_t>(1, dtype_size(buffer(id).type->dtype));
    while (buffer(at.root).storage.kind == Storage::Kind::kView) {
      at.offset += buffer(at.root).storage.offset / element;
      at.root = buffer(at.root).storage.parent;
    }
    return at;
  }
  Ledger& ledger(BufferId root) {
    const auto [it, is_new] = ledgers_.try_emplace(root);
    if (is_new) {
      it->second =
          Ledger(flat_elements(buffer(root).type, buffer(root).global_type, buffer(root).sharding),
                 program_.microbatches);
    }
    return it->second;
  }

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_.add("{} {}", place_text(program_, rank_, command_),
             fmt::format(format, std::forward<Args>(args)...));
  }

  void run_rank(int32_t r) {
    rank_ = r;
    ledgers_.clear();
    taken_.clear();
    cleared_.clear();
    const RankProgram& rank = checked_.rank(r);
    for (command_ = 0; command_ < rank.commands.size(); ++command_) {
      const Command& command = rank.commands[command_];
      if (command.kind == Command::Kind::kCall) call(command);
    }
    for (const auto& [root, held] : ledgers_) {
      for (const auto& [begin, cell] : held.cells()) {
        if (cell.empty()) continue;
        out_.add(
            "pipeline rank {}: '{}' still holds the sums of this call at its end (elements {} to "
            "{}); they would count "
            "again in the next one",
            r, buffer(root).name, begin, cell.end);
        break;
      }
    }
    for (const auto& [root, at] : cleared_) {
      if (taken_.contains(root)) continue;
      command_ = at;
      add("clears the gradient '{}', which no optimizer took", buffer(root).name);
    }
  }

  void call(const Command& command) {
    const FragmentInfo& info = checked_.info_of(command);
    const AccumulationInfo& accumulation = checked_.accumulation[command.fragment.index()];
    const ActionKind kind = command.action.kind;
    const bool computes = kind == ActionKind::kF || kind == ActionKind::kI ||
                          kind == ActionKind::kW || kind == ActionKind::kB;
    if (!computes) {
      for (const Optimized& optimized : accumulation.optimized) check_optimized(command, optimized);
      std::vector<bool> taken(info.inputs, false);
      for (const Optimized& optimized : accumulation.optimized) {
        for (const size_t p : optimized.gradients) taken[p] = true;
      }
      for (const HolderSum& sum : accumulation.holder_sums) {
        for (const size_t p : sum.ports) taken[p] = true;
      }
      for (size_t p = 0; p < info.inputs; ++p) {
        const bool reads = info.uses[p].reads() && !taken[p] && is_accumulator(command.buffers[p]);
        if (kind == ActionKind::kUpdate && reads) check_read(command.buffers[p]);
      }
    }
    for (size_t p = 0; p < info.inputs; ++p) {
      if (is_accumulator(command.buffers[p]))
        apply(command, accumulation.effects[p], command.buffers[p], computes);
    }
  }

  void apply(const Command& command, const StateEffect& effect, BufferId id, bool computes) {
    const Target at = target(id);
    Ledger& held = ledger(at.root);
    const int64_t elements =
        flat_elements(buffer(id).type, buffer(id).global_type, buffer(id).sharding);
    switch (effect.kind) {
      case StateEffect::Kind::kNone: return;
      case StateEffect::Kind::kAdded:
        if (!computes) {
          if (!effect.added.empty())
            add("adds to '{}' outside of the microbatches", buffer(id).name);
          return;
        }
        for (const ElementRange& range : effect.added) {
          held.visit(at.offset + range.begin, at.offset + range.end, [&](int64_t, Cell& cell) {
            for (int32_t k = command.action.first; k < command.action.first + command.action.count;
                 ++k) {
              if (k >= 0 && k < program_.microbatches) ++cell.calls[static_cast<size_t>(k)];
            }
          });
        }
        return;
      case StateEffect::Kind::kCleared:
      case StateEffect::Kind::kReplaced: {
        bool lost = false;
        held.visit(at.offset, at.offset + elements, [&](int64_t, Cell& cell) {
          lost = lost || !cell.empty();
          std::fill(cell.calls.begin(), cell.calls.end(), 0);
        });
        if (lost && (computes || effect.kind == StateEffect::Kind::kReplaced)) {
          add("{} '{}', which holds sums of microbatches",
              effect.kind == StateEffect::Kind::kCleared ? "clears" : "replaces", buffer(id).name);
        } else if (lost && buffer(id).category == Category::kGradients) {
          cleared_.try_emplace(at.root, command_);
        }
      }
    }
  }

  // Every cell holds every microbatch once. Reports the first that does not.
  bool check_cells(BufferId id, int64_t begin, int64_t end, const std::string& who) {
    const Target at = target(id);
    bool complete = true;
    ledger(at.root).visit(at.offset + begin, at.offset + end, [&](int64_t first, Cell& cell) {
      for (size_t k = 0; complete && k < cell.calls.size(); ++k) {
        if (cell.calls[k] == 1) continue;
        add("{} '{}', whose elements {} to {} hold microbatch {} {} times", who, buffer(id).name,
            first, cell.end, k, cell.calls[k]);
        complete = false;
      }
    });
    return complete;
  }

  void check_optimized(const Command& command, const Optimized& optimized) {
    const std::string who = fmt::format("op {} (adamw) takes", optimized.op);
    HolderSums::Contributions all = holder_sums_.resolve(rank_, command_, optimized.sums);
    for (const size_t p : optimized.gradients) ++all[{rank_, command.buffers[p]}];
    if (all.empty()) add("{} a gradient that comes from no accumulator", who);
    for (const auto& [key, times] : all) {
      const auto& [r, id] = key;
      if (times != 1) {
        add("{} '{}' of pipeline rank {} {} times", who, checked_.rank(r).buffers[id.index()].name,
            r, times);
      }
      if (r != rank_) continue;
      if (!is_accumulator(id)) {
        add("{} '{}' as a gradient", who, buffer(id).name);
        continue;
      }
      for (const ElementRange& range : optimized.ranges) {
        if (!check_cells(id, range.begin, range.end, who)) break;
      }
      check_views(optimized, target(id).root);
      taken_.insert(target(id).root);
    }
    for (const size_t p : optimized.weights) {
      check_views(optimized, target(command.buffers[p]).root);
      check_holders(command, optimized, target(command.buffers[p]).root, all);
    }
    for (const int32_t parameter : optimized.parameters) updated_.insert(parameter);
    all_parameters_ = std::max(all_parameters_, optimized.all_parameters);
  }

  // What the fragments see as one parameter or its gradient is what the optimizer takes for one
  // parameter.
  void check_views(const Optimized& optimized, BufferId root) {
    const RankProgram& rank = checked_.rank(rank_);
    for (int32_t b = 0; b < rank.states; ++b) {
      const Buffer& view = rank.buffers[static_cast<size_t>(b)];
      if (view.storage.kind != Storage::Kind::kView || view.storage.parent != root ||
          !view.storage.shard_axes.empty())
        continue;
      const int64_t begin = view.storage.offset / dtype_size(view.type->dtype),
                    end = begin + view.type->elements();
      const bool known = std::any_of(
          optimized.ranges.begin(), optimized.ranges.end(),
          [&](const ElementRange& range) { return range.begin == begin && range.end == end; });
      if (known) continue;
      add("op {} (adamw) knows no parameter in the elements {} to {} of '{}', which are '{}'",
          optimized.op, begin, end, buffer(root).name, view.name);
    }
  }

  // A weight that several pipeline ranks hold takes the sum of all their gradients, the same sum on
  // all of them.
  void check_holders(const Command& command, const Optimized& optimized, BufferId weight,
                     const HolderSums::Contributions& all) {
    const std::string& name = buffer(weight).name;
    const std::vector<int32_t> ranks = group_ranks(program_, ir::Holders{name}, rank_);
    const auto& sums = checked_.accumulation[command.fragment.index()].holder_sums;
    const bool of_weight = std::all_of(optimized.sums.begin(), optimized.sums.end(), [&](size_t s) {
      return sums[s].state == name && !sums[s].other;
    });
    const size_t wanted = ranks.size() > 1 ? 1 : 0;
    const bool direct = wanted == 1 && !optimized.gradients.empty();
    if (optimized.sums.size() != wanted || !of_weight || direct) {
      add("op {} (adamw) updates '{}', which {} pipeline ranks hold, with a gradient that is "
          "summed "
          "over holders {} times",
          optimized.op, name, ranks.size(), optimized.sums.size());
    }
    if (wanted == 1) held_[name].push_back({rank_, command_, all});
  }

  void check_holders_agree() {
    for (const auto& [name, takers] : held_) {
      for (const Taker& taker : takers) {
        if (taker.all == takers.front().all) continue;
        rank_ = taker.rank;
        command_ = taker.command;
        add("updates '{}' with the sum of other gradients than pipeline rank {} does", name,
            takers.front().rank);
      }
    }
  }

  // A sum that is read at the end: a loss.
  void check_read(BufferId id) {
    const Target at = target(id);
    if (!checked_gradients_.insert({rank_, command_, at.root}).second) return;
    // The padding between parameters holds nothing.
    for (const auto& [begin, cell] : std::map<int64_t, Cell>(ledger(at.root).cells())) {
      if (buffer(at.root).category == Category::kGradients && cell.empty()) continue;
      if (!check_cells(at.root, begin, cell.end, "reads")) return;
    }
  }

  void check_all_parameters() {
    for (int32_t p = 0; p < all_parameters_; ++p) {
      if (updated_.contains(p)) continue;
      const ir::Module* module = checked_.options.module;
      const std::vector<StateId> parameters =
          module ? module->parameters() : std::vector<StateId>();
      const auto index = static_cast<size_t>(p);
      out_.add("parameter {}{} is updated on no pipeline rank", p,
               index < parameters.size() ? " '" + module->state(parameters[index]).name + "'" : "");
    }
  }

  // Who updates a weight of several pipeline ranks, and with what.
  struct Taker {
    int32_t rank;
    size_t command;
    HolderSums::Contributions all;
  };

  const Checked& checked_;
  const Program& program_;
  Diagnostics& out_;
  HolderSums holder_sums_;
  int32_t rank_ = 0;
  size_t command_ = 0;
  std::map<BufferId, Ledger> ledgers_;  // [root]
  std::set<BufferId> taken_;            // gradients, roots
  std::map<BufferId, size_t> cleared_;  // gradients, roots; the command
  std::map<std::string, std::vector<Taker>> held_;
  std::set<std::tuple<int32_t, size_t, BufferId>> checked_gradients_;
  std::set<int32_t> updated_;
  int32_t all_parameters_ = 0;
};

}  // namespace

void check_gradients(const Checked& checked, Diagnostics& out) {
  GradientChecker(checked, out).run();
}

}  // namespace mw::pipeline
