// The fragments of post-validation: SHARE, VALIDATE and AMEND.
#include "base/error.h"
#include "compile/step_builder.h"
#include "pipeline/metric_names.h"

namespace mw::compile {
namespace {

using ir::OpKind;
using pipeline::PortKind;

class ValidationBuilder : StepBuilder {
 public:
  using StepBuilder::StepBuilder;

  StateFragment share() {
    const ValueId norms = norms_input();
    const ValueId loss = c_.loss ? loss_input() : ValueId();
    for (int32_t peer = 0; peer < static_cast<int32_t>(plan_.pp); ++peer) {
      if (peer == c_.rank) continue;
      send(norms, kOwnNorms, peer);
      if (c_.loss) send(loss, kOwnLoss, peer);
    }
    return finish("SHARE", pipeline::ActionKind::kValidate);
  }

  // By rank, so that all ranks add in one order.
  StateFragment validate() {
    const ValueId own = norms_input();
    ValueIds operands;
    for (int32_t rank = 0; rank < static_cast<int32_t>(plan_.pp); ++rank)
      operands.push_back(rank == c_.rank ? own : received(local_.like(own), kOwnNorms, rank));
    for (const int32_t rank : c_.loss_ranks) {
      operands.push_back(rank == c_.rank ? loss_input()
                                         : received(made_of(own_loss_state()), kOwnLoss, rank));
    }
    const LocalGraph::Made scalar = scalar_type(DType::kF32);
    const ValueIds made =
        ops(OpKind::kValidate, flat_attrs(), operands, {scalar, scalar, scalar, scalar});
    output(made[0], kGradNorm);
    output(made[1], kScale);
    output(made[2], kAmended);
    const ValueId scale = data_input(DType::kF32, pipeline::kLossScale);
    output(op1(OpKind::kMul, ir::NoAttrs{}, {made[3], scale}, scalar), kLossValue);
    output(ops(OpKind::kClip, flat_attrs(), {own}, {scalar, scalar})[1], kUsedScale);
    // Validated once: without a step behind it the next call finds nothing to amend.
    const ValueId zeros = op1(OpKind::kZero, ir::NoAttrs{}, {own}, local_.like(own));
    local_.graph.updates.push_back({*c_.module.find_state(kOwnNorms), zeros});
    return finish("VALIDATE", pipeline::ActionKind::kValidate);
  }

  StateFragment amend() {
    std::vector<GroupStep> steps = group_steps();
    const LocalGraph::Made scalar = scalar_type(DType::kF32);
    const ValueId used = named_input(scalar, kUsedScale), scale = named_input(scalar, kScale);
    for (size_t g = 0; g < c_.groups.size(); ++g) {
      const FlatGroup& group = c_.groups[g];
      const auto kept = [&](StateId state, const char* what) {
        return named_input(steps[g].made, name_of(state) + what);
      };
      ValueIds amended{used};
      for (const StateId state : {group.weight, group.moment, group.variance})
        amended.push_back(kept(state, kBefore));
      steps[g].updated = adamw(steps[g], kept(group.weight, kTaken), scale, amended);
      update_states(group, steps[g]);
    }
    gather_weights(steps);
    return finish("AMEND", pipeline::ActionKind::kRollback);
  }

 private:
  ValueId norms_input() { return named_input(made_of(own_norms_state(c_.module)), kOwnNorms); }
  ValueId loss_input() { return named_input(made_of(own_loss_state()), kOwnLoss); }
  ValueId received(const LocalGraph::Made& made, const std::string& name, int32_t from) {
    const ValueId v = local_.add_input(made, fmt::format("{}/{}", name, from));
    result_.inputs.push_back(name);
    result_.senders.push_back(from);
    result_.fragment.inputs.push_back({PortKind::kBoundary, v, name});
    return v;
  }
  void send(ValueId v, const std::string& name, int32_t to) {
    const ValueId copy = op1(OpKind::kCopy, ir::NoAttrs{}, {v}, local_.like(v));
    local_.graph.outputs.push_back(copy);
    result_.outputs.push_back(name);
    result_.receivers.push_back(to);
    result_.fragment.outputs.push_back({PortKind::kBoundary, copy, name});
  }
};

}  // namespace

StateFragment build_share(const UpdateContext& context) {
  return ValidationBuilder(context).share();
}
StateFragment build_validate(const UpdateContext& context) {
  return ValidationBuilder(context).validate();
}
StateFragment build_amend(const UpdateContext& context) {
  return ValidationBuilder(context).amend();
}

}  // namespace mw::compile
