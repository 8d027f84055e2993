#include "compile/init_graph.h"

#include <algorithm>

#include "base/error.h"
#include "ops/op_def.h"
#include "pipeline/memory_plan.h"

namespace mw::compile {
namespace {

using ir::OpKind;
using pipeline::PortKind;

class InitBuilder {
 public:
  InitBuilder(const Plan& plan, const ir::Module& module, const cluster::Mesh& mesh)
      : plan_(plan), module_(module), mesh_(mesh) {}

  void add_group(const FlatGroup& group) {
    ValueIds parts;
    for (const GroupMember& member : group.members) {
      const ValueId drawn = draw(member);
      if (weight_shards(plan_, group) == 1) {
        output(drawn, module_.state(member.parameter).name);
      } else {
        parts.push_back(drawn);
      }
    }
    if (!parts.empty()) add_shard(group, parts);
  }

  StateFragment finish() {
    pipeline::Fragment& fragment = result_.fragment;
    local_.graph.name = fragment.name = "INIT";
    fragment.kind = pipeline::ActionKind::kUpdate;
    fragment.graph = std::move(local_.graph);
    fragment.shardings = std::move(local_.shardings);
    fragment.global_types = std::move(local_.global_types);
    fragment.launches.resize(fragment.graph.ops.size());
    pipeline::plan_fragment(fragment);
    return std::move(result_);
  }

 private:
  ValueId op1(OpKind kind, ir::Attributes attrs, ValueIds operands, const LocalGraph::Made& made) {
    return local_.add_op1(make_op(kind, std::move(attrs), std::move(operands), ir::Work::kUpdate),
                          made);
  }
  void output(ValueId v, const std::string& buffer) {
    local_.graph.outputs.push_back(v);
    result_.outputs.push_back(buffer);
    result_.fragment.outputs.push_back({PortKind::kSaved, v, buffer});
  }

  ValueId draw(const GroupMember& member) {
    const ir::State& state = module_.state(member.parameter);
    const LocalGraph::Made made{member.local, member.global, member.sharding};
    ir::Op op;
    if (state.init.kind == ir::Init::Kind::kZeros || state.init.kind == ir::Init::Kind::kOnes) {
      const double value = state.init.kind == ir::Init::Kind::kOnes ? 1 : 0;
      op = make_op(OpKind::kConstant, ir::ConstantAttrs{value}, {}, ir::Work::kUpdate);
    } else {
      ir::RandomAttrs attrs;
      attrs.distribution = state.init.kind == ir::Init::Kind::kNormal
                               ? ir::RandomAttrs::Distribution::kNormal
                               : ir::RandomAttrs::Distribution::kUniform;
      attrs.scale = state.init.scale;
      attrs.site = "init/" + state.name;
      for (const ir::Dim& dim : member.global.dims) attrs.global_sizes.push_back(dim.size);
      attrs.offsets.resize(member.global.dims.size());
      op = make_op(OpKind::kRandom, attrs, {seed()}, ir::Work::kUpdate);
      if (const ops::OpDef& def = ops::op_def(OpKind::kRandom); def.localize != nullptr) {
        ops::LocalLayout layout;
        layout.operands = {{}};
        layout.results = {member.sharding.dims};
        layout.global_operands = {ir::make_type(DType::kI64, {})};
        layout.global_results = {member.global};
        layout.local_operands = layout.global_operands;
        layout.local_results = {member.local};
        def.localize(op, layout);
      }
    }
    ValueId v = local_.add_op1(std::move(op), made);
    // The padded tail of a shard holds zeros, now and after every update.
    for (int d = 0; d < member.global.rank(); ++d) {
      if (!sharding::is_padded(member.global, member.sharding, d, mesh_)) continue;
      ir::PadMaskAttrs attrs;
      attrs.dim = d;
      attrs.offset = {member.sharding.dims[static_cast<size_t>(d)], member.global.dim(d)};
      v = op1(OpKind::kPadMask, attrs, {v}, made);
    }
    return v;
  }

  ValueId seed() {
    if (seed_.valid()) return seed_;
    const ir::TensorType type = ir::make_type(DType::kI64, {});
    seed_ = local_.add_input({type, type, sharding::replicated(0)}, "seed");
    result_.inputs.push_back("seed");
    result_.fragment.inputs.push_back({PortKind::kData, seed_, "seed"});
    return seed_;
  }

  // ZeRO-3 keeps only a part of the flat group: draw the whole group, keep the part.
  void add_shard(const FlatGroup& group, const ValueIds& parts) {
    ValueIds slots;
    int64_t end = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t elements = group.members[i].local.elements();
      const int64_t next = i + 1 < parts.size() ? group.members[i + 1].offset : group.elements;
      const ValueId flat = op1(OpKind::kReshape, ir::NoAttrs{}, {parts[i]}, flat_type(elements, 1));
      const int64_t slot = next - group.members[i].offset;
      ir::PadAttrs pad;
      pad.low = {0};
      pad.high = {slot - elements};
      slots.push_back(op1(OpKind::kPad, pad, {flat}, flat_type(slot, 1)));
      end = next;
    }
    MW_CHECK(end == group.elements, "group {} ends at {} of {}", group.name, end, group.elements);
    const ValueId whole =
        op1(OpKind::kConcat, ir::ConcatAttrs{0}, slots, flat_type(group.elements, 1));
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{group.data_axes};
    attrs.global_size = group.elements;
    output(op1(OpKind::kShardSlice, attrs, {whole}, flat_type(group, group.data_size)),
           module_.state(group.weight).name);
  }

  const Plan& plan_;
  const ir::Module& module_;
  const cluster::Mesh& mesh_;
  LocalGraph local_;
  StateFragment result_;
  ValueId seed_;
};

}  // namespace

StateFragment build_init(const std::vector<FlatGroup>& groups, const Plan& plan,
                         const ir::Module& module, const cluster::Mesh& stage_mesh) {
  InitBuilder builder(plan, module, stage_mesh);
  for (const FlatGroup& group : groups) builder.add_group(group);
  return builder.finish();
}

}  // namespace mw::compile
