// The checks that a verification is made of, one a file. Private to room pipeline.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "pipeline/accumulation.h"
#include "pipeline/buffer_lives.h"
#include "pipeline/fragment_info.h"
#include "pipeline/verifier.h"

namespace mw::pipeline {

// A program with what is known of its fragments.
struct Checked {
  const Program& program;
  const VerifyOptions& options;
  std::vector<FragmentInfo> info;              // [fragment]
  std::vector<AccumulationInfo> accumulation;  // [fragment]

  const Fragment& fragment(const Command& command) const {
    return program.fragments[command.fragment.index()];
  }
  const FragmentInfo& info_of(const Command& command) const {
    return info[command.fragment.index()];
  }
  const RankProgram& rank(int32_t r) const { return program.ranks[static_cast<size_t>(r)]; }
};

// Microbatches add to it: a gradient or a metric.
inline bool is_accumulator(const Buffer& buffer) {
  return buffer.category == Category::kGradients || buffer.category == Category::kMetrics;
}
// Of a microbatch.
inline bool is_work(ActionKind kind) {
  return kind == ActionKind::kF || kind == ActionKind::kI || kind == ActionKind::kW ||
         kind == ActionKind::kB;
}

// "pipeline rank 2, command 17 (call 'F stage 1', 1F7)"; of a message also the channel, its number
// and the peer.
std::string place_text(const Program& program, int32_t rank, size_t command);

// A check that goes through the commands of every rank; its findings say where it is.
class CommandChecker {
 protected:
  CommandChecker(const Checked& checked, Diagnostics& out)
      : checked_(checked), program_(checked.program), out_(out) {}

  const Buffer& buffer(BufferId id) const { return checked_.rank(rank_).buffers[id.index()]; }
  // The buffer whose storage a view lies in.
  BufferId root(BufferId id) const { return root_buffer(checked_.rank(rank_), id); }
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    out_.add("{} {}", place_text(program_, rank_, command_),
             fmt::format(format, std::forward<Args>(args)...));
  }

  const Checked& checked_;
  const Program& program_;
  Diagnostics& out_;
  int32_t rank_ = 0;
  size_t command_ = 0;
};

// Ids, counts and sizes that all other checks rely on.
void check_structure(const Program& program, Diagnostics& out);
void check_fragments(const Checked& checked, Diagnostics& out);
void check_flow(const Checked& checked, Diagnostics& out);
void check_channels(const Checked& checked, Diagnostics& out);
void check_deadlock(const Checked& checked, Diagnostics& out);
void check_gradients(const Checked& checked, Diagnostics& out);
void check_parameters(const Checked& checked, Diagnostics& out);
void check_norm(const Checked& checked, Diagnostics& out);
void check_step(const Checked& checked, Diagnostics& out);
void check_memory(const Checked& checked, Diagnostics& out);
void check_validation(const Checked& checked, Diagnostics& out);
void check_amendment(const Checked& train, const Checked& amend, Diagnostics& out);
std::vector<RankFigures> make_figures(const Checked& checked);
// States, step arena and the slots that the rank receives in.
Bytes memory_of(const Program& program, const RankFigures& figures, int32_t rank);

}  // namespace mw::pipeline
