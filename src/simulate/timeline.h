// What the event loop recorded, as a trace. Private to room simulate.
#pragma once

#include "simulate/event_loop.h"

namespace mw::simulate {

// One pipeline rank is one device of the trace. Stream 0: computation and waits; 1: messages out;
// from 2 on: communication by label.
trace::Trace make_trace(const LoopInput& input, EventLoop& loop, const Labels& labels,
                        const std::vector<RankId>& devices);

}  // namespace mw::simulate
