// Lowering: from stages, their fragments and a schedule to rank programs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/cut.h"
#include "compile/fragments.h"
#include "compile/update_graph.h"
#include "pipeline/program.h"

namespace mw::compile {

// A stage made ready: its crossings and one fragment a kind of action.
struct StageCode {
  std::string name;  // "3", of a replica "3^1"
  std::vector<Crossing> receives, sends;
  std::vector<std::string> results;  // state buffers that take the stage's results
  std::map<pipeline::ActionKind, StageFragment> fragments;
};

// What one rank does to validate the step before.
struct Validation {
  StateFragment share, validate;
};

struct LowerRequest {
  std::string name;  // of the program
  const cluster::Mesh& mesh;
  const ir::Module& module;  // extended with flat states
  const pipeline::Schedule& schedule;
  const std::vector<StageCode>& stages;   // empty: only `last`
  const std::vector<StateTable>& states;  // [pipeline rank]
  // [pipeline rank] what runs after the schedule's actions; empty: nothing
  const std::vector<StateFragment>& last;
  // [pipeline rank] shared before them, validated behind those of them that may run again; empty:
  // not
  const std::vector<Validation>& validations;
  bool offsets = true;  // false: no arenas
};

pipeline::Program lower(const LowerRequest& request);

}  // namespace mw::compile
