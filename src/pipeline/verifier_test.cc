#include "pipeline/verifier.h"

#include <doctest/doctest.h>

#include "base/text.h"
#include "pipeline/test_interpreter.h"
#include "pipeline/test_pipeline.h"

using namespace mw;
using namespace mw::pipeline;

static std::string all_findings(const Program& program, const VerifyOptions& options = {}) {
  return join(verify(program, options).findings, "\n");
}

static std::vector<PipelineSpec> specs() {
  std::vector<PipelineSpec> list;
  for (const int64_t dp : {1, 2}) {
    for (const int64_t tp : {1, 2}) {
      for (const bool zero : {false, true}) {
        if (zero && dp == 1) continue;
        list.push_back({.ranks = 1, .microbatches = 3, .dp = dp, .tp = tp, .zero = zero});
        list.push_back({.ranks = 3, .microbatches = 5, .dp = dp, .tp = tp, .zero = zero});
        list.push_back({.ranks = 2, .microbatches = 4, .dp = dp, .tp = tp, .schedule = "gpipe", .zero = zero});
        list.push_back({.ranks = 2, .chunks = 2, .microbatches = 4, .dp = dp, .tp = tp, .schedule = "interleaved-1f1b", .zero = zero});
      }
    }
  }
  return list;
}

TEST_CASE("hand-lowered pipelines of all schedules and meshes are sound") {
  for (const PipelineSpec& spec : specs()) {
    CAPTURE(spec.ranks);
    CAPTURE(spec.dp);
    CAPTURE(spec.tp);
    CAPTURE(spec.zero);
    CHECK(all_findings(make_pipeline(spec)) == "");
  }
}

TEST_CASE("a sound program ends with the same states whatever the order in which its devices run") {
  for (const PipelineSpec& spec : specs()) {
    const Program program = make_pipeline(spec);
    const auto states = Interpreter(program, 1).run();
    CHECK(states == Interpreter(program, 2).run());
    // Stages of one rank accumulate in the order that the pipeline does.
    for (size_t d = 0; d < states.size(); ++d) {
      for (const Buffer& buffer : program.ranks[static_cast<size_t>(program.mesh.index(RankId(static_cast<int64_t>(d)), {"pp"}))].buffers) {
        if (buffer.name != "grad_norm") continue;
        float norm;
        std::memcpy(&norm, states[d].data() + buffer.storage.offset, 4);
        CHECK(norm > 0);
        CHECK(norm < 1e9F);
      }
    }
  }
}
