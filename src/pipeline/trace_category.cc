#include "pipeline/trace_category.h"

namespace mw::pipeline {

using trace::MemoryCategory;

MemoryCategory trace_category(Category category) {
  switch (category) {
    case Category::kWeights: return MemoryCategory::kWeight;
    case Category::kGradients: return MemoryCategory::kGradient;
    case Category::kOptimizer: return MemoryCategory::kOptimizer;
    case Category::kActivations: return MemoryCategory::kSaved;
    case Category::kBoundary: return MemoryCategory::kBoundary;
    case Category::kWorkspace: return MemoryCategory::kWorkspace;
    case Category::kMetrics:
    case Category::kData: return MemoryCategory::kOther;
  }
  return MemoryCategory::kOther;
}

}  // namespace mw::pipeline
