// When the bytes of a rank's buffers are alive: what a memory curve is drawn from, of a simulated
// step as of a real one.
#pragma once

#include <array>
#include <utility>
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

using BytesByCategory = std::array<int64_t, kCategories>;

struct BufferLives {
  BytesByCategory fixed = {};         // states, and the slots it receives in
  std::vector<LiveBytes> born, died;  // step buffers, one a command and category
};

// The first and the last command that name a buffer or a view of it; -1: none does.
struct BufferUse {
  int32_t first = -1, last = -1;
};
std::vector<BufferUse> buffer_uses(const RankProgram& rank);  // [buffer], at its root
// The same for who goes through the commands anyway: see all of them in order, then take.
class BufferUses {
 public:
  explicit BufferUses(const RankProgram& rank);
  void see(int32_t number, const Command& command) {
    for (const BufferId id : command.buffers) {
      BufferUse& use = uses_[static_cast<size_t>(root_[id.index()])];
      if (use.first < 0) use.first = number;
      use.last = number;
    }
  }
  std::vector<BufferUse> take() { return std::move(uses_); }

 private:
  std::vector<int32_t> root_;  // [buffer]
  std::vector<BufferUse> uses_;
};

// Of program.ranks[rank], without the workspace of calls: a step buffer is alive from its first to
// its last use.
BufferLives buffer_lives(const Program& program, size_t rank);
BufferLives buffer_lives(const Program& program, size_t rank, const std::vector<BufferUse>& uses);
// [command] Bytes that are alive at it; without lists, which is faster where nobody else wants
// them.
std::vector<int64_t> alive_bytes(const Program& program, size_t rank,
                                 const std::vector<BufferUse>& uses);
std::vector<int64_t> alive_bytes(const BufferLives& lives, size_t commands);

// The storage that a buffer is part of.
BufferId root_buffer(const RankProgram& rank, BufferId id);

// Where the last value of the fragment's workspace ends.
int64_t workspace_end(const Fragment& fragment);

}  // namespace mw::pipeline
