// The loop of one rank: runs a bound program's instructions in order.
#pragma once

#include <atomic>
#include <cstdint>

#include "execute/executor.h"
#include "execute/rank_context.h"
#include "execute/tracing.h"
#include "trace/recorder.h"

namespace mw::execute {

// What a rank tells the watchdog. On a cache line of its own.
struct alignas(64) RankStatus {
  // Low half: the instruction that runs now, from 1; 0: the run has not begun, kEnded: it has
  // ended. High half counts what was started, so that every instruction is another value.
  std::atomic<uint64_t> progress{0};
  // What runs, or ran last.
  std::atomic<int> program{0};
  std::atomic<int64_t> run{0};

  static constexpr uint32_t kEnded = ~uint32_t{0};
  static uint32_t instruction(uint64_t progress) { return static_cast<uint32_t>(progress); }
  static bool runs(uint64_t progress) {
    return instruction(progress) != 0 && instruction(progress) != kEnded;
  }
};

// What a run is of, the same for all ranks.
struct RunRequest {
  int which = 0;
  int64_t run = 0;  // runs of the executor before this one
  const Loader* loader = nullptr;
  bool check_finite = false;
  bool traced = false;
  // Called at the repeat point; false: the run stops there. Null: it goes on.
  const std::function<bool()>* validated = nullptr;
};

class RankRunner {
 public:
  // When `stop` becomes true the run throws comm::Aborted at the next instruction.
  RankRunner(RankContext& context, RankStatus& status, const std::atomic<bool>& stop)
      : context_(context), status_(status), stop_(stop) {}

  // Throws what a kernel, the loader or comm throws; where() then says at which instruction.
  // REQUIRES: the status is that of a run that has not begun; prepare_trace(request.which) was
  // called if the run is traced.
  Measured run(const RunRequest& request);
  // Makes room for the spans of one run. From the thread that calls run's caller, no run in
  // progress.
  void prepare_trace(int which, trace::NameTable& names);
  // What the last traced run recorded. REQUIRES: there was one.
  const trace::Recorder& recorder() const { return *recorder_; }
  // "train run 3, command 17 call 'F stage 1' …" of the instruction that runs or threw; before the
  // first and after the last the run alone. From any thread.
  std::string where() const;

 private:
  // What has been sent to this rank is taken and forgotten, so that the run begins anew.
  void go_back(const BoundProgram& program) const;
  void run_instruction(BoundProgram& program, const Instruction& instruction,
                       const RunRequest& request);
  void check_results(const BoundProgram& program, const Instruction& instruction) const;

  RankContext& context_;
  RankStatus& status_;
  const std::atomic<bool>& stop_;
  uint64_t started_ = 0;
  std::vector<std::unique_ptr<ProgramTrace>> traces_;  // [program], null until it is traced
  std::unique_ptr<trace::Recorder> recorder_;
  int64_t most_spans_ = 0, most_samples_ = 0;  // of the recorder
};

}  // namespace mw::execute
