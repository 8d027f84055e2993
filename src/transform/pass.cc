#include "transform/pass.h"

#include <array>

#include "base/error.h"
#include "base/text.h"
#include "ops/op_def.h"
#include "transform/cse.h"
#include "transform/dead_code.h"
#include "transform/fold_accumulate.h"

namespace mw::transform {
namespace {

ir::Graph& graph_of(ir::Module& module, const PassOptions& options) {
  ir::Graph* graph = module.find_graph(options.autodiff.graph);
  if (graph == nullptr)
    throw_error("module '{}' has no graph '{}'", module.name, options.autodiff.graph);
  return *graph;
}

const std::array<Pass, 5> kPasses = {{
    {"autodiff", "adds the backward pass and the gradient accumulators",
     [](ir::Module& module, const PassOptions& options) {
       differentiate(module, options.autodiff);
     }},
    {"cse", "merges ops that compute the same",
     [](ir::Module& module, const PassOptions& options) {
       merge_common(graph_of(module, options));
     }},
    {"recompute", "recomputes activations in the backward pass instead of keeping them",
     [](ir::Module& module, const PassOptions& options) {
       recompute(graph_of(module, options), options.recompute);
     }},
    {"dead_code", "drops ops whose results nothing reads",
     [](ir::Module& module, const PassOptions& options) {
       drop_dead_code(graph_of(module, options));
     }},
    {"fold_accumulate", "lets products add to the gradient accumulators themselves",
     [](ir::Module& module, const PassOptions& options) {
       fold_accumulate(graph_of(module, options));
     }},
}};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

const Pass& find_pass(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Pass& pass : kPasses) {
    if (pass.name == name) return pass;
    names.push_back(pass.name);
  }
  throw_error("unknown pass '{}'{}; there are {}", name, did_you_mean(name, names),
              join(names, ", "));
}

std::vector<std::string> default_passes() { return {"autodiff", "cse", "recompute", "dead_code"}; }

std::vector<PassRun> run_passes(ir::Module& module, const std::vector<std::string>& names,
                                const PassOptions& options, const RunOptions& run) {
  Diagnostics diagnostics;
  const auto check_name = [&](const std::string& name) {
    try {
      find_pass(name);
    } catch (const Error& error) {
      diagnostics.absorb(error);
    }
  };
  for (const std::string& name : names) check_name(name);
  for (const std::string& name : run.disabled) check_name(name);
  diagnostics.throw_if_any();

  const Clock& clock = run.clock != nullptr ? *run.clock : steady_clock();
  std::vector<PassRun> runs;
  for (const std::string& name : names) {
    if (run.disabled.count(name) > 0) continue;
    PassRun record{name, Seconds(0), graph_of(module, options).ops.size(), 0};
    const Seconds start = clock.now();
    find_pass(name).run(module, options);
    record.time = clock.now() - start;
    const ir::Graph& graph = graph_of(module, options);
    record.ops_after = graph.ops.size();
    if (run.verify) {
      ir::verify(graph, &module);
      ops::verify_types(graph);
    }
    if (run.dump) run.dump(name, module);
    runs.push_back(std::move(record));
  }
  return runs;
}

}  // namespace mw::transform
