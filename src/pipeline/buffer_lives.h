// When the bytes of a rank's buffers are alive: what a memory curve is drawn from, of a simulated
// step as of a real one.
#pragma once

#include <array>
#include <vector>

#include "pipeline/program.h"

namespace mw::pipeline {

inline constexpr size_t kCategories = 8;

// Bytes of a category that come alive before, or die behind, a command.
struct LiveBytes {
  int32_t command = 0;
  Category category = Category::kActivations;
  int64_t bytes = 0;
};

struct BufferLives {
  std::array<int64_t, kCategories> fixed = {};  // by category: states, and the slots it receives in
  std::vector<LiveBytes> born, died;            // step buffers, one a command and category
};

// Of program.ranks[rank], without the workspace of calls: a step buffer is alive from the first to
// the last command that names it or a view of it.
BufferLives buffer_lives(const Program& program, size_t rank);

// The storage that a buffer is part of.
BufferId root_buffer(const RankProgram& rank, BufferId id);

// Where the last value of the fragment's workspace ends.
int64_t workspace_end(const Fragment& fragment);

}  // namespace mw::pipeline
