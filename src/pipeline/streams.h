// Which ops of a fragment are known to have ended when another one starts: ops of one stream run in
// order, an op that waits for an event starts after the op that recorded it. Private to room
// pipeline.
#pragma once

#include <string>
#include <vector>

#include "pipeline/program.h"

namespace mw::pipeline {

class StreamOrder {
 public:
  // REQUIRES: launch_findings(fragment) is empty.
  explicit StreamOrder(const Fragment& fragment);

  // Whether op `a` has ended before op `b` starts, whatever the speed of the streams.
  bool before(int32_t a, int32_t b) const {
    return b > a && clock(b)[static_cast<size_t>(stream_[static_cast<size_t>(a)])] >= a;
  }
  // The last op that may start before `a` has ended; at least `a`.
  int32_t settled(int32_t a) const;
  // Everything runs on one stream.
  bool in_order() const { return streams_ == 1; }

 private:
  // clock(b)[s]: the last op of stream s that has ended when b starts, -1: none.
  const int32_t* clock(int32_t op) const {
    return clocks_.data() + static_cast<size_t>(op) * streams_;
  }

  size_t streams_ = 1;
  std::vector<int32_t> stream_;               // [op]
  std::vector<std::vector<int32_t>> ops_of_;  // [stream]
  std::vector<int32_t> clocks_;               // [op][stream]
};

// Launches that are missing, streams out of range, events that are recorded twice or waited for
// before they are recorded.
std::vector<std::string> launch_findings(const Fragment& fragment);

}  // namespace mw::pipeline
