// Executor: runs rank programs on ranks that are threads, over a Backend and a Communicator. It
// knows no schedule, no model and no parallelism: it binds buffers to addresses once and then runs
// commands in order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/thread_world.h"
#include "execute/backend.h"
#include "pipeline/program.h"
#include "trace/trace.h"

namespace mw::execute {

// Fills a data input. Called from the rank's thread. REQUIRES: writes exactly bytes of `type`;
// depends on (name, microbatch, rank) alone.
using Loader = std::function<void(const std::string& name, int32_t microbatch, RankId rank,
                                  const ir::TensorType& type, void* data)>;

// What a run of one program on one rank measured; to be equal to pipeline::RankFigures, where it is
// kEnded.
struct Measured {
  // kStopped: at the repeat point, where the caller wanted no more. kRepeats: at the repeat point,
  // for the step before is to be amended first.
  enum class End : uint8_t { kEnded, kStopped, kRepeats } end = End::kEnded;
  Bytes bytes_sent;          // as its communicators and channels counted them
  int64_t instructions = 0;  // fragment ops, collectives and aliases included
  uint64_t order_hash = 0;
  Bytes arena_peak;  // first byte of the step arena behind all that the run touched
  Bytes scratch;     // beside both arenas: what kernels and the staging of collectives may use
};

// Calls of a training program one behind the other, each of which validates the step of the one
// before (RankProgram::repeatable), and of one that validates the last. A rank goes on to its next
// call without waiting for others. All functions are called from the ranks' threads.
struct Flow {
  int train = 0, validate = 0, amend = 0;  // programs
  size_t calls = 0;
  std::function<Loader(size_t call)> loader;
  // A rank has validated the step of this call, whether or not it is to be amended; the states say
  // what it found. False: it ends there, amended if so. All ranks must say the same.
  std::function<bool(RankId rank, size_t call)> validated;
  // Whenever a program has ended.
  std::function<void(RankId rank, int program, const Measured& measured)> ended;
};

struct ExecutorOptions {
  int threads_per_rank = 1;
  // No rank makes progress for so long: where all that have not ended wait, the run is aborted with
  // a report.
  double stall_seconds = 60;
  // Called with the report, from the watchdog's thread, where a rank works, as in an op that takes
  // longer; and again whenever that time has doubled. The run goes on.
  std::function<void(const std::string& report)> on_slow;
  bool check_finite =
      false;  // after every load and op look for NaN and infinities; names op and rank of the first
  comm::ThreadWorldOptions world;
};

class Executor {
 public:
  // All programs share the mesh and the states of a compiled plan (their first `states` buffers).
  // Memory, groups, rings and kernels are made here; run() makes none. The programs and the backend
  // must outlive the executor. Throws Error where the backend has no kernel.
  Executor(std::vector<const pipeline::Program*> programs, Backend& backend,
           ExecutorOptions options);
  ~Executor();

  // Runs one call of programs[which] on all ranks; returns when all are done. Throws the first
  // failing rank's error (as Error, CheckFailure or RunError) with the rank, command, op, peer and
  // microbatch before its text; the other ranks end at their next instruction or wait. After a
  // throw the executor cannot run again. With a trace, its spans are added to those of earlier runs
  // of the same program, in seconds since the first traced run; without, no clock is read.
  void run(int which, const Loader& loader, trace::Trace* trace = nullptr);
  // The same of a flow, of whose first call there is a trace. When it has been stopped, the states
  // are those before the step that it was stopped behind, and the executor cannot run again.
  void run(const Flow& flow, trace::Trace* trace = nullptr);
  const std::vector<Measured>& measured() const;  // [rank], of the last run of one program

  // A state's bytes on one rank, for checkpoints, metrics and tests. REQUIRES: no run in progress.
  void* state_data(RankId rank, BufferId buffer);
  // Index of the state buffer by name on the rank's pipeline coordinate; invalid if it is not
  // there.
  BufferId find_state(RankId rank, const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mw::execute
