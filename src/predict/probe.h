// Probe: what the work of one stage of a model costs, read off a program that the compiler makes of
// a few layers: the same fragments, op costs and memory plans as the whole model's, which repeats
// them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "compile/plan.h"
#include "pipeline/program.h"
#include "predict/growing_sizes.h"
#include "predict/partitioned_samples.h"
#include "predict/predict.h"
#include "predict/stage_facts.h"

namespace mw::predict {

// Values that go from a stage to the next one.
struct Boundary {
  double bytes = 0;  // one way, of a microbatch
  int64_t messages = 1;
  bool held = false;  // until the backward; the slot is taken as long
};

struct Probe {
  StageFacts facts;                    // of the first slice
  std::vector<StageFacts> later = {};  // [slice - 1] of sequences in slices: work alone
  Boundary boundary;                   // of a slice
  const StageFacts& of_slice(int32_t slice) const {
    return slice == 0 ? facts : later[static_cast<size_t>(slice) - 1];
  }
};

// The programs of a few layers under the plan's tp, sp, ZeRO, slices and recompute. Of its other
// choices only whether dp and pp are 1 matters: with pp=1 all layers are in one stage.
//
// One compilation shows every microbatch: it has a number of sequences that no other size is a
// multiple of, and what is one has as many times the sequences that are asked for. Not so with
// sequence parallelism: there the partitioner moves an activation or the gradient of a weight,
// whichever is smaller. Two compilations that do the same show what lies between them.
class ProbePrograms {
 public:
  // `blocks`: as many as every stage of the plan has; 0: any number, by a straight line.
  // REQUIRES: the plan has no finding (compile::plan_findings). The batch is not read.
  explicit ProbePrograms(const Request& request, int64_t blocks = 0);
  // Compiles what shows microbatches of so many sequences, and nothing that is there already.
  // `told`: the turns of programs like these, where it may look first. `models`: of programs that
  // are partitioned like these, or null.
  void prepare(int64_t microbatch, const std::set<int64_t>& told = {},
               PartitionedSamples* models = nullptr);
  // Microbatches that were compiled, with one more sequence than which, or a few more, other things
  // are done.
  std::vector<int64_t> turns() const;
  // Compiles microbatches of exactly so many. REQUIRES: nothing shows them yet.
  void compile(int64_t microbatch, PartitionedSamples* models = nullptr);
  // On the mesh of such a plan, with so many sequences in a microbatch and so many microbatches in
  // a step; facts of states and update are zero. REQUIRES: they are prepared.
  Probe on(int64_t dp, int64_t pp, int64_t microbatch, int64_t microbatches = 1) const;
  // Microbatches that were compiled.
  int64_t compiled() const { return static_cast<int64_t>(compiled_.size()); }

 private:
  struct Sample {
    pipeline::Program program;  // no more of it than the facts are read from
    compile::Plan plan;
    Boundary boundary;
    int64_t largest = 1;  // of the sizes that do not depend on the microbatch
    // [fragment][port, inputs, then outputs] what a buffer takes of the value's bytes; no
    // fragments: all of them.
    std::vector<std::vector<double>> kept_shares;
    std::optional<GrowingSizes> sizes;  // from here to the next number of sequences
  };
  // Where and with which microbatch the programs are looked at.
  struct View {
    int64_t dp = 1, pp = 1, microbatch = 1;
    int64_t from = 1;          // sequences of a microbatch in the samples
    int64_t microbatches = 1;  // of a step
  };
  using Samples = std::vector<Sample>;
  using Compiled = std::map<int64_t, Samples>;
  int64_t expected_turn() const;
  // Whether blocks at even and at odd places differ.
  bool alternates() const { return request_.model.window > 0; }
  void compile_any(PartitionedSamples* models);
  static bool is_marked(const Sample& sample, int64_t marker);
  Samples compile_samples(int64_t microbatch, PartitionedSamples* models) const;
  Sample compile_sample(const std::vector<int64_t>& blocks, int64_t microbatch,
                        PartitionedSamples* models) const;
  Compiled::const_iterator shown_by(int64_t microbatch) const;
  static pipeline::Program placed(const Sample& sample, const View& view);
  // `slice`: whose calls; -1: all.
  std::vector<Facts> facts_of(const Sample& sample, const pipeline::Program& placed,
                              const View& view, int32_t slice) const;

  Request request_;
  int64_t blocks_ = 0;
  bool any_ = false;   // the one that is compiled shows every microbatch
  Compiled compiled_;  // by the sequences of a microbatch
};

}  // namespace mw::predict
