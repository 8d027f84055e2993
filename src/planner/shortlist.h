// Which of the plans that estimates are best for are simulated, where that takes long. Private to
// room planner.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/front.h"

namespace mw::planner {

// Pieces of work in a plan's program: stages x microbatches x slices of sequences. Compiling and
// simulating them takes seconds where they are 2^16.
int64_t pieces_of(const compile::Plan& plan);

struct Shortlist {
  static constexpr int64_t kShort = 1 << 14;     // pieces of one program
  static constexpr int64_t kTogether = 1 << 18;  // of all long ones of `first`
  // Of a step's estimate (docs/planner.md): what it does not promise is not looked for.
  static constexpr double kError = 0.03;

  // All that are short, and from the fastest on those long ones that the front can reach and that
  // together are not too long, or the one fastest; in the order in which they came.
  std::vector<Estimated> first;
  // The others, the fastest first.
  std::vector<Estimated> later;

  // Whether the next of `later` may be better than the best step that was found.
  static bool may_win(const Estimated& next, Seconds best) {
    return next.step.value < (1 - kError) * best.value;
  }
};
Shortlist shortlist(const std::vector<Estimated>& plans);

}  // namespace mw::planner
