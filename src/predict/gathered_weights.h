// What the passes of a program gather of weights that data parallelism divides, in elements.
// Private to room predict.
#pragma once

#include <cstdint>

#include "pipeline/program.h"

namespace mw::predict {

// The forward pass that has the loss; null: none has.
const pipeline::Fragment* forward_with_loss(const pipeline::Program& program);
// That it gathers of the first layer and the last, which are no blocks, and of the last block.
int64_t gathered_ends(const pipeline::Program& program);
// Of those, what a backward pass has gathered itself when it comes to op `o`.
int64_t gathered_at(const pipeline::Fragment& fragment, size_t o);
// The two buffers, one behind the other, into which a rank's forward passes gather two layers,
// where they are largest.
int64_t gather_buffers(const pipeline::Program& program, const pipeline::RankProgram& rank);

}  // namespace mw::predict
