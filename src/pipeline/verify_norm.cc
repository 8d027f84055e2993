// The global norm: it counts every gradient that an optimizer takes, as a whole and once, and every
// step is scaled by what clips it. And what becomes of the step: each weight and moment is what
// adamw made of it.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "pipeline/buffer_lives.h"
#include "pipeline/verify.h"

namespace mw::pipeline {
namespace {

using ir::OpKind;
using Groups = std::vector<ir::Segment>;

// Whether the same parameters lie in the same elements, whoever counts them.
bool alike(const Groups& a, const Groups& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const ir::Segment& x, const ir::Segment& y) {
                      return x.begin == y.begin && x.end == y.end && x.parameter == y.parameter &&
                             x.counted_at_origin_of == y.counted_at_origin_of;
                    });
}

// One fragment's norm and optimizers.
class FragmentNorm {
 public:
  FragmentNorm(const Fragment& fragment, Diagnostics& out)
      : fragment_(fragment), graph_(fragment.graph), out_(out) {}

  // The parameters that it counts, as often as it does.
  std::vector<int32_t> run() {
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      const ir::Op& op = graph_.ops[o];
      if (op.kind == OpKind::kNormParameters) count(o, op);
    }
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      const ir::Op& op = graph_.ops[o];
      if (op.kind == OpKind::kAdamW) check_step(o, op);
    }
    return counted_;
  }

 private:
  template <typename... Args>
  void add(size_t o, fmt::format_string<Args...> format, Args&&... args) {
    out_.add("fragment '{}': op {} ({}) {}", fragment_.name, o, ir::op_name(graph_.ops[o].kind),
             fmt::format(format, std::forward<Args>(args)...));
  }
  const ir::Op* producer(ValueId v) const {
    const OpId by = graph_.value(v).producer;
    return by.valid() ? &graph_.op(by) : nullptr;
  }

  // The sums of blocks that a norm is made of come from one norm_blocks of the same groups.
  void count(size_t o, const ir::Op& op) {
    const ir::Op* blocks = producer(op.operands[0]);
    if (blocks != nullptr && blocks->kind == OpKind::kAllGather)
      blocks = producer(blocks->operands[0]);
    if (blocks == nullptr || blocks->kind != OpKind::kNormBlocks) return add(o, "takes no blocks");
    if (!(blocks->attrs == op.attrs))
      return add(o, "takes blocks of other groups than it makes sums of");
    const auto& attrs = op.as<ir::FlatAttrs>();
    if (attrs.groups.size() != blocks->operands.size()) {
      return add(o, "has {} groups, its blocks are of {}", attrs.groups.size(),
                 blocks->operands.size());
    }
    for (size_t g = 0; g < attrs.groups.size(); ++g) {
      normed_[blocks->operands[g]].push_back(&attrs.groups[g]);
      for (const ir::Segment& segment : attrs.groups[g]) {
        if (segment.counts) counted_.push_back(segment.parameter);
      }
    }
  }

  void check_step(size_t o, const ir::Op& op) {
    const auto& attrs = op.as<ir::FlatAttrs>();
    const auto it = normed_.find(op.operands[1]);
    if (it == normed_.end() || it->second.size() != 1) {
      add(o, "takes a gradient that the norm counts {} times",
          it == normed_.end() ? 0 : it->second.size());
    } else if (attrs.groups.size() != 1 || !alike(attrs.groups[0], *it->second[0])) {
      add(o, "takes a gradient for other parameters than the norm counts in it");
    }
    const ir::Op* clip = producer(op.operands[4]);
    if (clip == nullptr || clip->kind != OpKind::kClip || op.operands[4] != clip->results[1])
      add(o, "scales its gradient by {}, which is no clipping factor",
          graph_.label(op.operands[4]));
  }

  const Fragment& fragment_;
  const ir::Graph& graph_;
  Diagnostics& out_;
  std::map<ValueId, std::vector<const Groups*>> normed_;  // [gradient]
  std::vector<int32_t> counted_;
};

// What a call leaves in weights and moments.
class StepResults {
 public:
  StepResults(const Checked& checked, int32_t rank, size_t command, Diagnostics& out)
      : checked_(checked),
        rank_(rank),
        at_(command),
        command_(checked.rank(rank).commands[command]),
        fragment_(checked.fragment(command_)),
        graph_(fragment_.graph),
        out_(out) {}

