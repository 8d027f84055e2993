// What a row of published runs leaves open, and what it may be then. Private to room calibrate.
#pragma once

#include <functional>
#include <vector>

#include "calibrate/run_request.h"

namespace mw::calibrate {

// The row; where it leaves pipeline and replicas open, with each number of stages that deals the
// blocks evenly; where its chunks are unknown and its stack has interleaved schedules, with
// each such number of them.
std::vector<Run> layouts(const Run& run, const Machines& machines);
bool chunks_open(const Run& run, const Machines& machines);
// What a row may be, where it does not say: microbatches of 1, 2, 4 and 8 sequences, no, selective
// or full recomputation, in the order in which a step is the faster at equal microbatches.
// "selective" is what its stack calls so (cluster::Stack::selective_op).
std::vector<int64_t> micro_batches(const Run& run);
std::vector<compile::Recompute> recomputes(const Run& run, const Machines& machines);

// Calls `visit` for layouts, microbatches and recomputations that a row may have been, in turn. A
// microbatch's further recomputations, which only take longer, are left out once one fits, and
// larger microbatches once the least memory is too much.
enum class Outcome : uint8_t { kFits, kTooFull, kCannot };
using Visit =
    std::function<Outcome(const Run& laid, int64_t micro_batch, compile::Recompute recompute)>;
void for_each_choice(const Run& run, const Machines& machines, const Visit& visit);
// Whether there is more than one.
bool leaves_open(const Run& run, const Machines& machines);

}  // namespace mw::calibrate
