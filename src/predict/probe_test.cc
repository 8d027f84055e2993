#include "predict/probe.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/fs.h"
#include "compile/plan.h"

using namespace mw;
using namespace mw::predict;

namespace {

Request request_for(const std::string& model, const compile::Plan& plan) {
  FileSystem& fs = posix_fs();
  const std::string root = MW_SOURCE_DIR;
  const std::string file = root + "/models/" + model + ".json";
  Request request;
  request.model = models::parse_config(fs.read_file(file), file);
  request.seq_len = std::min<int64_t>(2048, request.model.max_positions);
  request.cluster = cluster::load_cluster(fs, "selene", {root + "/clusters"});
  request.plan = plan;
  return request;
}

// The largest difference between two probes' facts, relative.
double difference(const Probe& a, const Probe& b) {
  double worst = 0;
  const auto add = [&](double x, double y) {
    if (x != y) worst = std::max(worst, std::abs(x - y) / std::max(std::abs(x), std::abs(y)));
  };
  for (const auto& [facts, others] :
       {std::pair(a.facts.of(3, false, false), b.facts.of(3, false, false)),
        std::pair(a.facts.of(3, true, false), b.facts.of(3, true, false)),
        std::pair(a.facts.of(3, false, true), b.facts.of(3, false, true))}) {
    for (size_t f = 0; f < kFacts; ++f) add(facts[f], others[f]);
  }
  add(a.boundary.bytes, b.boundary.bytes);
  add(a.boundary.held, b.boundary.held);
  return worst;
}

}  // namespace

TEST_CASE("programs that are compiled once have the facts of every microbatch") {
  using compile::Recompute;
  const bool all = std::getenv("MESHWRIGHT_TEST_ALL") != nullptr;
  for (const std::string model : {"gpt-7.5b", "llama3-8b"}) {
    for (const std::string text :
         {"tp=4,pp=2,dp=1", "tp=1,pp=2,dp=1,recompute=full", "tp=8,pp=1,dp=1,recompute=selective",
          "tp=2,pp=2,dp=2,zero=3", "tp=2,pp=1,dp=2,zero=2,recompute=full",
          "tp=1,pp=2,dp=2,zero=2"}) {
      const Request request = request_for(model, compile::parse_plan(text));
      ProbePrograms any(request);
      for (const int64_t microbatch : {1, 2, 3, 8, 64}) {
        if (!all && microbatch > 2) continue;
        any.prepare(microbatch);
        ProbePrograms one(request);
        one.compile(microbatch);
        const int64_t dp = request.plan.dp > 1 ? 16 : 1;
        CAPTURE(model);
        CAPTURE(text);
        CAPTURE(microbatch);
        CHECK(difference(any.on(dp, request.plan.pp, microbatch),
                         one.on(dp, request.plan.pp, microbatch)) < 1e-9);
      }
    }
  }
}

TEST_CASE("with sequence parallelism, programs that do the same show all microbatches between") {
  const bool all = std::getenv("MESHWRIGHT_TEST_ALL") != nullptr;
  std::vector<int64_t> sizes = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
  for (const std::string text :
       {"tp=4,pp=2,dp=1,sp", "tp=2,pp=1,dp=1,sp,recompute=selective",
        "tp=8,pp=2,dp=2,sp,zero=3,recompute=full", "tp=4,pp=2,dp=2,sp,zero=2"}) {
    const Request request = request_for("gpt-7.5b", compile::parse_plan(text));
    ProbePrograms some(request);
    for (const int64_t microbatch : sizes) {
      CAPTURE(text);
      CAPTURE(microbatch);
      some.prepare(microbatch);
      if (!all && microbatch % 3 != 0) continue;
      ProbePrograms one(request);
      one.compile(microbatch);
      const int64_t dp = request.plan.dp > 1 ? 16 : 1;
      CHECK(difference(some.on(dp, request.plan.pp, microbatch),
                       one.on(dp, request.plan.pp, microbatch)) < 1e-9);
    }
    CHECK(some.compiled() < static_cast<int64_t>(sizes.size()));
    const int64_t compiled = some.compiled();
    for (const int64_t microbatch : sizes) some.prepare(microbatch);
    CHECK(some.compiled() == compiled);
    // One that is told where those turn needs no more, and shows the same.
    const std::vector<int64_t> found = some.turns();
    const std::set<int64_t> turns(found.begin(), found.end());
    ProbePrograms told(request);
    for (const int64_t microbatch : sizes) told.prepare(microbatch, turns);
    CHECK(told.compiled() <= compiled);
    for (const int64_t microbatch : {3, 12, 48}) {
      const int64_t dp = request.plan.dp > 1 ? 16 : 1;
      CHECK(difference(some.on(dp, request.plan.pp, microbatch),
                       told.on(dp, request.plan.pp, microbatch)) < 1e-9);
    }
  }
}
