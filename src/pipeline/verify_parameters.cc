// Parameters: what fragments take for one parameter, or for its gradient, is what the optimizer
// takes for one, and counts in the norm as often as ranks hold it; every parameter is updated.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "pipeline/accumulation.h"
#include "pipeline/axes.h"
#include "pipeline/buffer_lives.h"
#include "pipeline/holder_sums.h"
#include "pipeline/verify.h"

namespace mw::pipeline {
namespace {

class ParameterChecker : CommandChecker {
 public:
  ParameterChecker(const Checked& checked, Diagnostics& out)
      : CommandChecker(checked, out), holder_sums_(checked) {
    if (checked.options.module != nullptr) parameters_ = checked.options.module->parameters();
  }

  void run() {
    for (size_t r = 0; r < program_.ranks.size(); ++r) run_rank(static_cast<int32_t>(r));
    check_all_parameters();
  }

 private:
  void run_rank(int32_t r) {
    rank_ = r;
    parts_.clear();
    const RankProgram& rank = checked_.rank(r);
    for (command_ = 0; command_ < rank.commands.size(); ++command_) {
      const Command& command = rank.commands[command_];
      if (command.kind != Command::Kind::kCall) continue;
      const AccumulationInfo& accumulation = checked_.accumulation[command.fragment.index()];
      if (is_work(command.action.kind)) {
        see_parts(command, accumulation.parts);
      } else if (command.action.kind != ActionKind::kRollback) {
        for (const Optimized& optimized : accumulation.optimized)
          check_optimized(command, optimized);
      }
    }
  }

  // Flat weights that are gathered have no views as buffers: what is read of them is one here.
  void see_parts(const Command& command, const std::vector<StatePart>& parts) {
    for (const StatePart& part : parts) {
      const BufferId id = command.buffers[part.port];
      if (buffer(id).storage.kind == Storage::Kind::kView) continue;
      parts_[id].try_emplace(part.range, std::pair(command_, part.op));
    }
  }

  void check_optimized(const Command& command, const Optimized& optimized) {
    std::set<BufferId> flat;
    for (const size_t p : optimized.weights) flat.insert(root(command.buffers[p]));
    HolderSums::Contributions gradients = holder_sums_.resolve(rank_, command_, optimized.sums);
    for (const size_t p : optimized.gradients) ++gradients[{rank_, command.buffers[p]}];
    for (const auto& [key, times] : gradients) {
      if (key.first == rank_ && is_accumulator(buffer(key.second))) flat.insert(root(key.second));
    }
    for (const BufferId id : flat) {
      check_views(optimized, id);
      check_parts(optimized, id);
    }
    for (const int32_t parameter : optimized.parameters) updated_.insert(parameter);
    all_parameters_ = std::max(all_parameters_, optimized.all_parameters);
  }

  static std::vector<ElementRange>::const_iterator range_in(const Optimized& optimized,
                                                            const ElementRange& range) {
    return std::find(optimized.ranges.begin(), optimized.ranges.end(), range);
  }

  // What the fragments read of flat weights, or add to flat gradients, as one value is what the
  // optimizer takes for one parameter.
  void check_parts(const Optimized& optimized, BufferId root) {
    const auto it = parts_.find(root);
    if (it == parts_.end()) return;
    for (const auto& [range, by] : it->second) {
      if (range_in(optimized, range) != optimized.ranges.end()) continue;
      add("op {} (adamw) knows no parameter in the elements {} to {} of '{}', which op {} of {} "
          "takes for one",
          optimized.op, range.begin, range.end, buffer(root).name(), by.second,
          place_text(program_, rank_, by.first));
    }
  }

  // What the fragments see as one parameter or its gradient is what the optimizer takes for one
  // parameter.
  void check_views(const Optimized& optimized, BufferId root) {
    const RankProgram& rank = checked_.rank(rank_);
    for (int32_t b = 0; b < rank.states; ++b) {
      const Buffer& view = rank.buffers[static_cast<size_t>(b)];
      if (view.storage.kind != Storage::Kind::kView || view.storage.parent != root ||
          !view.storage.part->axes.empty())
        continue;
      const int64_t begin = view.storage.offset / dtype_size(view.type().dtype),
                    end = begin + view.type().elements();
      const auto range = range_in(optimized, {begin, end});
      if (range == optimized.ranges.end()) {
        add("op {} (adamw) knows no parameter in the elements {} to {} of '{}', which are '{}'",
            optimized.op, begin, end, buffer(root).name(), view.name());
        continue;
      }
      const auto place = static_cast<size_t>(range - optimized.ranges.begin());
      const int32_t parameter = optimized.parameters[place];
      check_origin(optimized, place, view);
      const std::string name = parameter_name(parameter);
      if (name.empty() || parameter_of(view.name()) == name) continue;
      add("op {} (adamw) takes the elements {} to {} of '{}', which are '{}', for parameter {} "
          "'{}'",
          optimized.op, begin, end, buffer(root).name(), view.name(), parameter, name);
    }
  }

  // Ranks along an axis that does not split the parameter hold the same of it: the norm counts it
  // on the first of them alone.
  void check_origin(const Optimized& optimized, size_t place, const Buffer& view) {
    ir::Axes wanted;
    for (const cluster::Axis& axis : program_.mesh.axes()) {
      const bool splits = std::any_of(
          view.sharding().dims.begin(), view.sharding().dims.end(), [&](const ir::Axes& axes) {
            return std::find(axes.begin(), axes.end(), axis.name) != axes.end();
          });
      if (is_parameter_axis(axis.name) && axis.size > 1 && !splits) wanted.push_back(axis.name);
    }
    ir::Axes made;
    for (const Name axis : optimized.at_origin[place]) {
      if (program_.mesh.axis_size(axis) > 1) made.push_back(axis);
    }
    std::sort(wanted.begin(), wanted.end());
    std::sort(made.begin(), made.end());
    if (wanted == made) return;
    add("op {} (adamw) counts '{}' on the first rank alone along {{{}}}, must along {{{}}}",
        optimized.op, view.name(), join(made, ", "), join(wanted, ", "));
  }

  // The module's parameter of this number; empty where there is no module.
  std::string parameter_name(int32_t parameter) const {
    const auto index = static_cast<size_t>(parameter);
    return index < parameters_.size() ? checked_.options.module->state(parameters_[index]).name
                                      : "";
  }
  // The parameter that a state of the module is, or is the gradient of. REQUIRES: a module.
  std::string parameter_of(const std::string& state) const {
    const ir::Module& module = *checked_.options.module;
    const std::optional<StateId> id = module.find_state(state);
    if (!id) return "";
    const StateId parameter = module.state(*id).parameter;
    return parameter.valid() ? module.state(parameter).name : state;
  }

  void check_all_parameters() {
    for (int32_t p = 0; p < all_parameters_; ++p) {
      if (updated_.contains(p)) continue;
      const std::string name = parameter_name(p);
      out_.add("parameter {}{} is updated on no pipeline rank", p,
               name.empty() ? "" : " '" + name + "'");
    }
  }

  HolderSums holder_sums_;
  std::vector<StateId> parameters_;  // of the module, if there is one
  // [flat state] elements that are read or added to as one value, by the first command and op.
  std::map<BufferId, std::map<ElementRange, std::pair<size_t, int32_t>>> parts_;
  std::set<int32_t> updated_;
  int32_t all_parameters_ = 0;
};

}  // namespace

void check_parameters(const Checked& checked, Diagnostics& out) {
  ParameterChecker(checked, out).run();
}

}  // namespace mw::pipeline
