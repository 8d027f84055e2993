#include "runtime/cpu_backend.h"

#include <sys/mman.h>

#include "base/error.h"
#include "runtime/kernel_table.h"

namespace mw::runtime {

std::unique_ptr<execute::Kernel> CpuBackend::prepare(const ir::Graph& graph, const ir::Op& op,
                                                     const execute::DeviceContext& device) {
  return prepare_op({graph, op, device});
}

std::shared_ptr<void> CpuBackend::allocate(Bytes bytes, const execute::DeviceContext&) {
  MW_CHECK(bytes.value > 0, "allocation of {} bytes", bytes.value);
  const auto size = static_cast<size_t>(bytes.value);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw RunError(fmt::format(
        "cannot allocate {} bytes for a rank; use more ranks, more pipeline stages or recompute",
        bytes.value));
  }
  // A wish only: without huge pages all works the same.
  madvise(data, size, MADV_HUGEPAGE);
  return {data, [size](void* memory) { munmap(memory, size); }};
}

void CpuBackend::enter_rank(const execute::DeviceContext&) {}

}  // namespace mw::runtime
