// Memo: what the partitioner found out about ops and values that come again, in other layers of a
// graph and in the graphs of other stages. A model repeats its blocks: most ops have a twin.
#pragma once

#include <compare>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include <absl/container/inlined_vector.h>

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
  // Of a number; valid until the next `number`.
  const ir::TensorType& type(int number) const { return types_[static_cast<size_t>(number)]; }
  const sharding::Sharding& sharding(int number) const {
    return shardings_[static_cast<size_t>(number)];
  }
  const ir::Attributes& attributes(int number) const {
    return attributes_[static_cast<size_t>(number)];
  }

  // plan_reshard, by the numbers of the global type and both shardings.
  const ReshardPlan& reshard(int type, int from, int to);

  // The version that becomes `to` with the fewest bytes, the first of equals; -1: none can.
  struct Nearest {
    int version = -1;  // index into `versions`
    double bytes = std::numeric_limits<double>::infinity();
  };
  using Numbers = absl::InlinedVector<int, 4>;
  Nearest nearest(int type, const Numbers& versions, int to);

  // An op and all that the choice of its layout depends on; types, shardings and attributes by
  // number.
  struct Operand {
    int type = 0;
    bool is_weight = false;
    std::optional<int> carried_as;  // its sharding, if what pends of it may go on into the op
    Numbers versions;               // the shardings in which it can be had
    Numbers kept;  // those of the value that it is made again of; empty: it is no clone
    std::strong_ordering operator<=>(const Operand&) const = default;
    bool operator==(const Operand&) const = default;
  };
  struct Result {
    int type = 0;
    std::optional<int> given;
    int advice = 0;
    bool may_pend = false;
    std::strong_ordering operator<=>(const Result&) const = default;
    bool operator==(const Result&) const = default;
  };
  struct Problem {
    ir::OpKind kind{};
    int attributes = 0;
    bool accumulates = false;
    absl::InlinedVector<Operand, 4> operands;
    absl::InlinedVector<Result, 2> results;
    std::strong_ordering operator<=>(const Problem&) const = default;
    bool operator==(const Problem&) const = default;
  };
  const Assignment* chosen(const Problem& problem) const;  // null: not yet
  const Assignment& keep(Problem problem, Assignment assignment);

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
