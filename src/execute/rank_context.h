// RankContext: what one rank owns for the life of an executor: memory, communicators, rings and its
// bound programs. Built and used by the rank's own thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "comm/communicator.h"
#include "execute/backend.h"
#include "execute/bind.h"
#include "execute/bound_program.h"

namespace mw::execute {

struct Memory {
  std::shared_ptr<void> handle;
  int64_t bytes = 0;
  char* data() const { return static_cast<char*>(handle.get()); }
};

class RankContext {
 public:
  // Opens groups and rings, prepares kernels, allocates, binds. Collective over all ranks: blocks
  // until the others build theirs.
  RankContext(const std::vector<const pipeline::Program*>& programs, Backend& backend,
              comm::Endpoint& endpoint, const DeviceContext& device);

  const DeviceContext& device() const { return device_; }
  BoundProgram& program(int which) { return *bound_[static_cast<size_t>(which)]; }
  const Memory& states() const { return states_; }
  void* scratch() const { return scratch_.handle.get(); }
  Bytes scratch_bytes() const { return Bytes(scratch_.bytes); }
  // Sent since construction, by collectives and channels.
  Bytes bytes_sent() const;

 private:
  using Members = std::vector<RankId>;
  // Programs share rings that have the same ends and sizes and are the same one of those within
  // their program: pipeline ranks from and to, bytes and slots, index among equals.
  using RingKey = std::tuple<int32_t, int32_t, int64_t, int32_t, int32_t>;

  void open_groups(comm::Endpoint& endpoint, const std::vector<const pipeline::Program*>& programs);
  void open_rings(comm::Endpoint& endpoint, const pipeline::Program& program);
  Memory allocate(Backend& backend, int64_t bytes) const;

  DeviceContext device_;
  int32_t coordinate_ = 0;
  Memory states_, arena_, scratch_;
  std::map<Members, std::unique_ptr<comm::Communicator>> groups_;
  std::map<RingKey, std::unique_ptr<Ring>> rings_;
  std::map<std::pair<int32_t, int32_t>, int32_t>
      channel_ids_;                                  // pipeline ranks from, to -> rings opened
  std::vector<std::vector<Ring*>> ring_of_channel_;  // [program][channel], null: of other ranks
  std::vector<std::unique_ptr<BoundProgram>> bound_;
};

}  // namespace mw::execute
