// Groups of devices that do not divide a node: some lie in one, others in two; and the part of a
// torus that a job has.
#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "predict/coarse.h"
#include "predict/predict.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::small;

TEST_CASE("a tensor-parallel group that straddles nodes is waited for, wherever it lies") {
  Request request = small();
  cluster::Cluster& c = request.cluster;
  c.links[0].devices = 6;
  c.links.push_back(c.links[0]);
  c.links[1].name = "network";
  c.links[1].kind = cluster::LinkKind::kNetwork;
  c.links[1].devices = 0;
  c.links[1].bandwidth = c.links[1].bus_bandwidth = cluster::BytesPerSecond(1e9);
  const auto exposed = [&](const char* plan, int64_t batch) {
    request.plan = compile::parse_plan(plan);
    request.global_batch = batch;
    return mw::predict::predict(request).exposed_comm.at("tp").value;
  };
  // Ranks 4 to 7 are of two nodes of six.
  const double inside = exposed("tp=4", 8), straddling = exposed("tp=4,dp=3", 24);
  CHECK(inside > 0);
  CHECK(straddling > 2 * inside);
  // With nodes of four none does.
  c.links[0].devices = 4;
  CHECK(exposed("tp=4,dp=3", 24) == mw::test::close_to(inside));
}

TEST_CASE("pipeline ranks with equal stages wait for their own groups' links") {
  Request request = small();
  cluster::Cluster& c = request.cluster;
  c.links[0].devices = 6;
  c.links.push_back(c.links[0]);
  c.links[1].kind = cluster::LinkKind::kNetwork;
  c.links[1].devices = 0;
  c.links[1].bandwidth = c.links[1].bus_bandwidth = cluster::BytesPerSecond(1e9);
  request.plan = compile::parse_plan("tp=4,pp=4,microbatches=4");
  const auto exposed = [&] {
    std::vector<double> tp;
    for (const simulate::RankResult& rank : mw::predict::predict(request).result.ranks)
      tp.push_back(rank.exposed_comm.at("tp").value);
    return tp;
  };
  // Devices 4 to 7 are of two nodes of six, 8 to 11 of one. Both middle stages are one block.
  const std::vector<double> straddling = exposed();
  c.links[0].devices = 4;
  const std::vector<double> inside = exposed();
  CHECK(straddling[1] > 2 * inside[1]);
  CHECK(straddling[2] == mw::test::close_to(inside[2]));
  CHECK(inside[1] == mw::test::close_to(inside[2]));
}

TEST_CASE("a job on a part of a torus takes as long as on a torus of that part's sides") {
  Request request = small();
  cluster::Link& link = request.cluster.links[0];
  link.kind = cluster::LinkKind::kTorus;
  link.bandwidth = link.bus_bandwidth = cluster::BytesPerSecond(1e9);
  for (const char* plan :
       {"tp=4,dp=4,sp,microbatches=4", "tp=4,dp=4,sp,zero=1,microbatches=2", "dp=16",
        "tp=4,pp=4,microbatches=4", "pp=2,dp=8,schedule=chimera,microbatches=2"}) {
    CAPTURE(std::string(plan));
    request.plan = compile::parse_plan(plan);
    const auto set_sides = [&](int64_t side) {
      link.torus = {side, side};
      link.devices = request.cluster.devices = side * side;
    };
    set_sides(4);
    const Prediction own = mw::predict::predict(request);
    const double coarse = Coarse(request).step(request.plan).value;
    CHECK(coarse == mw::test::close_to(own.step.value).epsilon(0.15));
    set_sides(16);
    const Prediction part = mw::predict::predict(request);
    CHECK(part.step == own.step);
    CHECK(part.exposed_comm == own.exposed_comm);
    CHECK(Coarse(request).step(request.plan).value == coarse);
    CHECK(to_text(request, part).find("(box, 4x4 of it)") != std::string::npos);
  }
}
