// The init graph of one pipeline rank: draws every weight by its global index, so that all layouts
// start alike.
#pragma once

#include "compile/update_graph.h"

namespace mw::compile {

StateFragment build_init(const std::vector<FlatGroup>& groups, const Plan& plan,
                         const ir::Module& module, const cluster::Mesh& stage_mesh);

}  // namespace mw::compile
