// The HTML report: one file without any other, with the time lines, memory and shares of one plan
// or of several. Made from data alone: the same page gives the same bytes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "trace/trace.h"

namespace mw::report {

struct Figure {
  std::string name, value, note;  // "step", "14.6 s", "" or what the value is measured against
};

struct Share {
  std::string name;  // "computation", "exposed tp", "wait: receive"…
  Seconds time;
};

struct LargeTensor {
  std::string name;
  trace::MemoryCategory category = trace::MemoryCategory::kOther;
  Bytes bytes;
};

struct PagePeak {
  Seconds time;
  std::string at;  // "in B of stage 1, microbatch 3"
  std::map<trace::MemoryCategory, Bytes> by_category;
  std::vector<LargeTensor> largest;
};

struct PageRank {
  RankId device;              // of the trace
  std::string stages;         // "stages 0, 4", or ""
  std::vector<Share> shares;  // add up to the step
  PagePeak peak;
  Bytes reserved;  // by the memory plan
};

// A piece of the critical path.
struct PathPiece {
  int32_t rank = 0;  // index into PageRun::ranks
  Seconds begin, end;
  bool message = false;
};

struct PageRun {
  std::string plan;
  Seconds step;
  int32_t chunks = 1;           // stages a rank
  std::vector<Figure> figures;  // the same names in every run of a page
  std::string note;             // what speaks against trusting them, or ""
  Bytes memory_limit;           // of a device, for tensors; 0: not known
  std::vector<PageRank> ranks;  // rows, from above
  std::vector<PathPiece> path;
  std::vector<std::string> words;    // the critical path
  std::vector<std::string> changes;  // what to change
  trace::Trace trace;
};

struct Page {
  std::string title, subtitle;
  std::vector<PageRun> runs;
};

// Most points of a memory curve that a rank gets; a longer curve keeps the fullest instant of each
// part of the step, so that its peak stays, and what is held through parts without a change.
inline constexpr size_t kMemoryPoints = 1024;

std::string to_html(const Page& page);

}  // namespace mw::report
