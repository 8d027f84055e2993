#include "trace/span.h"

namespace mw::trace {

std::string_view category_name(Category category) {
  switch (category) {
    case Category::kCompute: return "compute";
    case Category::kComm: return "comm";
    case Category::kCopy: return "copy";
    case Category::kWait: return "wait";
    case Category::kStep: return "step";
    case Category::kIo: return "io";
    case Category::kCall: return "call";
  }
  return "?";
}

std::string_view memory_category_name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kWeight: return "weight";
    case MemoryCategory::kGradient: return "gradient";
    case MemoryCategory::kOptimizer: return "optimizer";
    case MemoryCategory::kSaved: return "saved";
    case MemoryCategory::kBoundary: return "boundary";
    case MemoryCategory::kWorkspace: return "workspace";
    case MemoryCategory::kOther: return "other";
  }
  return "?";
}

}  // namespace mw::trace
