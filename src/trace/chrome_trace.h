// The Chrome trace event format, which Perfetto opens: https://ui.perfetto.dev, chrome://tracing.
//
// JSON object format: "traceEvents", one event a line, and "otherData" with the schema's name, the
// program's hash, the producer and the number of dropped records. A process is a rank (pid = rank +
// 1, because viewers keep pid 0 for the idle task), a thread is a stream (tid = stream + 2; tid 1
// holds spans without a stream).
//   M  names and order of processes and threads
//   X  a span: ts and dur in microseconds with three decimals, cat = the category, args = the
//   fields that are set C  "memory": all categories of a rank in bytes, whenever one changes;
//   "memory total" beside it s, f  a message, from the span with flow_out to the one with flow_in
#pragma once

#include <string>
#include <string_view>

#include "base/text.h"
#include "trace/trace.h"

namespace mw::trace {

// The same trace gives the same bytes. Times are rounded to nanoseconds, starts and ends each, so
// that a span that begins exactly at another's end() still does. REQUIRES: finite times, and the
// trace is sorted.
std::string to_chrome_json(const Trace& trace);
// The same, part by part: a large trace is never whole in memory as text.
void write_chrome_json(const Trace& trace, const TextSink& sink);

// Reads what to_chrome_json wrote: equal but for the rounding, for names that no span uses, for
// samples that change nothing, and for the order of names and samples of one time. `file` begins
// the messages. Errors: Error if it is not such a file.
Trace from_chrome_json(std::string_view text, std::string_view file);

}  // namespace mw::trace
