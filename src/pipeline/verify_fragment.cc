#include "pipeline/fragment_bytes.h"
#include "pipeline/fragment_sharding.h"
#include "pipeline/verify.h"

namespace mw::pipeline {

void check_fragments(const Checked& checked, Diagnostics& out) {
  for (size_t f = 0; f < checked.program.fragments.size(); ++f) {
    const Fragment& fragment = checked.program.fragments[f];
    const auto add = [&](const std::vector<std::string>& findings) {
      for (const std::string& finding : findings)
        out.add("fragment '{}': {}", fragment.name, finding);
    };
    add(fragment_sharding_findings(fragment, checked.program.mesh));
    add(fragment_memory_findings(fragment, checked.info[f]));
    add(checked.accumulation[f].findings);
  }
}

}  // namespace mw::pipeline
