// Memo: what the partitioner found out about ops and values that come again, in other layers of a
// graph and in the graphs of other stages. A model repeats its blocks: most ops have a twin.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "cluster/mesh.h"
#include "ir/graph.h"
#include "partition/assignment.h"
#include "partition/reshard.h"
#include "sharding/sharding.h"

namespace mw::partition {

// Of one mesh. Equal things have equal numbers, from 0 on.
class Memo {
 public:
  explicit Memo(cluster::Mesh mesh) : mesh_(std::move(mesh)) {}
  const cluster::Mesh& mesh() const { return mesh_; }

  int number(const ir::TensorType& type) { return number_in(types_, type); }
  int number(const sharding::Sharding& sharding) { return number_in(shardings_, sharding); }
  int number(const ir::Attributes& attributes) { return number_in(attributes_, attributes); }

  // plan_reshard, by the numbers of the global type and both shardings.
  const ReshardPlan& reshard(int type, int from, int to);

  // All that a choice depends on, as numbers. Null: not chosen yet.
  using Problem = std::vector<int>;
  const Assignment* chosen(const Problem& problem) const;
  const Assignment& choose(Problem problem, Assignment assignment);

 private:
  // Few of each: to look through them takes less than to name them.
  template <typename T>
  static int number_in(std::vector<T>& all, const T& one) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] == one) return static_cast<int>(i);
    }
    all.push_back(one);
    return static_cast<int>(all.size()) - 1;
  }

  cluster::Mesh mesh_;
  std::vector<ir::TensorType> types_;
  std::vector<sharding::Sharding> shardings_;
  std::vector<ir::Attributes> attributes_;
  std::map<std::tuple<int, int, int>, ReshardPlan> reshards_;
  std::map<Problem, Assignment> choices_;
};

}  // namespace mw::partition
