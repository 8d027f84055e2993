#include "runtime/kernel_table.h"

#include "base/text.h"
#include "runtime/aten_module.h"

namespace mw::runtime {
namespace {

KernelTable make_table() {
  KernelTable table;
  register_elementwise(table);
  register_activations(table);
  register_norms(table);
  register_shapes(table);
  register_reductions(table);
  register_products(table);
  register_attention(table);
  register_tokens(table);
  register_random(table);
  register_updates(table);
  return table;
}

}  // namespace

Prepared prepare_op(const OpContext& context) {
  static const KernelTable table = make_table();
  if (const Prepare prepare = table.prepare[static_cast<size_t>(context.op.kind)]) {
    if (Prepared kernel = prepare(context)) return kernel;
  }
  if (Prepared kernel = prepare_aten(context)) return kernel;
  std::vector<std::string> types;
  for (const ValueId v : context.op.operands) types.push_back(ir::to_string(context.graph.type(v)));
  throw_error(
      "op {} on {}: the CPU backend has no kernel for these types; it computes composites in f32",
      ir::op_name(context.op.kind), join(types, ", "));
}

}  // namespace mw::runtime
