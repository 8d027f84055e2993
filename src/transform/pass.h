// Passes by name: each can be listed, timed, dumped and switched off, and the graph is verified
// after it.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "ir/graph.h"
#include "transform/autodiff.h"
#include "transform/recompute.h"

namespace mw::transform {

// What the passes read; each its own part.
struct PassOptions {
  AutodiffOptions autodiff;  // autodiff.graph is the graph that all passes work on
  RecomputeOptions recompute;
};

struct Pass {
  std::string_view name;
  std::string_view description;
  void (*run)(ir::Module& module, const PassOptions& options);
};

// All passes, in the order of their names' use.
std::span<const Pass> passes();
// Throws Error with the near miss for an unknown name.
const Pass& find_pass(std::string_view name);
// From a model's forward graph to what is partitioned: autodiff, cse, recompute, dead_code.
// fold_accumulate is for partitioned graphs, since a reduction may come between a gradient and its
// sum.
std::vector<std::string> default_passes();

struct PassRun {
  std::string name;
  Seconds time;
  size_t ops_before = 0, ops_after = 0;
};

struct RunOptions {
  std::set<std::string> disabled;  // by name
  bool verify = true;              // structure and types, after every pass
  const Clock* clock = nullptr;    // null: the machine's
  // Called after a pass with its name and the module; null: no dumps.
  std::function<void(const std::string& name, const ir::Module& module)> dump;
};

// Runs the passes in order. Throws Error for unknown names, also disabled ones, all together.
std::vector<PassRun> run_passes(ir::Module& module, const std::vector<std::string>& names,
                                const PassOptions& options, const RunOptions& run = {});

}  // namespace mw::transform
