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
    case Category::kUpdate: return "update";
  }
  return "?";
}

std::string_view memory_category_name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kWeight: return "weights";
    case MemoryCategory::kGradient: return "gradients";
    case MemoryCategory::kOptimizer: return "optimizer";
    case MemoryCategory::kSaved: return "activations";
    case MemoryCategory::kBoundary: return "communication buffers";
    case MemoryCategory::kWorkspace: return "temporaries";
    case MemoryCategory::kOther: return "other";
  }
  return "?";
}

}  // namespace mw::trace
