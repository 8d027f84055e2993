#include "runtime/measure.h"

#include <doctest/doctest.h>

#include "cluster/hardware.h"

using namespace mw;
using namespace mw::runtime;

namespace {

OpTiming product(double peak, double half_k, int64_t k) {
  OpTiming t;
  t.kind = ir::OpKind::kDot;
  t.matrix_product = true;
  t.k = k;
  t.bytes = 1e6;
  t.flops = 2e6 * static_cast<double>(k);
  t.seconds = t.flops / peak * (1 + half_k / static_cast<double>(k));
  return t;
}

}  // namespace

TEST_CASE("a machine's profile: peak and half length of products, rates of all other ops") {
  std::vector<OpTiming> products;
  for (const int64_t k : {16, 64, 256, 1024}) products.push_back(product(50e9, 32, k));
  OpTiming add;
  add.kind = ir::OpKind::kAdd;
  add.bytes = 12e6;
  add.seconds = 1e-3;
  OpTiming tiny = add;
  tiny.bytes = 12;
  tiny.seconds = 5e-7;
  const MachineProfile profile = machine_profile(products, {add, tiny, product(50e9, 32, 64)});
  CHECK(profile.peak_flops == doctest::Approx(50e9));
  CHECK(profile.half_k == doctest::Approx(32));
  CHECK(profile.launch == doctest::Approx(5e-7));
  REQUIRE(profile.kernel_rates.size() == 2);
  CHECK(profile.kernel_rates[0].first == "add");
  CHECK(profile.kernel_rates[0].second == doctest::Approx(12e9).epsilon(0.01));
  CHECK(profile.kernel_rates[1].second == doctest::Approx(50e9).epsilon(0.01));
  CHECK(profile.memory_bandwidth > 1e8);
  CHECK(profile.messages.bandwidth > 1e6);

  const cluster::Cluster cluster = cluster::parse_cluster(to_toml(profile, "a test"), "m.toml");
  CHECK(cluster.cores == profile.cores);
  REQUIRE(cluster.device.kernel_rates.size() == 2);
  CHECK(cluster.device.kernel_rates[0].second == doctest::Approx(12e9).epsilon(0.01));
  CHECK(cluster.links[0].kind == cluster::LinkKind::kMemory);
}
