// What one stage of a model costs, as numbers.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace mw::predict {

// Seconds of a call of the stage's fragments; bytes on one device.
enum Fact : uint8_t {
  kForward,
  kInputGrad,  // of a backward that is split into I and W
  kWeightGrad,
  kBackward,  // whole
  kPaired,    // that forward and whole backward take less where a schedule lays them together
  kUpdate,
  kUpdateBefore,      // of kUpdate, until all pipeline ranks meet
  kUpdateSums,        // beside the backward pass, and
  kUpdateGathers,     // beside the next forwards: not of kUpdate (simulate/call_time.h)
  kSaved,             // activations of a microbatch from F to B or I
  kSavedForWeights,   // and from I to W
  kSavedByInputGrad,  // of these, what I makes
  kWorkspace,         // of forward and whole backward
  kSplitWorkspace,    // of forward and a backward that is split
  kUpdateWorkspace,
  kWeights,
  kGradients,
  kExpertGradients,  // of kGradients, whole ones of experts over which ep divides
  kOptimizer,
  // Gaps in which the device waits, of I, W and B; and how far the host is ahead at their end.
  kGaps,
  kLeads = kGaps + 3,
  // Of two F, a B, an I and a W, when collectives have the links of level 0; then of the others.
  kLinks = kLeads + 3,
  kFacts = kLinks + 4
};
using Facts = std::array<double, kFacts>;

// Facts of time whose gaps and leads are told, in their order.
inline constexpr std::array<Fact, 3> kWaiting = {kInputGrad, kWeightGrad, kBackward};

// Facts of a stage with n blocks are base + n * block, for those of them that are of the model's
// second kind (without an attention window where every other block has one, with one MLP before
// blocks of experts) second more, and first or last more where it also has what stands before or
// behind the blocks. The backward pass begins with what stands behind: large
// products, during which the host gets ahead. More blocks than `last` was read off have less gaps
// as long as it is. The workspaces of forward and backward are one block's, or two blocks' where
// one begins before the other ends, or what stands before or behind the blocks: they grow no
// further than with the most blocks that they were read off.
struct StageFacts {
  static constexpr int64_t kAny = int64_t{1} << 40;

  Facts base{}, block{}, second{}, first{}, last{};
  int64_t last_blocks = 0;                         // that `first` and `last` were read off
  int64_t most_blocks = kAny, most_second = kAny;  // that facts were read off
  // Of a stage that is always the first and the last: the fewest blocks that facts were read off,
  // until which the host may still be ahead of the device. 0: of others.
  int64_t ahead_blocks = 0;
  // `second_blocks`: those of the second kind.
  Facts of(int64_t blocks, bool is_first, bool is_last, int64_t second_blocks = 0) const;

  // Of two stages between the ends, with so many blocks and so many more; no ends.
  static StageFacts of_two(const Facts& few, int64_t blocks, const Facts& many, int64_t more);
  // Of four stages with these blocks: the third has one more than the second, or as many as all
  // have; the ends have as many as one of the two.
  static StageFacts of_four(const std::vector<Facts>& stages, const std::vector<int64_t>& blocks);
  // Where blocks at even and at odd places differ. Of four stages with one block each, or of five:
  // with an even number of blocks, as many, two more, one more, and as many.
  static StageFacts of_alternating(const std::vector<Facts>& stages,
                                   const std::vector<int64_t>& blocks);
  // Where all blocks of the second kind have these facts, and all of the first kind ours; `blocks`:
  // both are of stages with so many, 0: with any number. Workspaces stay as they are: one block's
  // at a time.
  void add_second(const StageFacts& all, int64_t blocks = 0);

 private:
  void add_gaps_behind(int64_t blocks, Facts& facts) const;
};

}  // namespace mw::predict
