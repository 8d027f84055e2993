#include "compile/repeatable.h"

#include <map>
#include <tuple>

namespace mw::compile {
namespace {

using pipeline::Action;
using pipeline::ActionKind;

struct Place {
  size_t rank = 0, action = 0;
};
// By stage, microbatch and slice.
using Forwards = std::map<std::tuple<StageId, int32_t, int32_t>, Place>;

Forwards forwards_of(const pipeline::Schedule& schedule) {
  Forwards places;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      if (action.kind != ActionKind::kF) continue;
      for (int32_t m = action.first; m < action.first + action.count; ++m)
        places[{action.stage, m, action.slice}] = {rank, i};
    }
  }
  return places;
}

bool adds_to_state(const Action& action, const std::vector<StageCode>& stages) {
  const StageCode& code = stages[action.stage.index()];
  return action.kind != ActionKind::kF ||
         !code.fragments.at(action.kind).fragment->graph.updates.empty();
}

}  // namespace

std::vector<size_t> repeatable_actions(const pipeline::Schedule& schedule,
                                       const std::vector<StageCode>& stages) {
  std::vector<size_t> repeatable;
  for (const std::vector<Action>& actions : schedule.ranks) {
    size_t count = 0;
    while (count < actions.size() && !adds_to_state(actions[count], stages)) ++count;
    repeatable.push_back(count);
  }
  const Forwards places = forwards_of(schedule);
  // Whether one of the forward's values is sent behind what its sender may take again.
  const auto waits = [&](const Action& action) {
    for (const Crossing& received : stages[action.stage.index()].receives) {
      if (received.backward || received.carried) continue;
      for (int32_t m = action.first; m < action.first + action.count; ++m) {
        const auto sent = places.find({received.peer, m, action.slice});
        if (sent != places.end() && sent->second.action >= repeatable[sent->second.rank])
          return true;
      }
    }
    return false;
  };
  for (bool shorter = true; shorter;) {
    shorter = false;
    for (size_t rank = 0; rank < repeatable.size(); ++rank) {
      size_t count = 0;
      while (count < repeatable[rank] && !waits(schedule.ranks[rank][count])) ++count;
      shorter = shorter || count < repeatable[rank];
      repeatable[rank] = count;
    }
  }
  return repeatable;
}

}  // namespace mw::compile
