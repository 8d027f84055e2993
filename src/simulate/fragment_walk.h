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
  std::vector<Beside> beside;   // [stream] its last collective
  std::vector<OpSpan> spans;    // [op]
  // [level] when collectives have the device's links, where those of several streams use them.
  std::vector<std::vector<Interval>> links;
  double end = 0;  // of all ops so far

  void begin(const FragmentCost& cost, double at);
};

// Runs ops until the end (false) or until the next one is a collective over several pipeline ranks
// (true): then `meet` is when this rank comes to it, and finish_cross(…, end) lets it go on.
struct WalkOptions {
  Slowdowns slowdowns = {1, 1, 1, 1, 1, 1};
  const std::vector<double>* state_ready = nullptr;  // [input port] when it is complete
  // [level] when messages have the device's ports: collectives stand still meanwhile.
  const std::vector<std::vector<Interval>>* messages = nullptr;
};
bool advance(const FragmentCost& cost, Walk& walk, const WalkOptions& options, double& meet);
void finish_cross(const FragmentCost& cost, Walk& walk, double start, double end);

// [level of `levels`] when the walk's collectives have the device's links.
std::vector<std::vector<Interval>> link_use(const FragmentCost& cost,
                                            const std::vector<OpSpan>& spans, uint32_t levels);

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
