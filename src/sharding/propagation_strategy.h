// A propagation strategy says which axes an op passes on from one of its tensors to the others.
// One strategy a file; propagation.cc stacks them, the most certain first, and goes to the next
// only when those before it have nothing more to say.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "cluster/mesh.h"
#include "ops/op_def.h"
#include "sharding/factors.h"
#include "sharding/sharding.h"

namespace mw::sharding {

// Who said how a tensor lies: what has more authority is followed where two disagree. A state's
// layout is of more than one microbatch, so to move it costs most.
enum class Authority : uint8_t { kPropagated, kAnnotation, kState };

// One operand or result of an op.
struct TensorView {
  const ops::ShardingRule::Dims* dims = nullptr;
  FactorAxes axes;  // by factor of the rule
  Authority authority = Authority::kPropagated;
  double bytes = 0;  // of one device's shard
};

// An op as strategies see it: operands, then results.
struct OpView {
  const ir::Op& op;
  const ops::ShardingRule& rule;
  const cluster::Mesh& mesh;
  std::vector<TensorView> tensors;
};

// All tensors that have this factor should have it on these axes, since that tensor has.
struct Proposal {
  size_t factor = 0;
  Axes axes;
  size_t from = 0;  // tensor
};

// An axis that two factors of an op claim, or a factor for which two tensors claim unlike axes.
struct Conflict {
  size_t kept = 0, lost = 0;        // factors; equal: the tensors disagree
  size_t kept_by = 0, lost_by = 0;  // tensors
  std::string axis;
};

struct Proposals {
  std::vector<Proposal> list;       // at most one a factor
  std::vector<Conflict> conflicts;  // that the strategy decided
};

struct PropagationStrategy {
  std::string_view name;
  Proposals (*propose)(const OpView& op);
};

// Ops that only rename elements or work on each of them (elementwise, transposes, reshapes): every
// tensor has the same factors, so what one has fits all.
extern const PropagationStrategy kPassThrough;
// Every op, forward and backward: a factor's axes that no tensor contradicts and no other factor of
// the op claims.
extern const PropagationStrategy kFactors;
// What two tensors or two factors claim: authority first, then the claim that would cost most bytes
// to give up, then the factor that comes first in the rule.
extern const PropagationStrategy kResolve;

// For each factor the longest axes that any tensor has it on, where all others have a prefix of
// them; nothing for factors on which tensors disagree.
std::vector<std::optional<Proposal>> agreed(const OpView& op);

}  // namespace mw::sharding
