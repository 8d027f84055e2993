#include "compile/replicas.h"

#include <algorithm>

#include <fmt/format.h>

namespace mw::compile {

using pipeline::Action;

static std::vector<Action> unfold(const std::vector<Action>& actions, int32_t stages,
                                  int32_t slices) {
  std::vector<int32_t> at;  // [action] where the first of it goes
  int32_t next = 0;
  for (const Action& action : actions) {
    at.push_back(next);
    next += action.count;
  }
  std::vector<Action> unfolded;
  for (const Action& action : actions) {
    for (int32_t k = 0; k < action.count; ++k) {
      Action one = action;
      const int32_t copy = action.replica * slices + std::max(action.slice, 0);
      one.stage = StageId(copy * stages + action.stage.value);
      one.replica = 0;
      one.first = action.first + k;
      one.count = 1;
      // What overlaps as a whole has no part that does.
      const bool whole = action.paired_with >= 0 && action.count == 1 &&
                         actions[static_cast<size_t>(action.paired_with)].count == 1;
      one.paired_with = whole ? at[static_cast<size_t>(action.paired_with)] : -1;
      unfolded.push_back(one);
    }
  }
  return unfolded;
}

pipeline::Schedule unfold(const pipeline::Schedule& schedule) {
  const pipeline::Placement& placement = schedule.placement;
  pipeline::Schedule unfolded = schedule;
  unfolded.placement = {.ranks = placement.ranks, .rank_of_stage = {}};
  for (int32_t j = 0; j < placement.replicas(); ++j) {
    for (int32_t i = 0; i < schedule.slices; ++i) {
      for (int32_t s = 0; s < placement.stages(); ++s)
        unfolded.placement.rank_of_stage.push_back(placement.rank_of(s, j));
    }
  }
  for (std::vector<Action>& actions : unfolded.ranks)
    actions = unfold(actions, placement.stages(), schedule.slices);
  return unfolded;
}

std::string unfolded_name(int32_t unfolded, int32_t stages, int32_t slices) {
  const int32_t slice = unfolded / stages % slices, replica = unfolded / stages / slices;
  std::string name = fmt::format("{}", unfolded % stages);
  if (slices > 1) name += fmt::format("/{}", slice);
  if (replica > 0) name += fmt::format("^{}", replica);
  return name;
}

void fold(pipeline::Program& program, int32_t stages, int32_t slices) {
  for (pipeline::RankProgram& rank : program.ranks) {
    for (pipeline::Command& command : rank.commands) {
      if (!command.action.stage.valid()) continue;
      command.action.replica = command.action.stage.value / stages / slices;
      command.action.stage = StageId(command.action.stage.value % stages);
    }
  }
}

}  // namespace mw::compile
