// What the event loop recorded, as a trace. Private to room simulate.
#pragma once

#include "simulate/event_loop.h"

namespace mw::simulate {

// One pipeline rank is one device of the trace. Stream 0: computation and waits; from 1 on:
// messages with each of its peers, both ways, of which any rank has P at most; from 1 + P on:
// communication, one a label, and behind those one more a label of an update that goes ahead of the
// calls before.
trace::Trace make_trace(const LoopInput& input, EventLoop& loop, const Labels& labels,
                        const std::vector<RankId>& devices);

}  // namespace mw::simulate
