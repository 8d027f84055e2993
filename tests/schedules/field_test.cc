// Random plans of every schedule kind, each executed in exact arithmetic by an executor that knows
// nothing of the verifier's and the executor's reading of a program (field_machine.h).
#include <doctest/doctest.h>

#include <cstdlib>

#include "base/text.h"
#include "field_plans.h"
#include "pipeline/verifier.h"

namespace mw::field {
namespace {

bool everything() {
  const char* all = std::getenv("MESHWRIGHT_TEST_ALL");
  return all != nullptr && std::string(all) == "1";
}

MachineOptions options_of(uint64_t seed) {
  return {.seed = seed, .copying = seed % 3 != 0, .late = seed % 3 == 2};
}

TEST_CASE("every plan trains as one device does, in exact arithmetic") {
  const uint64_t rounds = everything() ? 20 : 3;
  int plans = 0;
  for (const std::string& kind : pipeline::schedule_kinds()) {
    for (uint64_t round = 0; round < rounds; ++round, ++plans) {
      Random random{.seed = mix_bits(rng_site(kind) + round)};
      const Compiled compiled = draw_compiled(kind, random);
      CAPTURE(round);
      CAPTURE(to_string(compiled.training));
      const std::string wrong = wrong_with(compiled.training, compiled.plan, options_of(round));
      CHECK(wrong == "");
    }
  }
  MESSAGE(plans, " plans");
}

}  // namespace
}  // namespace mw::field
