// Splitting a stage's local graph into fragments: forward, and backward as one (B) or as input and
// weight gradient (I, W).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compile/cut.h"
#include "compile/local_graph.h"
#include "pipeline/program.h"

namespace mw::compile {

// What a port stands for, so that the lowering can give it a buffer.
struct PortSource {
  enum class Kind : uint8_t {
    kState,    // of `state`
    kData,     // the data input of the port's name
    kReceive,  // receives[crossing]
    kSend,     // sends[crossing]
    kSaved,    // `value` of the stage's local graph
    kResult,   // results[crossing] of the stage
  } kind = Kind::kData;
  StateId state;
  size_t crossing = 0;
  ValueId value;
};

struct StageFragment {
  std::shared_ptr<const pipeline::Fragment> fragment;  // of all stages that are alike
  std::vector<PortSource> inputs;                      // of fragment->inputs
  std::vector<PortSource> outputs;                     // of fragment->graph.outputs
  std::vector<std::string> names;                      // of the inputs, then the outputs
  std::vector<std::string> value_names;  // [value] of a fragment that several stages share

  const std::string& output_name(size_t i) const { return names[inputs.size() + i]; }
};

// The stage as the splitter needs it: values are of the local graph.
struct StagePorts {
  ValueIds receives;  // [crossing] inputs
  ValueIds sends;     // [crossing]
  ValueIds results;
  std::vector<bool> carried_in, carried_out;  // [crossing] Crossing::carried; empty: none is
};

struct SplitOptions {
  const cluster::Mesh& mesh;  // of all ranks
  bool remake = true;         // norms and activations in the backward pass instead of saved
  bool regather = false;      // activations in the backward pass instead of saved (Plan)
  bool overlap = true;        // pipeline/overlap.h
  int64_t gather_ahead = 0;   // there
  bool offsets = true;        // of values in memory; false: what shares memory alone
};

// Fragments of the kinds asked for, in order, e.g. {F, B}, {F, I, W} or {F}. Their memory is
// planned.
std::vector<StageFragment> split_stage(const LocalGraph& stage, const StagePorts& ports,
                                       const ir::Module& module,
                                       const std::vector<pipeline::ActionKind>& kinds,
                                       const std::string& name, const SplitOptions& options);

}  // namespace mw::compile
