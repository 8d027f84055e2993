#include "pipeline/sharding_steps.h"

#include <algorithm>

#include "base/error.h"
#include "pipeline/axes.h"
#include "pipeline/groups.h"

namespace mw::pipeline {
namespace {

using ir::Axes;
using ir::OpKind;
using sharding::Sharding;

bool has(const Axes& axes, Name axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

std::string axes_text(const Axes& axes) { return "{" + join(axes, ", ") + "}"; }

class StepChecker {
 public:
  StepChecker(const ir::Op& op, const StepValues& values, const cluster::Mesh& mesh)
      : op_(op), values_(values), mesh_(mesh) {}

  std::vector<std::string> run() {
    switch (op_.kind) {
      case OpKind::kAllReduce:
      case OpKind::kReduceScatter:
      case OpKind::kAllGather:
      case OpKind::kAllToAll:
      case OpKind::kPermute:
      case OpKind::kShardSlice: pairs(); break;
      case OpKind::kPadMask: pad_mask(); break;
      case OpKind::kTrim: expect(0, operand(0)); break;
      case OpKind::kCopy: copy(); break;
      case OpKind::kView: view(); break;
      case OpKind::kAssemble: assemble(); break;
      case OpKind::kNormBlocks: norm_blocks(); break;
      case OpKind::kNormParameters: norm_parameters(); break;
      case OpKind::kClip: clip(); break;
      case OpKind::kValidate: validate(); break;
      case OpKind::kAdamW: adamw(); break;
      default: break;
    }
    return out_.findings();
  }

 private:
  const Sharding& operand(size_t i) const { return *values_.operands[i]; }
  const Sharding& result(size_t i) const { return *values_.results[i]; }

  void expect(size_t i, const Sharding& wanted) {
    Sharding want = wanted;
    if (want.partial.empty()) want.reduction = ir::Reduction::kSum;
    std::sort(want.partial.begin(), want.partial.end());
    if (result(i) == want) return;
    out_.add("must make result {} as {}, but it is held as {}", i, to_string(want),
             to_string(result(i)));
  }

  // The axes of the group that have more than one device.
  Axes group_axes() const {
    Axes axes;
    for (const Name axis : named_axes(op_.as<ir::CollectiveAttrs>().group)) {
      if (mesh_.axis_size(axis) > 1) axes.push_back(axis);
    }
    return axes;
  }

  void pairs() {
    const ir::CollectiveAttrs& attrs = op_.as<ir::CollectiveAttrs>();
    const Axes axes = group_axes();
    for (const Name axis : named_axes(attrs.group)) {
      if (!mesh_.has(axis))
        out_.add("works over axis '{}', which the mesh {} lacks", axis, to_string(mesh_));
    }
    const int rank = values_.global_operands.empty() ? 0 : values_.global_operands[0]->rank();
    const bool needs_dim = op_.kind != OpKind::kAllReduce;
    if (needs_dim &&
        (attrs.dim < 0 || attrs.dim >= rank ||
         (op_.kind == OpKind::kAllToAll && (attrs.concat_dim < 0 || attrs.concat_dim >= rank)))) {
      out_.add("works on dimension {} of a value of {} dimensions", attrs.dim, rank);
      return;
    }
    for (size_t i = 0; i < values_.operands.size() && i < values_.results.size(); ++i)
      pair(i, attrs, axes);
  }

  void pair(size_t i, const ir::CollectiveAttrs& attrs, const Axes& axes) {
    Sharding want = operand(i);
    if (std::holds_alternative<ir::Holders>(attrs.group) && op_.kind != OpKind::kAllReduce) {
      out_.add("works on the holders of a state, which only sum it");
      return expect(i, want);
    }
    const auto dim = static_cast<size_t>(attrs.dim);
    switch (op_.kind) {
      case OpKind::kAllReduce: reduce(want, attrs, axes); break;
      case OpKind::kReduceScatter:
        reduce(want, attrs, axes);
        want.dims[dim].insert(want.dims[dim].end(), axes.begin(), axes.end());
        break;
      case OpKind::kAllGather: gather(want, dim, axes); break;
      case OpKind::kAllToAll:
        gather(want, static_cast<size_t>(attrs.concat_dim), axes);
        want.dims[dim].insert(want.dims[dim].end(), axes.begin(), axes.end());
        break;
      case OpKind::kPermute: permute(want, attrs, axes); break;
      default:  // shard_slice
        for (const Name axis : axes) {
          if (has(want.partial, axis))
            out_.add("cuts over {}, over which its operand is pending", axis);
        }
        want.dims[dim].insert(want.dims[dim].end(), axes.begin(), axes.end());
    }
    expect(i, want);
  }

  void reduce(Sharding& want, const ir::CollectiveAttrs& attrs, const Axes& axes) {
    for (const Name axis : axes) {
      if (!has(want.partial, axis)) {
        out_.add("reduces over {}, over which {} is not pending: it would be counted twice", axis,
                 to_string(want));
      }
      erase(want.partial, axis);
    }
    if (!axes.empty() && attrs.op != want.reduction)
      out_.add("reduces {} with another reduction", to_string(want));
  }
  void gather(Sharding& want, size_t dim, const Axes& axes) {
    Axes& have = want.dims[dim];
    if (axes.size() > have.size() || !std::equal(axes.rbegin(), axes.rend(), have.rbegin())) {
      out_.add("joins dimension {} over {}, but it is split over {}", dim, axes_text(axes),
               axes_text(have));
      return;
    }
    have.resize(have.size() - axes.size());
  }

  // Whole shards move: as many of them behind, over axes that nothing else of the value uses.
  void permute(Sharding& want, const ir::CollectiveAttrs& attrs, const Axes& axes) {
    Axes& have = want.dims[static_cast<size_t>(attrs.dim)];
    if (attrs.from != have) {
      out_.add("moves shards of dimension {} split over {}, but it is split over {}", attrs.dim,
               axes_text(attrs.from), axes_text(have));
    }
    if (sharding::shards(attrs.from, mesh_) != sharding::shards(attrs.to, mesh_)) {
      out_.add("moves {} shards over {} to {} over {}", sharding::shards(attrs.from, mesh_),
               axes_text(attrs.from), sharding::shards(attrs.to, mesh_), axes_text(attrs.to));
    }
    have = attrs.to;
    for (const Axes* list : {&attrs.from, &attrs.to}) {
      for (const Name axis : *list) {
        if (!has(axes, axis))
          out_.add("moves shards over {}, which its group {} lacks", axis, axes_text(axes));
      }
    }
    for (const Name axis : axes) {
      if (has(want.partial, axis))
        out_.add("moves shards over {}, over which its operand is pending", axis);
    }
  }

  void pad_mask() {
    const ir::PadMaskAttrs& attrs = op_.as<ir::PadMaskAttrs>();
    expect(0, operand(0));
    Axes axes;
    for (const Name axis : attrs.offset.axes) {
      if (mesh_.axis_size(axis) > 1) axes.push_back(axis);
    }
    const auto dim = static_cast<size_t>(attrs.dim);
    if (dim >= operand(0).dims.size()) return;
    if (axes != operand(0).dims[dim] ||
        attrs.offset.global_size != values_.global_operands[0]->dims[dim].size) {
      out_.add("masks dimension {} as {} elements over {}, but it has {} over {}", dim,
               attrs.offset.global_size, axes_text(axes),
               values_.global_operands[0]->dims[dim].size, axes_text(operand(0).dims[dim]));
    }
  }

  // A copy may say that a value is a term of a sum over pipeline ranks, since what they hold is not
  // compared; or of any sum if it is zero.
  void copy() {
    Sharding want = operand(0);
    if (values_.operand_zero[0]) {
      want.partial = result(0).partial;
      want.reduction = result(0).reduction;
    } else if (has(result(0).partial, "pp") && !has(want.partial, "pp")) {
      want.partial.push_back("pp");
      std::sort(want.partial.begin(), want.partial.end());
    }
    expect(0, want);
  }

  void same_pending(const char* what, const Sharding& a, const Sharding& b) {
    if (a.partial == b.partial && (a.partial.empty() || a.reduction == b.reduction)) return;
    out_.add("has the flat buffer as {} and {} as {}: they must be pending alike", to_string(a),
             what, to_string(b));
  }
  void view() {
    if (!operand(0).dims[0].empty())
      out_.add("looks into a flat buffer that is split as {}", to_string(operand(0)));
    same_pending("the view", operand(0), result(0));
  }
  void assemble() {
    if (op_.operands.size() > 1 && !operand(0).dims[0].empty()) {
      out_.add("puts parts into a flat buffer that is split as {}", to_string(operand(0)));
    }
    for (size_t i = 1; i < values_.operands.size(); ++i) {
      if (!values_.operand_zero[i]) same_pending("a part", operand(0), operand(i));
    }
    expect(0, operand(0));
  }

  Axes shard_axes() const {
    Axes axes;
    for (const Name axis : op_.as<ir::FlatAttrs>().shard_axes) {
      if (mesh_.axis_size(axis) > 1) axes.push_back(axis);
    }
    return axes;
  }
  void must_be(const char* what, const Sharding& have, const Axes& dims) {
    const bool fits = have.partial.empty() && have.dims.size() == 1 && have.dims[0] == dims;
    if (fits) return;
    out_.add("needs {} as [{}], but it is {}{}", what, axes_text(dims), to_string(have),
             have.is_partial() ? ": a reduction is missing" : "");
  }
  void must_be_whole(const char* what, const Sharding& have) {
    if (have.is_replicated()) return;
    out_.add("needs {} whole, but it is {}{}", what, to_string(have),
             have.is_partial() ? ": a reduction is missing" : "");
  }

  void norm_blocks() {
    for (size_t i = 0; i < values_.operands.size(); ++i)
      must_be("a gradient", operand(i), shard_axes());
    must_be("its result", result(0), shard_axes());
  }
  // Every parameter is counted once: over the axes on which only the origin counts it, and over the
  // pipeline ranks, which know their own parameters only, the result is a term of a sum.
  void norm_parameters() {
    must_be_whole("the blocks", operand(0));
    Axes wanted;
    if (mesh_.axis_size("pp") > 1) wanted.push_back("pp");
    for (const auto& group : op_.as<ir::FlatAttrs>().groups) {
      for (const ir::Segment& segment : group) {
        for (const Name axis : segment.counted_at_origin_of) {
          if (mesh_.axis_size(axis) > 1 && !has(wanted, axis)) wanted.push_back(axis);
        }
      }
    }
    for (const Name axis : wanted) {
      if (!has(result(0).partial, axis)) {
        out_.add("makes sums of parameters that must be pending over {}, but they are held as {}",
                 axis, to_string(result(0)));
      }
    }
    for (const Name axis : result(0).partial) {
      if (axis != "pp" && !is_parameter_axis(axis))
        out_.add("makes sums of parameters that all ranks along {} have, but they are held as {}",
                 axis, to_string(result(0)));
    }
  }
  // A scale that only holds until the norm of all pipeline ranks is known comes of sums that are
  // pending over them; what makes a step with it must be amended (accumulation.h).
  void clip() {
    Sharding sums = operand(0);
    erase(sums.partial, "pp");
    must_be_whole("the sums of parameters", sums);
    for (size_t i = 0; i < values_.results.size(); ++i) must_be_whole("its result", result(i));
  }
  // Every operand is a pipeline rank's term of the sum over all (verify_validation.h has whose).
  void validate() {
    for (size_t i = 0; i < values_.operands.size(); ++i) {
      Sharding sums = operand(i);
      erase(sums.partial, "pp");
      must_be_whole(sums.dims.empty() ? "the loss" : "the sums of parameters", sums);
    }
    for (size_t i = 0; i < values_.results.size(); ++i) must_be_whole("its result", result(i));
  }
  void adamw() {
    static constexpr const char* kNames[] = {"the weights", "the gradient", "the first moment",
                                             "the second moment"};
    for (size_t i = 0; i < values_.operands.size(); ++i) {
      if (i < 4)
        must_be(kNames[i], operand(i), shard_axes());
      else if (i > 7)
        must_be("what was before the step", operand(i), shard_axes());
      else
        must_be_whole("a scalar", operand(i));
    }
    for (size_t i = 0; i < values_.results.size(); ++i)
      must_be("its result", result(i), shard_axes());
  }

  const ir::Op& op_;
  const StepValues& values_;
  const cluster::Mesh& mesh_;
  Diagnostics out_;
};

}  // namespace

bool is_sharding_step(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
    case OpKind::kPermute:
    case OpKind::kShardSlice:
    case OpKind::kPadMask:
    case OpKind::kTrim:
    case OpKind::kCopy:
    case OpKind::kView:
    case OpKind::kAssemble:
    case OpKind::kNormBlocks:
    case OpKind::kNormParameters:
    case OpKind::kClip:
    case OpKind::kValidate:
    case OpKind::kAdamW: return true;
    default: return false;
  }
}

std::vector<std::string> step_findings(const ir::Op& op, const StepValues& values,
                                       const cluster::Mesh& mesh) {
  return StepChecker(op, values, mesh).run();
}

}  // namespace mw::pipeline
