// Runs all pipeline ranks abstractly, each as far as it can: acquire waits for a free slot, receive
// for its message, a collective that crosses pipeline ranks for all its members with the same
// operation. What happens then is the same for every speed of the ranks, since a step that can be
// done stays possible until it is done.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "pipeline/groups.h"
#include "pipeline/verify.h"

namespace mw::pipeline {
namespace {

// A collective whose members lie on several pipeline ranks; members call it in the order of
// arrival.
struct CrossGroup {
  std::string label;
  std::vector<int32_t> members;
  std::vector<std::vector<std::string>> arrived;  // [member index] signatures, in order
};

struct RankState {
  size_t command = 0;
  size_t collective = 0;  // of the command's call, among those that cross ranks
  bool arrived = false;   // at that collective
};

class Simulation {
 public:
  Simulation(const Checked& checked, Diagnostics& out)
      : checked_(checked),
        program_(checked.program),
        out_(out),
        ranks_(program_.ranks.size()),
        published_(program_.channels.size()),
        released_(program_.channels.size()) {
    for (const FragmentInfo& info : checked.info) {
      crossing_.emplace_back();
      for (const CollectiveInfo& collective : info.collectives) {
        if (group_ranks(program_, *collective.group, 0).size() > 1 || is_holders(collective)) {
          crossing_.back().push_back(&collective);
        }
      }
    }
  }

  void run() {
    bool moved = true;
    std::vector<bool> ready(ranks_.size(), true);
    while (moved) {
      moved = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        if (!ready[r]) continue;
        ready[r] = false;
        if (!advance(static_cast<int32_t>(r))) continue;
        moved = true;
        std::fill(ready.begin(), ready.end(), true);
      }
    }
    report();
  }

 private:
  static bool is_holders(const CollectiveInfo& collective) {
    return std::holds_alternative<ir::Holders>(*collective.group);
  }
  const Command& command(int32_t r) const { return checked_.rank(r).commands[state(r).command]; }
  RankState& state(int32_t r) { return ranks_[static_cast<size_t>(r)]; }
  const RankState& state(int32_t r) const { return ranks_[static_cast<size_t>(r)]; }
  bool done(int32_t r) const { return state(r).command == checked_.rank(r).commands.size(); }

  // Whether the rank could do anything.
  bool advance(int32_t r) {
    bool moved = false;
    while (!done(r) && step(r)) {
      moved = true;
      ++state(r).command;
      state(r).collective = 0;
    }
    return moved || std::exchange(arrived_now_, false);
  }

  bool step(int32_t r) {
    const Command& here = command(r);
    const auto channel = static_cast<size_t>(here.channel);
    switch (here.kind) {
      case Command::Kind::kLoad: return true;
      case Command::Kind::kAcquire: {
        const int64_t before = here.sequence - program_.channels[channel].slots;
        return before < 0 || released_[channel].contains(before);
      }
      case Command::Kind::kPublish: published_[channel].insert(here.sequence); return true;
      case Command::Kind::kReceive: return published_[channel].contains(here.sequence);
      case Command::Kind::kRelease: released_[channel].insert(here.sequence); return true;
      case Command::Kind::kCall: return call(r, here);
    }
    return true;
  }

  bool call(int32_t r, const Command& here) {
    const auto& collectives = crossing_[here.fragment.index()];
    for (RankState& at = state(r); at.collective < collectives.size(); ++at.collective) {
      const CollectiveInfo& collective = *collectives[at.collective];
      CrossGroup& group = group_of(collective, r);
      const auto member = std::find(group.members.begin(), group.members.end(), r);
      if (member == group.members.end()) {
        if (!at.arrived) {
          out_.add("{}, op {}: works with the {}, to which pipeline rank {} does not belong",
                   place_text(program_, r, at.command), collective.op, group.label, r);
        }
        at.arrived = true;
        return false;
      }
      auto& mine = group.arrived[static_cast<size_t>(member - group.members.begin())];
      if (!at.arrived) {
        mine.push_back(collective.signature);
        at.arrived = arrived_now_ = true;
        compare(group, mine, r, collective);
      }
      for (const auto& others : group.arrived) {
        if (others.size() < mine.size()) return false;
      }
      at.arrived = false;
    }
    return true;
  }

  CrossGroup& group_of(const CollectiveInfo& collective, int32_t r) {
    const std::string label = group_label(*collective.group);
    const auto [it, is_new] = groups_.try_emplace(label);
    if (is_new) {
      it->second.label = label;
      it->second.members = group_ranks(program_, *collective.group, r);
      it->second.arrived.resize(it->second.members.size());
    }
    return it->second;
  }

  void compare(const CrossGroup& group, const std::vector<std::string>& mine, int32_t r,
               const CollectiveInfo& collective) {
    const size_t k = mine.size() - 1;
    for (size_t m = 0; m < group.members.size(); ++m) {
      if (group.arrived[m].size() <= k || group.arrived[m][k] == mine[k]) continue;
      out_.add("{}, op {}: operation {} of group {} is {} here, but {} on pipeline rank {}",
               place_text(program_, r, state(r).command), collective.op, k, group.label, mine[k],
               group.arrived[m][k], group.members[m]);
      return;
    }
  }

  void report() {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const auto r = static_cast<int32_t>(i);
      if (done(r)) continue;
      out_.add("{} waits forever for {}", place_text(program_, r, state(r).command), waits_for(r));
    }
  }

  std::string waits_for(int32_t r) const {
    const Command& here = command(r);
    const auto at = [&](int32_t peer) {
      return done(peer)
                 ? fmt::format("pipeline rank {} has ended", peer)
                 : fmt::format("pipeline rank {} is at command {}", peer, state(peer).command);
    };
    if (here.kind == Command::Kind::kCall) {
      const CollectiveInfo& collective = *crossing_[here.fragment.index()][state(r).collective];
      std::string text = fmt::format("the others of group {} at op {}",
                                     group_label(*collective.group), collective.op);
      for (const int32_t peer : group_ranks(program_, *collective.group, r)) {
        if (peer != r) text += "; " + at(peer);
      }
      return text;
    }
    const Channel& channel = program_.channels[static_cast<size_t>(here.channel)];
    if (here.kind == Command::Kind::kAcquire) {
      return fmt::format("message {} to be released ({} slots); {}", here.sequence - channel.slots,
                         channel.slots, at(channel.to));
    }
    return "the message; " + at(channel.from);
  }

  const Checked& checked_;
  const Program& program_;
  Diagnostics& out_;
  std::vector<RankState> ranks_;
  std::vector<std::set<int64_t>> published_, released_;       // [channel]
  std::vector<std::vector<const CollectiveInfo*>> crossing_;  // [fragment]
  std::map<std::string, CrossGroup> groups_;
  bool arrived_now_ = false;
};

}  // namespace

void check_deadlock(const Checked& checked, Diagnostics& out) { Simulation(checked, out).run(); }

}  // namespace mw::pipeline
