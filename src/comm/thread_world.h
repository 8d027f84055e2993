// The backend that needs no other process: every rank is a thread of this one, and a collective
// reads and writes the other ranks' buffers directly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "comm/communicator.h"

namespace mw::comm {

// When a published message moves. (Collectives wait for all members in any case.)
enum class Sends : uint8_t {
  kBuffered,  // at publish
  // In the consumer's receive, when both sides are there; publish starts it and returns, the
  // producer's slot stays in use until then: MPI_Issend, grouped NCCL sends. The weakest semantics
  // that a backend of Channel may have.
  kRendezvous,
  // As kRendezvous, and publish returns only after the consumer has called receive: MPI_Ssend.
  // Weaker than the contract of Channel: GPipe's order runs under it, 1F1B's does not, because
  // there neighbours send to each other at once.
  kBlocking,
};

struct ThreadWorldOptions {
  Sends sends = Sends::kBuffered;
  // Producer and consumer have separate slots, as two processes have, and a slot that was released
  // or freshly acquired is filled with 0xff (NaNs), so that a use after release shows.
  bool copying = false;
  // Sleeps a random time up to max_delay before every operation, to shake out orders; the same seed
  // gives every rank the same sequence of delays.
  std::optional<uint64_t> delay_seed = std::nullopt;
  Seconds max_delay = Seconds(200e-6);
};

struct ThreadWorldState;

class ThreadWorld {
 public:
  // REQUIRES: ranks >= 1.
  explicit ThreadWorld(int ranks, ThreadWorldOptions options = {});
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int size() const;
  // Valid as long as the world. A rank may use it from several threads, each with its own handles.
  Endpoint& endpoint(RankId rank);

  // From any thread: every blocking wait of every rank throws Aborted(reason) within milliseconds
  // (a collective that all members have entered is finished first). The first reason stands; the
  // world is of no use afterwards.
  void abort(std::string reason);

  // What all ranks are blocked on, by rank.
  std::vector<Waiting> waiting() const;

 private:
  std::unique_ptr<ThreadWorldState> state_;
};

}  // namespace mw::comm
