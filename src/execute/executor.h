// Executor: runs rank programs on ranks that are threads, over a Backend and a Communicator. It knows no schedule, no
// model and no parallelism: it binds buffers to addresses once and then runs commands in order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "execute/backend.h"
#include "pipeline/program.h"
#include "trace/trace.h"

namespace mw::execute {

// Fills a data input. REQUIRES: writes exactly bytes of `type`; depends on (name, microbatch, rank) alone.
using Loader = std::function<void(const std::string& name, int32_t microbatch, RankId rank, const ir::TensorType& type,
                                  void* data)>;

// What a run of one program on one rank measured; to be equal to pipeline::RankFigures.
struct Measured {
  Bytes bytes_sent;
  int64_t instructions = 0;
  uint64_t order_hash = 0;
  Bytes arena_peak;
};

struct ExecutorOptions {
  int threads_per_rank = 1;
  double stall_seconds = 60;  // the watchdog reports a rank that makes no progress for so long
  bool check_finite = false;  // after every op look for NaN and infinities; names op and rank of the first
};

class Executor {
 public:
  // All programs share the states of a compiled plan (their first `states` buffers).
  Executor(std::vector<const pipeline::Program*> programs, Backend& backend, ExecutorOptions options);
  ~Executor();

  // Runs one call of programs[which] on all ranks; returns when all are done. Throws the first rank's error with the rank,
  // command, op, peer and microbatch. After a throw the executor cannot run again.
  void run(int which, const Loader& loader, trace::Trace* trace = nullptr);
  const std::vector<Measured>& measured() const;  // [rank], of the last run

  // A state's bytes on one rank, for checkpoints, metrics and tests. REQUIRES: no run in progress.
  void* state_data(RankId rank, BufferId buffer);
  // Index of the state buffer by name on the rank's pipeline coordinate; invalid if it is not there.
  BufferId find_state(RankId rank, const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mw::execute
