// What happened: the one schema of the simulator and of a real run.
//
// Times count from the same start on all ranks of a trace.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace mw::trace {

enum class Category : uint8_t {
  kCompute,
  kComm,   // a collective, a send or a receive at work
  kCopy,   // within a device or between it and its host
  kWait,   // blocked on another rank or stream
  kStep,   // one training step; encloses the rank's other spans, `command` is the step's number
  kIo,     // files: data, checkpoints
  kCall,   // a fragment's call; encloses its ops where these are spans of their own
  kUpdate  // the update's call where its ops are none; encloses its waits for other ranks
};
inline constexpr int kCategories = 8;

enum class MemoryCategory : uint8_t {
  kWeight,
  kGradient,
  kOptimizer,
  kSaved,     // activations kept for the backward pass
  kBoundary,  // slots of pipeline boundaries
  kWorkspace,
  kOther
};
inline constexpr int kMemoryCategories = 7;

// "compute", "comm", …
std::string_view category_name(Category category);
// "weights", "gradients", "optimizer", "activations", "communication buffers", "temporaries",
// "other".
std::string_view memory_category_name(MemoryCategory category);

using NameId = Id<struct NameTag>;  // an entry of a NameTable or of Trace::names

// Work of one rank on one stream. A field that does not apply keeps its default.
struct Span {
  RankId rank = {};
  StreamId stream = {};
  Category category = Category::kCompute;
  NameId name = {};
  Seconds start = {};
  Seconds duration = {};
  Bytes bytes = {};  // moved, or sent
  Flops flops = {};
  MicrobatchId microbatch = {};
  StageId stage = {};
  int32_t command = -1;  // index of the instruction in the rank's program
  // A message's arrow leads from the span with `flow_out` to the one with the same `flow_in`; -1 is
  // none. A number is used for one message of the trace only.
  int64_t flow_out = -1;
  int64_t flow_in = -1;

  Seconds end() const { return start + duration; }
  friend bool operator==(const Span&, const Span&) = default;
};

// The bytes that a rank holds of one category from `time` on.
struct MemorySample {
  RankId rank = {};
  Seconds time = {};
  MemoryCategory category = MemoryCategory::kOther;
  Bytes bytes = {};

  friend bool operator==(const MemorySample&, const MemorySample&) = default;
};

}  // namespace mw::trace
