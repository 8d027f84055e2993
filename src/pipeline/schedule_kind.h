// ScheduleKind: what there is to know of a kind of schedule, and how one is made. Whoever treats
// kinds differently asks for a fact here and never for a name, so that a new kind is one new file
// of schedules/: every `extern const ScheduleKind k… = {` there is one (listed_kinds.cc.in).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mw {
class Diagnostics;
}

namespace mw::pipeline {

struct Schedule;
struct ScheduleRequest;

// What a plan has that says nothing of its schedule; with several stages a rank, see
// kind_with_chunks.
inline constexpr const char* kUsualKind = "1f1b";

// Stages a rank: what is usual, the least and the most (0: any), in steps.
struct ChunkRange {
  int32_t usual = 1, least = 1, most = 1, step = 1;
  bool holds(int64_t chunks) const {
    return chunks >= least && (most == 0 || chunks <= most) && (chunks - least) % step == 0;
  }
};
inline constexpr ChunkRange kOneChunk = {};
inline constexpr ChunkRange kAnyChunks = {.usual = 2, .least = 1, .most = 0};
inline constexpr ChunkRange kTwoChunks = {.usual = 2, .least = 2, .most = 2};

// Options of a request that only some kinds have.
struct KindOptions {
  bool group = false, slices = false, pairs = false, sync = false;
  bool memory_limit = false;  // the order keeps to it
  bool costs = false;         // the order is made for them
  bool exact = false;
};

// Kinds that this one is a variant of, by name; null: of none.
struct Variant {
  const char* one_chunk = nullptr;       // what it comes to where a rank has one stage
  const char* whole_backward = nullptr;  // its orders of F and of I, but I and W are one
  const char* flushed = nullptr;         // its order within a step, with a flush behind it
  const char* less_memory = nullptr;     // takes as long and has fewer microbatches alive
  const char* same_memory = nullptr;     // takes longer and has as many microbatches alive
  bool for_memory = false;               // made to hold less than the usual kind
};

// What a kind is called under a memory limit of so many times its ranks.
struct NamedLimit {
  const char* name;
  int32_t ranks;
};

struct ScheduleKind {
  const char* name;
  const char* summary;  // in one line
  int32_t since;        // year and month in which it was published, 202104; kinds are listed by it
  ChunkRange chunks;
  KindOptions options;
  // Findings beyond the ranges that hold for all kinds; null: none. Like `make`, it gets a request
  // with the usual values filled in.
  void (*check)(const ScheduleRequest& request, Diagnostics& out);
  // REQUIRES: the request has no finding.
  Schedule (*make)(const ScheduleRequest& request);
  int32_t parts = 1;            // Schedule::parts
  int32_t weight_versions = 1;  // Schedule::weight_versions
  // The order comes again after as many microbatches as this many pipelines have ranks; 0: never.
  int32_t period = 1;
  // Of every stage, each on a rank of its own; with KindOptions::pairs a pair's.
  int32_t replicas = 1;
  bool split_backward = false;  // I and W apart, be it of some microbatches
  // Why the compiler does not lower it, so that it can be drawn and simulated but not run; null: it
  // does.
  const char* simulated_only = nullptr;
  Variant variant = {};
  std::span<const NamedLimit> limits = {};

  int32_t year() const { return since / 100; }
  bool runs() const { return simulated_only == nullptr; }
};

// All kinds, the oldest first, those of one month by name.
std::span<const ScheduleKind* const> listed_kinds();
const ScheduleKind* find_kind(const std::string& name);  // null: there is none
// The kind, or the usual one where there is none of the name: whoever read it has said so.
const ScheduleKind& kind_of(const std::string& name);
std::string kind_finding(const std::string& name);  // what make_schedule says of it; "": it is one

// The kind that papers call so, and its limit in ranks (0: none); the usual one where none is.
struct PublishedKind {
  const ScheduleKind* kind;
  int32_t limit;
};
PublishedKind published_kind(const std::string& name);
std::vector<std::string> published_names();  // kinds, then those under a limit

// Names of all kinds, of those that run, and of those with an option.
std::vector<std::string> all_schedule_kinds();
std::vector<std::string> schedule_kinds();
std::vector<std::string> kinds_with(bool KindOptions::* option);

// What the kind comes to with so many stages a rank: 1f1b with several is interleaved-1f1b, and
// that with one is 1f1b. The kind itself where it is no variant in this.
const ScheduleKind& kind_with_chunks(const ScheduleKind& kind, int64_t chunks);
// The kind that is this one with I and W apart; null: there is none.
const ScheduleKind* with_split_backward(const ScheduleKind& kind);
// The kind that takes less time than this one and has no more microbatches alive; null: there is
// none.
const ScheduleKind* shorter_in_same_memory(const ScheduleKind& kind);
// Whether it is the usual kind, with whatever stages a rank.
bool is_usual(const ScheduleKind& kind);

}  // namespace mw::pipeline
