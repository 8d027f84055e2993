// The order in which pipeline ranks add the uses of a parameter that several of them hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mw::compile {

// One sum over all holders, by all-reduce in ascending rank order. A rank that is not in the list
// adds zeros.
struct SumRound {
  struct Part {
    int32_t rank = 0;
    bool carries = false;      // begins with the result of the round before
    std::vector<size_t> uses;  // ascending and adjacent, all of this rank
  };
  std::vector<Part> parts;
};

// As few rounds as keep the bits of ((u0 + u1) + u2) + …: a rank adds a run of uses to what came
// before; a single use of another rank joins the round where rank order then is the model's order.
// Two uses, or one use a rank in ascending order, take one round. REQUIRES: rank_of_use (in model
// order) is not empty.
std::vector<SumRound> sum_rounds(const std::vector<int32_t>& rank_of_use);

}  // namespace mw::compile
