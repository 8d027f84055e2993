// Which function prepares which op on the CPU. One file an op family.
#pragma once

#include "runtime/op_context.h"

namespace mw::runtime {

// Null: no kernel for these operands (their dtype); prepare_op then asks ATen.
using Prepare = Prepared (*)(const OpContext&);

struct KernelTable {
  Prepare prepare[ir::kOpKinds] = {};
  void add(ir::OpKind kind, Prepare function) { prepare[static_cast<size_t>(kind)] = function; }
};

void register_elementwise(KernelTable& table);
void register_activations(KernelTable& table);
void register_norms(KernelTable& table);
void register_shapes(KernelTable& table);
void register_reductions(KernelTable& table);
void register_products(KernelTable& table);
void register_attention(KernelTable& table);
void register_tokens(KernelTable& table);
void register_random(KernelTable& table);
void register_updates(KernelTable& table);

// Throws Error naming the op and its operand types if nothing runs it.
Prepared prepare_op(const OpContext& context);

}  // namespace mw::runtime
