#include "runtime/aten_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace mw::runtime {
namespace {

// Beside the program, or in the build folder that its runpath names.
void* open_module() {
  const std::string name = "libmeshwright_aten.so";
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
  if (void* module = dlopen((program.parent_path() / name).c_str(), kMode)) return module;
  return dlopen(name.c_str(), kMode);
}

PrepareAten load_module() {
  // MKL's Conditional Numerical Reproducibility, read at its first call. On processors that are not
  // Intel's only AUTO and COMPATIBLE are accepted (AVX2 falls back to AUTO); STRICT makes the bits
  // of a product independent of the threads. A user's own setting stays.
  constexpr int kKeepUsers = 0;
  setenv("MKL_CBWR", "AUTO,STRICT", kKeepUsers);
  void* module = open_module();
  void* symbol = module != nullptr ? dlsym(module, kPrepareAtenSymbol) : nullptr;
  if (symbol == nullptr) {
    throw_error(
        "an op of this model needs libtorch, which cannot be loaded: {}; keep "
        "libmeshwright_aten.so "
        "beside the binary, and the torch wheel where it was when meshwright was built",
        dlerror());
  }
  return reinterpret_cast<PrepareAten>(symbol);
}

}  // namespace

Prepared prepare_aten(const OpContext& context) {
  static const PrepareAten prepare = load_module();
  return Prepared(prepare(context));
}

}  // namespace mw::runtime
