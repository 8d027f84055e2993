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
  StageId stage;               // whose work added to them last
  std::vector<int32_t> calls;  // [microbatch][slice]
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
  Ledger(int64_t elements, size_t units) {
    if (elements > 0) cells_[0] = {elements, {}, std::vector<int32_t>(units, 0)};
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

class GradientChecker : CommandChecker {
 public:
  GradientChecker(const Checked& checked, Diagnostics& out)
      : CommandChecker(checked, out), holder_sums_(checked) {
    for (const RankProgram& rank : program_.ranks) {
      for (const Command& command : rank.commands)
        slices_ = std::max(slices_, command.action.slice + 1);
    }
  }

  void run() {
    for (size_t r = 0; r < program_.ranks.size(); ++r) run_rank(static_cast<int32_t>(r));
    check_holders_agree();
    for (const auto& [name, takers] : held_) check_held(name, takers);
    for (const auto& [name, readers] : metrics_) check_metric(name, readers);
  }

 private:
  // Who updates a weight of several pipeline ranks, with what, and what its own part of that holds.
  struct Taker {
    int32_t rank;
    size_t command;
    HolderSums::Contributions all;
    Optimized optimized;
    std::map<BufferId, Ledger> own;
  };

  // An accumulator that a port is, or lies in.
  struct Target {
    BufferId root;
    int64_t offset = 0;  // elements
  };

  Target target(BufferId id) const {
    Target at{id, 0};
    const int64_t element = std::max<int64_t>(1, dtype_size(buffer(id).type().dtype));
    while (buffer(at.root).storage.kind == Storage::Kind::kView) {
      at.offset += buffer(at.root).storage.offset / element;
      at.root = buffer(at.root).storage.parent;
    }
    return at;
  }
  Ledger& ledger(BufferId root) {
    const auto [it, is_new] = ledgers_.try_emplace(root);
    if (is_new) {
      it->second = Ledger(
          flat_elements(buffer(root).type(), buffer(root).global_type(), buffer(root).sharding()),
          static_cast<size_t>(program_.microbatches * slices_));
    }
    return it->second;
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
            r, buffer(root).name(), begin, cell.end);
        break;
      }
    }
    for (const auto& [root, at] : cleared_) {
      if (taken_.contains(root)) continue;
      command_ = at;
      add("clears the gradient '{}', which no optimizer took", buffer(root).name());
    }
  }

  void call(const Command& command) {
    const FragmentInfo& info = checked_.info_of(command);
    const AccumulationInfo& accumulation = checked_.accumulation[command.fragment.index()];
    const ActionKind kind = command.action.kind;
    const bool computes = is_work(kind);
    if (!computes) {
      // A step that is made again takes what was kept of the first (verify_validation.cc).
      for (const Optimized& optimized : accumulation.optimized) {
        if (kind != ActionKind::kRollback) check_optimized(command, optimized);
      }
      std::vector<bool> taken(info.inputs, false);
      for (const Optimized& optimized : accumulation.optimized) {
        for (const size_t p : optimized.gradients) taken[p] = true;
      }
      for (const HolderSum& sum : accumulation.holder_sums) {
        for (const size_t p : sum.ports) taken[p] = true;
      }
      for (size_t p = 0; p < info.inputs; ++p) {
        const bool reads =
            info.uses[p].reads() && !taken[p] && is_accumulator(buffer(command.buffers[p]));
        if (kind == ActionKind::kUpdate && reads) check_read(command, p);
      }
    }
    for (size_t p = 0; p < info.inputs; ++p) {
      if (is_accumulator(buffer(command.buffers[p])))
        apply(command, accumulation.effects[p], command.buffers[p], computes);
    }
  }

  void apply(const Command& command, const StateEffect& effect, BufferId id, bool computes) {
    const Target at = target(id);
    Ledger& held = ledger(at.root);
    const int64_t elements =
        flat_elements(buffer(id).type(), buffer(id).global_type(), buffer(id).sharding());
    switch (effect.kind) {
      case StateEffect::Kind::kNone: return;
      case StateEffect::Kind::kAdded:
        if (!computes) {
          if (!effect.added.empty())
            add("adds to '{}' outside of the microbatches", buffer(id).name());
          return;
        }
        for (const ElementRange& range : effect.added) {
          held.visit(at.offset + range.begin, at.offset + range.end, [&](int64_t, Cell& cell) {
            cell.stage = command.action.stage;
            for (int32_t k = command.action.first; k < command.action.first + command.action.count;
                 ++k) {
              if (k < 0 || k >= program_.microbatches) continue;
              const int32_t slice = std::clamp(command.action.slice, 0, slices_ - 1);
              ++cell.calls[static_cast<size_t>(k * slices_ + slice)];
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
              effect.kind == StateEffect::Kind::kCleared ? "clears" : "replaces",
              buffer(id).name());
        } else if (lost && buffer(id).category == Category::kGradients) {
          cleared_.try_emplace(at.root, command_);
        }
      }
    }
  }

  // "3", of a slice "3/1".
  std::string unit_name(size_t unit) const {
    const auto slices = static_cast<size_t>(slices_);
    return slices == 1 ? fmt::format("{}", unit)
                       : fmt::format("{}/{}", unit / slices, unit % slices);
  }

  // Every cell holds every microbatch once. Reports the first that does not.
  bool check_cells(BufferId id, int64_t begin, int64_t end, const std::string& who) {
    const Target at = target(id);
    bool complete = true;
    ledger(at.root).visit(at.offset + begin, at.offset + end, [&](int64_t first, Cell& cell) {
      for (size_t k = 0; complete && k < cell.calls.size(); ++k) {
        if (cell.calls[k] == 1) continue;
        add("{} '{}', whose elements {} to {} hold microbatch {} {} times", who, buffer(id).name(),
            first, cell.end, unit_name(k), cell.calls[k]);
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
        add("{} '{}' of pipeline rank {} {} times", who,
            checked_.rank(r).buffers[id.index()].name(), r, times);
      }
      if (r != rank_) continue;
      if (!is_accumulator(buffer(id))) {
        add("{} '{}' as a gradient", who, buffer(id).name());
        continue;
      }
      // What is summed over holders is complete only there.
      for (const ElementRange& range : optimized.ranges) {
        if (!optimized.sums.empty() || !check_cells(id, range.begin, range.end, who)) break;
      }
      taken_.insert(target(id).root);
    }
    for (const size_t p : optimized.weights)
      check_holders(command, optimized, target(command.buffers[p]).root, all);
  }

  // A weight that several pipeline ranks hold takes the sum of all their gradients, the same sum on
  // all of them.
  void check_holders(const Command& command, const Optimized& optimized, BufferId weight,
                     const HolderSums::Contributions& all) {
    const std::string name = buffer(weight).name();
    const std::vector<int32_t> ranks = group_ranks(program_, ir::Holders{name}, rank_);
    const auto& sums = checked_.accumulation[command.fragment.index()].holder_sums;
    const bool of_weight = std::all_of(optimized.sums.begin(), optimized.sums.end(), [&](size_t s) {
      return group_ranks(program_, ir::Holders{sums[s].state}, rank_) == ranks && !sums[s].other;
    });
    const size_t wanted = ranks.size() > 1 ? 1 : 0;
    const bool direct = wanted == 1 && !optimized.gradients.empty();
    std::string with;
    if (optimized.sums.size() != wanted)
      with = fmt::format("a gradient that is summed over holders {} times", optimized.sums.size());
    else if (!of_weight)
      with = "a sum over holders that is not of its gradients alone";
    else if (direct)
      with = "a gradient that is added behind the sum over holders";
    if (!with.empty()) {
      add("op {} (adamw) updates '{}', which {} pipeline ranks hold, with {}", optimized.op, name,
          ranks.size(), with);
    }
    if (wanted == 1) held_[name].push_back({rank_, command_, all, optimized, own_cells(all)});
  }

  std::map<BufferId, Ledger> own_cells(const HolderSums::Contributions& all) {
    std::map<BufferId, Ledger> cells;
    for (const auto& [key, times] : all) {
      if (key.first == rank_ && is_accumulator(buffer(key.second)))
        cells[key.second] = ledger(target(key.second).root);
    }
    return cells;
  }

  // One use of a parameter: of its stage on every rank that hosts a replica of it, the accumulator
  // that comes in this place among those that the stage adds to.
  struct Use {
    StageId stage;
    size_t place = 0;
    friend auto operator<=>(const Use&, const Use&) = default;
  };
  struct UseCells {
    std::string accumulators;  // "'grad/h.0' of pipeline rank 1"
    Ledger cells;
  };

  // Of what the holders add together, every use of every parameter has every microbatch once.
  void check_held(const std::string& weight, const std::vector<Taker>& takers) {
    rank_ = takers.front().rank;
    command_ = takers.front().command;
    for (const ElementRange& range : takers.front().optimized.ranges) {
      std::map<Use, UseCells> uses;
      for (const auto& [key, times] : takers.front().all) {
        if (!add_cells(key, takers, range, uses)) {
          return add(
              "adds '{}' to the gradient of '{}' on pipeline rank {}, which does not update "
              "it",
              checked_.rank(key.first).buffers[key.second.index()].name(), weight, key.first);
        }
      }
      for (auto& [use, cells] : uses) {
        if (!check_use(takers.front().optimized.op, range, cells)) return;
      }
    }
  }

  bool add_cells(const std::pair<int32_t, BufferId>& key, const std::vector<Taker>& takers,
                 const ElementRange& range, std::map<Use, UseCells>& uses) {
    const auto taker = std::find_if(takers.begin(), takers.end(),
                                    [&](const Taker& t) { return t.rank == key.first; });
    if (taker == takers.end()) return false;
    const auto own = taker->own.find(key.second);
    if (own == taker->own.end()) return true;  // no accumulator: said where it is taken
    Ledger cells = own->second;
    Use use;
    cells.visit(range.begin, range.end, [&](int64_t, Cell& cell) {
      if (cell.stage.valid()) use.stage = cell.stage;
    });
    const std::string of_rank = fmt::format(" of pipeline rank {}", key.first);
    while (uses.contains(use) && uses.at(use).accumulators.ends_with(of_rank)) ++use.place;
    UseCells& sum = uses[use];
    sum.accumulators +=
        fmt::format("{}'{}'{}", sum.accumulators.empty() ? "" : " and ",
                    checked_.rank(key.first).buffers[key.second.index()].name(), of_rank);
    if (sum.cells.cells().empty()) {
      sum.cells = std::move(cells);
      return true;
    }
    cells.visit(range.begin, range.end, [&](int64_t begin, Cell& from) {
      sum.cells.visit(begin, from.end, [&](int64_t, Cell& to) {
        for (size_t k = 0; k < to.calls.size(); ++k) to.calls[k] += from.calls[k];
      });
    });
    return true;
  }

  bool check_use(int32_t op, const ElementRange& range, UseCells& use) {
    bool complete = true;
    use.cells.visit(range.begin, range.end, [&](int64_t first, Cell& cell) {
      for (size_t k = 0; complete && k < cell.calls.size(); ++k) {
        if (cell.calls[k] == 1) continue;
        add("op {} (adamw) takes {}, whose elements {} to {} hold microbatch {} {} times", op,
            use.accumulators, first, cell.end, unit_name(k), cell.calls[k]);
        complete = false;
      }
    });
    return complete;
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

  // A sum that is read at the end: a gradient, or a loss, to which several ranks may add.
  void check_read(const Command& command, size_t port) {
    const BufferId id = command.buffers[port];
    const Target at = target(id);
    if (!checked_gradients_.insert({rank_, command_, at.root}).second) return;
    if (buffer(at.root).category == Category::kMetrics) {
      const Fragment& fragment = checked_.fragment(command);
      const bool summed = summed_over_ranks(fragment, fragment.inputs[port].value);
      metrics_[buffer(at.root).name()].push_back({rank_, command_, summed, ledger(at.root)});
      return;
    }
    // The padding between parameters holds nothing.
    for (const auto& [begin, cell] : std::map<int64_t, Cell>(ledger(at.root).cells())) {
      if (cell.empty()) continue;
      if (!check_cells(at.root, begin, cell.end, "reads")) return;
    }
  }

  // Whatever is made of the value and leaves the fragment has been summed over the pipeline ranks,
  // or is pending over them.
  static bool summed_over_ranks(const Fragment& fragment, ValueId v) {
    const ir::Graph& graph = fragment.graph;
    if (std::find(graph.outputs.begin(), graph.outputs.end(), v) != graph.outputs.end()) {
      const sharding::Axes& partial = fragment.shardings[v.index()].partial;
      return std::find(partial.begin(), partial.end(), "pp") != partial.end();
    }
    return std::all_of(graph.ops.begin(), graph.ops.end(), [&](const ir::Op& op) {
      if (std::find(op.operands.begin(), op.operands.end(), v) == op.operands.end()) return true;
      if (op.kind == ir::OpKind::kZero) return true;
      if (op.kind == ir::OpKind::kAllReduce) {
        const auto* group = std::get_if<ir::AxisGroup>(&op.as<ir::CollectiveAttrs>().group);
        if (group != nullptr &&
            std::find(group->axes.begin(), group->axes.end(), "pp") != group->axes.end())
          return true;
      }
      return std::all_of(op.results.begin(), op.results.end(),
                         [&](ValueId result) { return summed_over_ranks(fragment, result); });
    });
  }

  // All ranks that have the metric hold every microbatch once, together.
  struct Reader {
    int32_t rank;
    size_t command;
    bool summed;  // over the pipeline ranks
    Ledger cells;
  };
  void check_metric(const std::string& name, const std::vector<Reader>& readers) {
    rank_ = readers.front().rank;
    command_ = readers.front().command;
    for (const Reader& reader : readers) {
      if (readers.size() == 1 || reader.summed) continue;
      rank_ = reader.rank;
      command_ = reader.command;
      return add("reads '{}', to which {} pipeline ranks add, without the sum over them", name,
                 readers.size());
    }
    Ledger sum = readers.front().cells;
    for (size_t i = 1; i < readers.size(); ++i) {
      for (const auto& [begin, from] : readers[i].cells.cells()) {
        sum.visit(begin, from.end, [&](int64_t, Cell& to) {
          for (size_t k = 0; k < to.calls.size(); ++k) to.calls[k] += from.calls[k];
        });
      }
    }
    for (const auto& [begin, cell] : sum.cells()) {
      for (size_t k = 0; k < cell.calls.size(); ++k) {
        if (cell.calls[k] == 1) continue;
        return add("reads '{}', whose elements {} to {} hold microbatch {} {} times", name, begin,
                   cell.end, unit_name(k), cell.calls[k]);
      }
    }
  }

  HolderSums holder_sums_;
  int32_t slices_ = 1;                                  // of a sequence
  std::map<BufferId, Ledger> ledgers_;                  // [root]
  std::set<BufferId> taken_;                            // gradients, roots
  std::map<BufferId, size_t> cleared_;                  // gradients, roots; the command
  std::map<std::string, std::vector<Taker>> held_;      // [weight]
  std::map<std::string, std::vector<Reader>> metrics_;  // [name]
  std::set<std::tuple<int32_t, size_t, BufferId>> checked_gradients_;
};

}  // namespace

void check_gradients(const Checked& checked, Diagnostics& out) {
  GradientChecker(checked, out).run();
}

}  // namespace mw::pipeline
