// Reads and writes whole parameters, and their optimizer state, through the shards that the ranks
// hold.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compile/compile.h"
#include "execute/executor.h"

namespace mw::train {

// Which of a parameter's flat states.
enum class Part : uint8_t { kWeight, kMoment, kVariance };

class ParameterIo {
 public:
  // Both must outlive this. REQUIRES: no run in progress during any call.
  ParameterIo(const compile::CompiledPlan& plan, execute::Executor& executor)
      : plan_(plan), executor_(executor) {}

  int64_t elements(StateId parameter) const;  // of the global tensor
  // All of its elements, row-major.
  std::vector<float> read(StateId parameter, Part part) const;
  // Elements [begin, begin + values.size()) of it.
  void read(StateId parameter, Part part, int64_t begin, std::span<float> values) const;
  // Writes the shards of every rank that holds the parameter.
  void write(StateId parameter, Part part, std::span<const float> values);

 private:
  struct Home {
    int32_t pipeline_rank = 0;
    const compile::FlatGroup* group = nullptr;
    const compile::GroupMember* member = nullptr;
  };
  std::vector<Home> homes(StateId parameter) const;
  // Calls visit(global element, local element, run) for the runs of contiguous elements of a
  // device's shard.
  template <typename Visit>
  void for_runs(const compile::GroupMember& member, RankId rank, Visit visit) const;
  // Copies between the member's local elements and its place in the flat state of this rank (or, of
  // a state sharded over dp, of the rank's group).
  float* flat_element(const Home& home, Part part, RankId rank, int64_t element,
                      int64_t& run) const;
  RankId rank_of(int32_t pipeline_rank, RankId like) const;

  const compile::CompiledPlan& plan_;
  execute::Executor& executor_;
};

}  // namespace mw::train
