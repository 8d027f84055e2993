#include "planner/shortlist.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <tuple>

#include "base/rng.h"
#include "planner/planner.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::planner;

namespace {

Estimated one(double step, int64_t microbatches, int64_t pp = 1) {
  Estimated made;
  made.plan.pp = pp;
  made.plan.microbatches = microbatches;
  made.step = Seconds(step);
  made.peak = Bytes(1000);
  return made;
}

std::vector<double> steps(const std::vector<Estimated>& plans) {
  std::vector<double> all;
  for (const Estimated& here : plans) all.push_back(here.step.value);
  return all;
}

}  // namespace

TEST_CASE("pieces of work are stages x microbatches x slices") {
  for (const auto& [text, pieces] : std::vector<std::tuple<const char*, int64_t>>{
           {"microbatches=8", 8},
           {"pp=4,microbatches=8", 32},
           {"pp=4,schedule=interleaved-1f1b,chunks=3,microbatches=8", 96},
           {"dp=2,tp=2,pp=4,microbatches=8", 32},
           {"pp=4,schedule=seq-1f1b,slices=2,microbatches=8", 64}}) {
    CAPTURE(std::string(text));
    CHECK(pieces_of(compile::parse_plan(text)) == pieces);
  }
}

TEST_CASE("short programs are all simulated, in the order in which they came") {
  std::vector<Estimated> plans;
  for (int64_t i = 0; i < 100; ++i)
    plans.push_back(one(1 + static_cast<double>(i * 37 % 100), Shortlist::kShort / 4, 4));
  const Shortlist list = shortlist(plans);
  CHECK(steps(list.first) == steps(plans));
  CHECK(list.later.empty());
}

TEST_CASE("long programs are simulated from the fastest on, as far as the front reaches") {
  const int64_t piece = Shortlist::kTogether / 4;
  const Shortlist list = shortlist({one(1.3, piece), one(1.6, piece), one(1.1, piece), one(9, 10),
                                    one(1, piece), one(1.5, piece), one(1.4, piece)});
  CHECK(steps(list.first) == std::vector<double>{1.3, 1.1, 9, 1, 1.4});
  CHECK(steps(list.later) == std::vector<double>{1.5, 1.6});
  // One that is too long for what is left makes room for the next.
  CHECK(steps(shortlist({one(1, 2 * piece), one(1.1, 3 * piece), one(1.2, 2 * piece)}).first) ==
        std::vector<double>{1, 1.2});
  // The one fastest, however long.
  CHECK(steps(shortlist({one(1, 8 * piece), one(1.1, 8 * piece)}).first) == std::vector<double>{1});
  // Where what is short is the fastest, the front reaches from there.
  CHECK(steps(shortlist({one(1, 10), one(1.49, piece), one(1.51, piece)}).first) ==
        std::vector<double>{1, 1.49});
  CHECK(shortlist({}).first.empty());
}

TEST_CASE("what is left for later may win where its estimate is below the best by its error") {
  CHECK(Shortlist::may_win(one(0.969, 1), Seconds(1)));
  CHECK(!Shortlist::may_win(one(0.971, 1), Seconds(1)));
}

TEST_CASE("a step of very many microbatches is planned from few simulations") {
  Request request;
  request.base = predict::test::small();
  request.base.cluster.device.memory = Bytes(4'000'000'000);
  request.base.global_batch = 1 << 16;
  const Found found = search(request);
  REQUIRE(!found.plans.empty());
  CHECK(found.not_simulated > 0);
  CHECK(found.simulated > 0);
  int64_t pieces = 0;
  for (const Candidate& candidate : found.plans) pieces += pieces_of(candidate.plan);
  CHECK(pieces <= Shortlist::kTogether);
  CHECK(to_text(request, found, 5)
            .find("\nnot simulated " + std::to_string(found.not_simulated) +
                  " of the best by estimates, as their programs are long\n") != std::string::npos);
}