  void run() {
    for (const ir::StateUpdate& update : graph_.updates) {
      for (size_t i = 0; i < fragment_.inputs.size(); ++i) {
        if (graph_.inputs[i].state == update.state) check(command_.buffers[i], update.value);
      }
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      const BufferId id = command_.buffers[fragment_.inputs.size() + i];
      if (buffer(id).category == Category::kWeights) check(id, graph_.outputs[i]);
    }
  }

 private:
  const Buffer& buffer(BufferId id) const { return checked_.rank(rank_).buffers[id.index()]; }
  BufferId root(BufferId id) const { return root_buffer(checked_.rank(rank_), id); }

  void check(BufferId to, ValueId value) {
    const Category category = buffer(to).category;
    if (category != Category::kWeights && category != Category::kOptimizer) return;
    const BufferId from = made_of(value);
    if (from.valid() && root(from) == root(to)) return;
    out_.add("{} makes of '{}' what adamw makes of {}", place_text(checked_.program, rank_, at_),
             buffer(to).name(),
             from.valid() ? "'" + buffer(from).name() + "'" : std::string("nothing"));
  }

  // The state that an adamw made the value of, perhaps gathered since; invalid: none.
  BufferId made_of(ValueId value) const {
    OpId by = graph_.value(value).producer;
    if (by.valid() && graph_.op(by).kind == OpKind::kAllGather) {
      const ir::Op& gather = graph_.op(by);
      const auto i = std::find(gather.results.begin(), gather.results.end(), value);
      value = gather.operands[static_cast<size_t>(i - gather.results.begin())];
      by = graph_.value(value).producer;
    }
    if (!by.valid() || graph_.op(by).kind != OpKind::kAdamW) return BufferId();
    const ir::Op& step = graph_.op(by);
    // weight, m and v are its operands 0, 2 and 3.
    const auto i = std::find(step.results.begin(), step.results.end(), value);
    const auto operand = static_cast<size_t>(i - step.results.begin());
    const ValueId before = step.operands[operand == 0 ? 0 : operand + 1];
    for (size_t p = 0; p < fragment_.inputs.size(); ++p)
      if (fragment_.inputs[p].value == before) return command_.buffers[p];
    return BufferId();
  }

  const Checked& checked_;
  int32_t rank_;
  size_t at_;
  const Command& command_;
  const Fragment& fragment_;
  const ir::Graph& graph_;
  Diagnostics& out_;
};

}  // namespace

void check_norm(const Checked& checked, Diagnostics& out) {
  std::map<int32_t, std::vector<size_t>> counted_by;  // [parameter] pipeline ranks
  std::set<int32_t> updated;
  for (size_t r = 0; r < checked.program.ranks.size(); ++r) {
    const std::vector<Command>& commands = checked.program.ranks[r].commands;
    for (size_t c = 0; c < commands.size(); ++c) {
      const Command& command = commands[c];
      if (command.kind == Command::Kind::kCall &&
          !checked.accumulation[command.fragment.index()].optimized.empty())
        StepResults(checked, static_cast<int32_t>(r), c, out).run();
      // A step that is made again takes what was kept of the first (verify_validation.cc).
      if (command.kind != Command::Kind::kCall || command.action.kind == ActionKind::kRollback)
        continue;
      const auto& optimized = checked.accumulation[command.fragment.index()].optimized;
      if (optimized.empty()) continue;
      for (const Optimized& step : optimized)
        updated.insert(step.parameters.begin(), step.parameters.end());
      for (const int32_t parameter : FragmentNorm(checked.fragment(command), out).run())
        counted_by[parameter].push_back(r);
    }
  }
  for (const int32_t parameter : updated) {
    const std::vector<size_t>& ranks = counted_by[parameter];
    if (ranks.size() == 1) continue;
    out.add("the norm counts parameter {} {} times{}{}", parameter, ranks.size(),
            ranks.empty() ? "" : ": on pipeline ranks ", fmt::join(ranks, ", "));
  }
}

}  // namespace mw::pipeline
