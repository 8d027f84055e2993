// The plans that a search looks at: what the request's `only` takes of all. Private to room
// planner.
#pragma once

#include <string>
#include <vector>

#include "planner/planner.h"

namespace mw::planner {

struct Layout {
  int64_t tp = 1, pp = 1, dp = 1;
};

// tp divides the heads, dp the batch, pp the blocks or a quarter more places than there are blocks,
// and their product is `devices`.
std::vector<Layout> layouts(const Request& request, int64_t devices);

// The numbers of devices from `least` to `most` that have a layout, ascending; with whole_nodes
// those that fill nodes.
std::vector<int64_t> device_counts(const Request& request, int64_t least, int64_t most,
                                   bool whole_nodes = true);

// Parts of dp that a mixture's experts can be divided over; 1 alone without one.
std::vector<int64_t> expert_ways(const Request& request, int64_t dp);

// Everything of a layout but its schedule and chunks: ep, sp, ZeRO where dp > 1, recompute that the
// stack's engine has or `only` names, microbatch sizes. Gradient accumulation (1f1b) stands for the
// schedule.
std::vector<compile::Plan> layout_plans(const Request& request, const Layout& layout);

// Chunks that divide the most blocks that a pipeline rank has. Beside these `pipelinings` has two
// chunks of an odd number, the one a block longer: a rank has no more blocks by it.
std::vector<int64_t> chunk_counts(const Request& request, int64_t pp);

// Schedule and chunks; kinds that differ in nothing are there once.
struct Pipelining {
  std::string schedule;
  int64_t chunks = 1;
};
// Of a layout's plan, without what the stack's engine does not run unless `only` names schedules.
std::vector<Pipelining> pipelinings(const Request& request, const compile::Plan& layout);
// Gives the plan that schedule. Where its microbatches are no multiple of its ranks, but at least
// twice as many: in the shortest rounds that they fill, of up to half as many again as ranks.
// (Longer ones hold more, and fewer microbatches leave more idle.)
void lay(const Pipelining& pipelining, compile::Plan& plan);

// Whether they are part of a node or whole ones.
bool fills_nodes(const cluster::Cluster& cluster, int64_t devices);

}  // namespace mw::planner
