#include "transform/dead_code.h"

namespace mw::transform {

ValueIds drop_dead_code(ir::Graph& graph) { return ir::drop_dead(graph); }

}  // namespace mw::transform
