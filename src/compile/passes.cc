#include "compile/passes.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace mw::compile {
namespace {

constexpr std::array<PassInfo, 9> kPasses = {{
    {"cse", "merges ops that compute the same"},
    {"recompute", "recomputes activations as the plan says instead of keeping them"},
    {"dead_code", "drops ops whose results nothing reads"},
    {kShareStages, "partitions and plans stages that are equal but for names once"},
    {kFoldAccumulate, "lets products add to the gradient accumulators themselves"},
    {kRemake, "makes norms and activations anew in the backward pass instead of saving them"},
    {kOverlap, "puts collectives on streams of their own and weight gradients beside them"},
    {kGatherAhead, "gathers a layer's weights while the layer before computes (ZeRO 3)"},
    {kBucket,
     "joins the gradients and weights of several groups into one collective, up to bucket_mb"},
}};

}  // namespace

std::span<const PassInfo> passes() { return kPasses; }

PassSet::PassSet(std::set<std::string> without) : without_(std::move(without)) {
  std::vector<std::string_view> names;
  for (const PassInfo& pass : kPasses) names.push_back(pass.name);
  Diagnostics diagnostics;
  for (const std::string& name : without_) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    diagnostics.add("unknown pass '{}'{}; there are {}", name, did_you_mean(name, names),
                    join(names, ", "));
  }
  diagnostics.throw_if_any();
}

}  // namespace mw::compile
