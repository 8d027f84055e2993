// What a traced run records: a span an instruction and one a call around them, and the memory
// curve. All that does not depend on the run is made ready before it.
#pragma once

#include <array>
#include <vector>

#include "execute/bound_program.h"
#include "pipeline/buffer_lives.h"
#include "trace/recorder.h"

namespace mw::execute {

// The recording of one program on one rank. A run calls begin, then before and after every
// instruction in order, then end.
class ProgramTrace {
 public:
  ProgramTrace(const BoundProgram& program, trace::NameTable& names);

  // Most that a run records.
  int64_t spans() const { return spans_needed_; }
  int64_t samples() const { return samples_needed_; }

  // `run` numbers the executor's runs, `ranks` are the world's.
  void begin(trace::Recorder& recorder, Seconds now, int64_t run, int64_t ranks);
  void before(uint32_t instruction, Seconds now);
  // `bytes` were sent by the instruction.
  void after(uint32_t instruction, Seconds start, Seconds end, Bytes bytes);
  void end(Seconds now, Bytes bytes);

 private:
  bool starts_command(uint32_t instruction) const;
  bool ends_command(uint32_t instruction) const;
  trace::Span finished(uint32_t instruction, Seconds start, Seconds end, Bytes bytes) const;
  // Takes the changes up to the command in, and samples their categories.
  void change(const std::vector<pipeline::LiveBytes>& list, size_t& next, int sign, int32_t command,
              Seconds now);
  void sample_workspace(int32_t command, Seconds now, bool alive);

  const BoundProgram& program_;
  std::vector<trace::Span> instructions_;  // [instruction]
  std::vector<trace::Span> calls_;         // [command], without a name: no call
  std::vector<int64_t> workspace_;         // [command] bytes
  pipeline::BufferLives lives_;
  trace::NameId step_name_;
  int64_t spans_needed_ = 0, samples_needed_ = 0;

  // Of the run in progress.
  trace::Recorder* recorder_ = nullptr;
  int64_t run_ = 0, ranks_ = 1;
  Seconds begin_, call_begin_;
  size_t next_born_ = 0, next_died_ = 0;
  std::array<int64_t, trace::kMemoryCategories> alive_ = {};
};

}  // namespace mw::execute
