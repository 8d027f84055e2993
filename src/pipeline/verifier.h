// The verifier: proves a program sound before anything runs it, under the weakest semantics: a
// publish needs a free slot, a collective needs all members, streams run in order.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "pipeline/program.h"

namespace mw::pipeline {

// What the executor must measure, exactly.
struct RankFigures {
  Bytes bytes_sent;  // a call of the program, collectives by ring volume plus published slots
  int64_t instructions = 0;                     // fragment ops run, in order, collectives included
  uint64_t order_hash = 0;                      // of (op kind, fragment, command) in order
  Bytes state_bytes;                            // state arena
  Bytes arena_peak;                             // highest byte of the step arena that is ever live
  std::map<Category, Bytes> peak_by_category;   // at the instant of the peak, step arena and states
  std::map<std::string, Bytes> bytes_by_group;  // "tp", "dp", "pp", "holders …"
  std::map<std::string, int64_t> collectives_by_group;
};

struct Verification {
  std::vector<std::string>
      findings;                    // empty: sound. Each names rank, command, peer and microbatch.
  std::vector<RankFigures> ranks;  // [pipeline coordinate]
  bool sound() const { return findings.empty(); }
};

struct VerifyOptions {
  Bytes memory_limit{0};               // per rank, 0: none
  const ir::Module* module = nullptr;  // gradients' parameters and uses
};

// Checks, in this order:
//  fragments: structure; types; every op's result sharding and partial follow from its operands by
//  the op's sharding rule
//    (a forgotten all-reduce is found here), collectives change them as they say;
//  data flow: no read before write, no use of a slot after release, one writer, types of arguments;
//  channels: every receive has its publish, same type, in the same order, slots suffice;
//  deadlock: runs all pipeline ranks' commands abstractly until all end or none can move;
//  gradients: at the update every accumulator holds every microbatch exactly once and its partial
//  axes are reduced once;
//  parameters: what fragments take for one is one for the optimizer, and every one is updated;
//  norm: it counts every gradient that is taken, once on all pipeline ranks;
//  step: adamw is told the learning rate and the step, all steps are of one optimizer, and norm and
//  loss are what is reported as such;
//  memory: two buffers share bytes only if one's last use precedes the other's definition; peak
//  within the limit;
//  validation: commands that a rank may repeat leave no trace, and all ranks find out together,
//  from the sums and losses of all, whether they do.
Verification verify(const Program& program, const VerifyOptions& options = {});

// Post-validation: what a training step keeps of every step of adamw that it makes too early, and
// what `amend` makes of it; empty: exactly the step that it should have been. REQUIRES: both are
// sound, and have the same states.
std::vector<std::string> amendment_findings(const Program& train, const Program& amend);

}  // namespace mw::pipeline
