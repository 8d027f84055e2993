// What a traced run records: one span an instruction, made ready before the run so that recording
// is two clock reads.
#pragma once

#include <vector>

#include "execute/bound_program.h"
#include "trace/recorder.h"

namespace mw::execute {

// A span for every instruction of the program but aliases, whose category, name, stream, stage,
// microbatch and FLOPs do not depend on the run. [instruction]
std::vector<trace::Span> span_templates(const BoundProgram& program, trace::NameTable& names);

// Completes an instruction's span: times, bytes sent, and the arrow from a publish to its receive.
// `ranks` are the world's, `run` numbers the executor's runs.
trace::Span finish_span(trace::Span span, const Instruction& instruction,
                        const BoundProgram& program, Seconds start, Seconds end, Bytes bytes,
                        int64_t run, int64_t ranks);

}  // namespace mw::execute
