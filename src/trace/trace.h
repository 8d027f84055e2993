// The spans and memory samples of all ranks of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/recorder.h"
#include "trace/span.h"

namespace mw::trace {

struct StreamName {
  RankId rank;
  StreamId stream;
  std::string name;

  friend bool operator==(const StreamName&, const StreamName&) = default;
};

// What a rank is called where "rank 3" does not say enough.
struct RankName {
  RankId rank;
  std::string name;

  friend bool operator==(const RankName&, const RankName&) = default;
};

// Sorted: spans by rank, stream, start and, at one start, the longest first; samples by rank and
// time; streams by rank and id; names of ranks by rank.
struct Trace {
  std::string program_hash;  // of the rank programs that ran or were simulated
  std::string producer;      // "simulate" or "execute"
  std::vector<std::string> names;
  std::vector<RankName> rank_names;
  std::vector<StreamName> streams;
  std::vector<Span> spans;
  std::vector<MemorySample> memory;
  int64_t dropped = 0;  // records that did not fit their recorder
  int64_t step = 0;     // of a training run; 0: of none

  // The name of a span; "" without one.
  const std::string& name(const Span& span) const;
  friend bool operator==(const Trace&, const Trace&) = default;
};

// The ranks of the trace, ascending.
std::vector<RankId> ranks(const Trace& trace);

// Brings spans, samples and names into the order above; equal elements keep their order.
void sort(Trace& trace);

// What the recorders hold, with times from `origin` on; without one, from the first record on
// (processes whose traces will be merged agree on one). Every stream that a span names is called
// "stream 3"; see name_stream.
Trace merge(std::span<const Recorder* const> recorders, const NameTable& names,
            std::string program_hash, std::string producer,
            std::optional<Seconds> origin = std::nullopt);

// Gives a stream its name on all ranks.
void name_stream(Trace& trace, StreamId stream, std::string_view name);

// The traces of several processes as one; times stay as they are, equal names become one.
// Errors: Error if the program hashes or the producers differ. REQUIRES: at least one.
Trace merge(std::span<const Trace> traces);

}  // namespace mw::trace
