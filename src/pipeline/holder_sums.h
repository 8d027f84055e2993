// What a sum over the holders of a state is made of, on all pipeline ranks. Private to room
// pipeline.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/verify.h"

namespace mw::pipeline {

class HolderSums {
 public:
  // How often each state buffer of each pipeline rank is added.
  using Contributions = std::map<std::pair<int32_t, BufferId>, int>;

  explicit HolderSums(const Checked& checked);

  // Of sums that command `command` of rank `rank` makes (indices into its fragment's holder_sums),
  // together. The k-th sum of a state on one rank is the k-th of that state on all its holders; one
  // that a rank does not make adds nothing there (the deadlock check tells).
  Contributions resolve(int32_t rank, size_t command, const std::vector<size_t>& sums) const;

 private:
  struct Made {
    size_t command = 0, sum = 0;
  };
  void resolve(const std::string& state, size_t k, int times, Contributions& all) const;

  const Checked& checked_;
  // [rank] per state, in order
  std::vector<std::map<std::string, std::vector<Made>>> made_;
};

}  // namespace mw::pipeline
