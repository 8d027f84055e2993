#include "pipeline/fragment_bytes.h"
#include "pipeline/fragment_sharding.h"
#include "pipeline/verify.h"

namespace mw::pipeline {

void check_fragments(const Program& program, Diagnostics& out) {
  for (const Fragment& fragment : program.fragments) {
    const auto add = [&](const std::vector<std::string>& findings) {
      for (const std::string& finding : findings)
        out.add("fragment '{}': {}", fragment.name, finding);
    };
    add(fragment_sharding_findings(fragment, program.mesh));
    add(fragment_memory_findings(fragment, make_fragment_info(fragment)));
    add(make_accumulation_info(fragment, program.mesh).findings);
  }
}

}  // namespace mw::pipeline
