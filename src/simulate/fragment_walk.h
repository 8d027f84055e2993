// The clock that walks a fragment's ops. Private to room simulate.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/fragment_cost.h"
#include "simulate/links.h"

namespace mw::simulate {

struct OpSpan {
  double start = 0, end = 0;
};

// Where a walk through a fragment's ops is.
struct Walk {
  size_t next = 0;
  double host = 0;              // when the host issues the next op
  std::vector<double> streams;  // when each is free
  std::vector<OpSpan> spans;    // [op]
  double end = 0;               // of all ops so far

  // Where collectives share links, or they and computation are slower beside each other.
  struct Shared {
    struct Sending {
      int32_t op = 0;
      double from = 0;  // behind its latency
      double left = 0;  // seconds, its links alone and beside no computation
    };
    struct Crossing {  // of a collective over several pipeline ranks
      int32_t op = 0;
      uint32_t levels = 0;
      Beside beside = Beside::kOther;
      double begin = 0, end = 0;
    };
    std::vector<size_t> heads;        // [stream] the next of FragmentCost::queues
    std::vector<bool> ended;          // [op] its end is known
    std::vector<double> issued;       // [op] by the host
    std::vector<Sending> sending;     // collectives under way
    Sending computing{-1};            // computation under way; op -1: none, or its end is known
    std::vector<Crossing> crossings;  // all so far
    size_t first_cross = 0;           // no collective over several pipeline ranks before is open
    double now = 0;
  } shared;
  bool by_time = false;  // ops run in order of time (shared_walk.h), not in that of the fragment

  void begin(const FragmentCost& cost, double at);
};

// Runs ops until the end (false) or until the next one is a collective over several pipeline ranks
// (true): then `meet` is when this rank comes to it, and finish_cross(…, end) lets it go on.
struct WalkOptions {
  Slowdowns slowdowns = {1, 1, 1, 1, 1, 1};
  const std::vector<double>* state_ready = nullptr;  // [input port] when it is complete
  // [level] when messages have the device's ports: collectives stand still meanwhile.
  const std::vector<std::vector<Interval>>* messages = nullptr;
  // [level of OpCost::fills] when messages or collectives of calls before have them: the same.
  const std::vector<std::vector<Interval>>* taken = nullptr;
};
// A collective's time beside what is told of the levels that it crosses.
double beside_others(const OpCost& op, double start, const WalkOptions& options);
bool advance(const FragmentCost& cost, Walk& walk, const WalkOptions& options, double& meet);
void finish_cross(const FragmentCost& cost, Walk& walk, double start, double end);

// [level of `levels`] when the walk's collectives have the device's links: those of them that `of`
// says of an op.
std::vector<std::vector<Interval>> link_use(const FragmentCost& cost,
                                            const std::vector<OpSpan>& spans, uint32_t levels,
                                            uint32_t OpCost::* of = &OpCost::levels);

// How a call's time divides.
struct FragmentTime {
  double duration = 0, compute = 0, gaps = 0;
  std::vector<double> comm, exposed;  // [label]
};
FragmentTime divide(const FragmentCost& cost, const Walk& walk, double begin, double end,
                    size_t labels);
// When nothing runs: FragmentTime::gaps, in time.
std::vector<Interval> still(const FragmentCost& cost, const Walk& walk, double begin, double end);

}  // namespace mw::simulate
