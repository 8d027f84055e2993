// The channels of a program: one for every value that goes from a stage on one pipeline rank to a
// stage on another.
#pragma once

#include <compare>
#include <map>
#include <vector>

#include "compile/lower.h"
#include "pipeline/program.h"

namespace mw::compile {

struct ChannelKey {
  ValueId whole;  // of the whole graph
  StageId from, to;
  friend auto operator<=>(const ChannelKey&, const ChannelKey&) = default;
};

struct ChannelPlan {
  std::vector<pipeline::Channel> channels;
  std::map<ChannelKey, int32_t> ids;
  // [channel][microbatch] place in the producer's order, -1: not sent
  std::vector<std::vector<int32_t>> sequences;
  std::vector<std::vector<int32_t>> microbatches;  // [channel][place]

  int32_t find(const ChannelKey& key) const;  // -1: both stages are on one rank
  int32_t sequence(int32_t channel, int32_t microbatch) const;
};

// Slots: as many as messages from the oldest that is held at one time to the newest, when no
// producer has to wait for a slot and a backward (of a split one the input gradient) takes as long
// as a forward, twice or three times as long (the most of the three), so that slots do not slow the
// schedule down. Messages have them in turn, in the producer's order.
ChannelPlan plan_channels(const pipeline::Schedule& schedule, const std::vector<StageCode>& stages);

}  // namespace mw::compile
