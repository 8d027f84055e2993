// The memory of one call, byte by byte: every op must find in its operands' bytes what the graph
// says they hold, however the streams run. Private to room pipeline.
#pragma once

#include <string>
#include <vector>

#include "pipeline/fragment_info.h"

namespace mw::pipeline {

// Runs the ops in order on symbolic memory. Findings: an op that reads bytes that another value has
// overwritten or that nobody wrote; one that writes over bytes it still reads, or over bytes that
// an op of another stream may still use; a view or an assembled part that lies elsewhere; a state
// whose value is not in its memory; an output in an input's memory; an input written over that is
// neither an updated state nor consumed. Ports are taken to be disjoint. REQUIRES: no structure
// findings.
std::vector<std::string> fragment_memory_findings(const Fragment& fragment,
                                                  const FragmentInfo& info);

}  // namespace mw::pipeline
