// Memory for every value of a fragment, with contents like a step's, for kernels that are run
// alone. Private to room runtime.
#pragma once

#include <memory>
#include <vector>

#include "pipeline/program.h"

namespace mw::runtime {

// What the plan puts into the workspace lies there, so that caches hold as much of it as in a run;
// all else lies behind it, each by itself. All in one allocation, for only large ones get huge
// pages. What no op of the fragment makes is filled, for kernels look at positions (a mask leaves
// half of attention out), at which rows indices name, and at zeros: f32 with small positive
// numbers, indices with any row, positions in order.
class SampleValues {
 public:
  explicit SampleValues(const pipeline::Fragment& fragment);
  void* at(ValueId v) const;
  bool is_alias(const ir::Op& op) const;

 private:
  void fill(ValueId v) const;
  int64_t rows_of_index(ValueId v) const;
  char* start_of(ValueId v) const { return memory_.get() + offset_[v.index()]; }

  const pipeline::Fragment& fragment_;
  std::vector<int64_t> offset_;  // by value, where it is no alias
  std::shared_ptr<char> memory_;
};

// What they take: the workspace, and every other value that is no alias.
Bytes sample_bytes(const pipeline::Fragment& fragment);

}  // namespace mw::runtime
