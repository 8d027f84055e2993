// ATen stands in a module of its own, libmeshwright_aten.so, that is loaded when the first op needs
// it: libtorch costs a process 0.3 s and 100 MiB, and the models' programs do without. This header
// is what the two sides agree on; the module is built from the same sources by the same compiler.
#pragma once

#include "execute/backend.h"
#include "runtime/op_context.h"

namespace mw::runtime {

// The module's one exported symbol, a function of type PrepareAten: a new kernel, or null where
// ATen runs no such op. The caller owns it.
inline constexpr const char* kPrepareAtenSymbol = "mw_prepare_aten";
using PrepareAten = execute::Kernel* (*)(const OpContext& context);

// Ops that ATen runs: convolutions, and whatever the project's kernels do not cover. Null: not by
// ATen either. Throws Error if the module or libtorch cannot be loaded.
Prepared prepare_aten(const OpContext& context);

}  // namespace mw::runtime
