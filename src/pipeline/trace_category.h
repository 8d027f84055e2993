// A program's memory in the words of traces.
#pragma once

#include "pipeline/program.h"
#include "trace/span.h"

namespace mw::pipeline {

trace::MemoryCategory trace_category(Category category);

}  // namespace mw::pipeline
