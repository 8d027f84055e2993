// Orders a fragment so that communication runs beside computation: collectives start as soon as
// their operands are there, weight gradients (which nothing of the fragment waits for) run while
// they are under way, and whoever reads a result waits for its event.
#pragma once

#include "cluster/mesh.h"
#include "pipeline/program.h"

namespace mw::pipeline {

// Reorders the ops and fills the launches. Values and their bits stay: only ops that do not depend
// on each other change places. Stream 0 computes; a collective over mesh axis i runs on stream
// 1 + i, one over several axes or over holders on the stream behind them, one over several axes of
// tensor parallelism on the next; one whose group has one member stays on stream 0. Collectives of
// one group have one stream, which keeps them in order.
//
// Weight gradients wait for the next collective, but not beyond their layer's last input gradient;
// sums of gradients that a collective reduced wait until one of another layer reduces, and products
// of what is gathered for them alone until one of another layer gathers or reduces. A collective
// starts no earlier than the op before it, so that no more memory is alive than that order keeps.
// The first of a layer's weights, up to `gather_ahead` elements, are gathered where those of the
// layer before would be, while that layer computes: two layers' are alive at a time, as with FSDP's
// backward prefetch. 0: none.
// REQUIRES: the graph and its ports are complete; memory is not planned yet.
void order_for_overlap(Fragment& fragment, const cluster::Mesh& mesh, int64_t gather_ahead);

}  // namespace mw::pipeline
