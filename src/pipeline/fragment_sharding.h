// The sharding of every value of a fragment follows from the op that makes it. Private to room
// pipeline.
#pragma once

#include <string>
#include <vector>

#include "cluster/mesh.h"
#include "pipeline/program.h"

namespace mw::pipeline {

// Findings, op by op:
//  types: local sizes are the global ones over the shards; results are what the op infers;
//  ops with a sharding rule: the axes of a factor agree over all operands and results; what the op
//  needs whole is whole; a
//    contracted sharded factor leaves the result pending; a pending sum passes only where the op is
//    linear (so that a forgotten all-reduce is found); a padded tail that is summed over holds
//    zeros, and one that may hold infinities is masked before anything reads it;
//  attributes with offsets of shards (embedding rows, vocabulary columns, …) name the axes that the
//  operands have; collectives and local moves change the sharding as they say; views, the norm and
//  the optimizer get whole gradients.
// Inputs are what their shardings say. REQUIRES: no structure findings.
std::vector<std::string> fragment_sharding_findings(const Fragment& fragment,
                                                    const cluster::Mesh& mesh);

}  // namespace mw::pipeline
