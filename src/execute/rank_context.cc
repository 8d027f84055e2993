#include "execute/rank_context.h"

#include <algorithm>

#include "base/error.h"
#include "execute/mesh_groups.h"

namespace mw::execute {

RankContext::RankContext(const std::vector<const pipeline::Program*>& programs, Backend& backend,
                         comm::Endpoint& endpoint, const DeviceContext& device)
    : device_(device), coordinate_(pipeline_coordinate(*device.mesh, device.rank)) {
  backend.enter_rank(device_);
  for (const pipeline::Program* program : programs) {
    auto bound = std::make_unique<BoundProgram>();
    bound->program = program;
    bound->rank_program = &program->ranks[static_cast<size_t>(coordinate_)];
    bound_.push_back(std::move(bound));
  }
  open_groups(endpoint, programs);
  int64_t state_bytes = 0, arena_bytes = 0, scratch_bytes = 0;
  std::vector<PreparedFragments> prepared;
  for (const auto& bound : bound_) {
    open_rings(endpoint, *bound->program);
    const auto group_of = [&](const ir::DeviceGroup& group) -> comm::Communicator* {
      const auto found = groups_.find(members_of(*bound->program, device_.rank, group));
      return found == groups_.end() ? nullptr : found->second.get();
    };
    prepared.emplace_back(*bound, backend, device_, group_of);
    state_bytes = std::max(state_bytes, bound->rank_program->state_arena.value);
    arena_bytes = std::max(arena_bytes, bound->rank_program->arena.value);
    scratch_bytes = std::max(scratch_bytes, prepared.back().scratch_bytes().value);
  }
  states_ = allocate(backend, state_bytes);
  arena_ = allocate(backend, arena_bytes);
  scratch_ = allocate(backend, scratch_bytes);
  for (size_t p = 0; p < bound_.size(); ++p) {
    bind(*bound_[p], prepared[p], {device_, states_.data(), arena_.data(), ring_of_channel_[p]});
  }
}

Memory RankContext::allocate(Backend& backend, int64_t bytes) const {
  if (bytes == 0) return {};
  return {backend.allocate(Bytes(bytes), device_), bytes};
}

void RankContext::open_groups(comm::Endpoint& endpoint,
                              const std::vector<const pipeline::Program*>& programs) {
  // Opening a group waits for its members. Every rank opens its groups in the one order of all
  // groups, so that the first group that is not open yet always has all its members waiting for it.
  for (const Members& members : groups_of(programs, device_.rank)) {
    groups_[members] = endpoint.group(members, group_name(members));
  }
}

void RankContext::open_rings(comm::Endpoint& endpoint, const pipeline::Program& program) {
  std::map<std::tuple<int32_t, int32_t, int64_t, int32_t>, int32_t> equals;
  std::vector<Ring*> rings;
  for (const pipeline::Channel& channel : program.channels) {
    const int64_t bytes = channel.type.bytes().value;
    const int32_t nth = equals[{channel.from, channel.to, bytes, channel.slots}]++;
    if (channel.from != coordinate_ && channel.to != coordinate_) {
      rings.push_back(nullptr);
      continue;
    }
    MW_CHECK(channel.from != channel.to, "channel '{}' has one pipeline rank at both ends",
             channel.name);
    std::unique_ptr<Ring>& ring = rings_[{channel.from, channel.to, bytes, channel.slots, nth}];
    if (!ring) {
      // Both ends number the rings between them in the programs' order.
      const int32_t id = channel_ids_[{channel.from, channel.to}]++;
      const bool is_producer = channel.from == coordinate_;
      const RankId peer = at_pipeline_coordinate(program.mesh, device_.rank,
                                                 is_producer ? channel.to : channel.from);
      ring = std::make_unique<Ring>();
      ring->channel = endpoint.channel(peer, id, Bytes(bytes), channel.slots, is_producer);
    }
    rings.push_back(ring.get());
  }
  ring_of_channel_.push_back(std::move(rings));
}

Bytes RankContext::bytes_sent() const {
  Bytes sent;
  for (const auto& [members, group] : groups_) sent += group->bytes_sent();
  for (const auto& [key, ring] : rings_) sent += ring->channel->bytes_sent();
  return sent;
}

}  // namespace mw::execute
