// A page's data as its script reads it. Private to room report.
#pragma once

#include <string>
#include <vector>

#include "report/page.h"

namespace mw::report {

// JSON: everything but bars and memory curves. `names[run]` are the texts that packed bars name.
std::string figures_json(const Page& page, const std::vector<std::vector<std::string>>& names);

// Bars and memory curves, in base64. Numbers are unsigned, seven bits a byte, the lowest first, the
// top bit set on all but the last byte; signed ones are 2n or -2n-1. Times are rounded to
// nanoseconds, starts and ends each. For each run and rank:
//
//   number of lanes; for each: stream, name, number of bars; for each bar, by start:
//     8 * name + same; signed start - end of the bar before; duration;
//     unless same & 1: category, stage + 1;  unless same & 2: bytes, FLOPs in millions;
//     unless same & 4: microbatch + 1.
//     same & 1, 2: as in the last bar of that name; same & 4: its microbatch and one
//   number of memory points; for each: time since the one before; for every category of trace:
//   signed
//     change of bytes
//
// `names[run]` gets the texts.
std::string packed_base64(const Page& page, std::vector<std::vector<std::string>>& names);

}  // namespace mw::report
