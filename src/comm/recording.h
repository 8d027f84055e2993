// A fake of this room's interfaces for the tests of others: one rank runs alone, nothing blocks,
// and what it asked for is written down in order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mw::comm {

// One rank of a world whose other ranks answer at once. Collectives leave `out` as it is
// (all_reduce and broadcast therefore act as if the other ranks held the neutral element), and
// receive() returns zeros.
class RecordingEndpoint : public Endpoint {
 public:
  RecordingEndpoint(RankId rank, int world_size) : rank_(rank), world_size_(world_size) {}

  RankId rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  using Endpoint::channel;
  using Endpoint::group;
  std::unique_ptr<Communicator> group(std::vector<RankId> members, std::string name,
                                      StreamHandle stream) override;
  std::unique_ptr<Channel> channel(RankId peer, int32_t id, Bytes slot_bytes, int slots,
                                   bool is_producer, StreamHandle stream) override;
  // Later operations throw Aborted.
  void abort(std::string reason) override;
  std::vector<Waiting> waiting() const override { return {}; }

  // In order, for example
  //   "group dp [0, 2]"
  //   "dp: all_reduce sum f32 [1024]"
  //   "channel 3 0>1: open 2 x 64 bytes"
  //   "channel 3 0>1: publish 7"
  const std::vector<std::string>& log() const { return log_; }
  void clear() { log_.clear(); }

 private:
  friend class RecordingCommunicator;
  friend class RecordingChannel;
  void record(std::string line);

  RankId rank_;
  int world_size_;
  std::vector<std::string> log_;
  std::string reason_;
  bool aborted_ = false;
};

}  // namespace mw::comm
