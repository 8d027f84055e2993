// Random single edits of sound programs. The verifier must reject each, unless the edited program
// provably does the same: all devices end with the same bytes in their states, in several orders of
// their turns, with NaNs wherever nothing may be read (test_interpreter.h).
#include <functional>
#include <optional>

#include <doctest/doctest.h>

#include "base/text.h"
#include "pipeline/test_edits.h"
#include "pipeline/test_interpreter.h"
#include "pipeline/test_pipeline.h"
#include "pipeline/verifier.h"

using namespace mw;
using namespace mw::pipeline;
using test::Edit;
using test::editors;
using test::Random;

namespace {

// Why the effects differ; empty: they do not.
std::string difference(const Program& edited, const std::vector<std::vector<char>>& wanted) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    try {
      if (Interpreter(edited, seed).run() != wanted) return "the states differ";
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  return "";
}

}  // namespace

TEST_CASE("a random edit of a sound program is rejected, or changes nothing") {
  const std::vector<PipelineSpec> specs = {
      {.ranks = 1, .microbatches = 2, .dp = 2, .tp = 1},
      {.ranks = 2, .microbatches = 3, .dp = 2, .tp = 2, .slots = 2},
      {.ranks = 3, .microbatches = 4, .dp = 2, .tp = 1, .schedule = "gpipe", .zero = true},
      {.ranks = 2,
       .chunks = 2,
       .microbatches = 2,
       .dp = 1,
       .tp = 2,
       .schedule = "interleaved-1f1b",
       .streams = true},
      {.ranks = 2, .microbatches = 2, .dp = 2, .tp = 2, .zero = true, .streams = true},
      {.ranks = 3, .microbatches = 2, .dp = 2, .tp = 1, .tied = 1},
      {.ranks = 2,
       .chunks = 2,
       .microbatches = 2,
       .dp = 2,
       .tp = 1,
       .schedule = "interleaved-1f1b",
       .zero = true,
       .tied = 2}};
  const int rounds = 25;
  int rejected = 0, harmless = 0;
  for (size_t s = 0; s < specs.size(); ++s) {
    const Program sound = make_pipeline(specs[s]);
    REQUIRE(verify(sound).sound());
    const auto wanted = Interpreter(sound, 1).run();
    for (size_t e = 0; e < editors().size(); ++e) {
      for (int round = 0; round < rounds; ++round) {
        const uint64_t seed = (s * 100 + e) * 100000 + static_cast<uint64_t>(round);
        Random random{.seed = seed};
        Program edited = sound;
        const std::optional<Edit> edit = editors()[e].edit(edited, random);
        if (!edit) continue;
        const Verification verification = verify(edited);
        if (!verification.sound()) {
          ++rejected;
          if (edit->rank >= 0 && !test::names_rank(verification.findings, edit->rank)) {
            FAIL_CHECK("seed " << seed << ", " << edit->text << ": no finding names the rank:\n"
                               << verification.findings.front());
          }
          continue;
        }
        ++harmless;
        const std::string why = difference(edited, wanted);
        if (!why.empty())
          FAIL_CHECK("seed " << seed << ", " << std::string(editors()[e].name) << ", " << edit->text
                             << ": accepted, but " << why);
      }
    }
  }
  // An edit is often none: an axis of one device, a slot that is not needed, two loads in another
  // order.
  CHECK(rejected > 4 * harmless);
}

TEST_CASE("every edit is seen in the text and the hash of a program") {
  const Program sound =
      make_pipeline({.ranks = 2, .microbatches = 3, .dp = 2, .tp = 2, .slots = 2, .streams = true});
  const std::string hash = program_hash(sound);
  CHECK(program_hash(make_pipeline(
            {.ranks = 2, .microbatches = 3, .dp = 2, .tp = 2, .slots = 2, .streams = true})) ==
        hash);
  for (size_t e = 0; e < editors().size(); ++e) {
    for (uint64_t round = 0; round < 6; ++round) {
      Random random{.seed = e * 1000 + round};
      Program edited = sound;
      const std::optional<Edit> edit = editors()[e].edit(edited, random);
      const bool swaps_equal = std::string(editors()[e].name) == "fewer_slots" ||
                               std::string(editors()[e].name) == "other_group";
      if (!edit || swaps_equal) continue;
      CAPTURE(edit->text);
      CHECK(program_hash(edited) != hash);
    }
  }
}
