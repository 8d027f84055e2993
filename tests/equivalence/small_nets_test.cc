// Nets that are no transformers train under many plans through compile -> verify -> execute: a plan
// against its base plan bit for bit, base plans against one rank within rounding, and what ran is
// what was verified.
#include <doctest/doctest.h>

#include <fmt/core.h>

#include "models/small_nets.h"
#include "training.h"

namespace mw {
namespace {

using equivalence::check_plans;
using equivalence::Net;

Net mlp(models::Loss loss, int64_t ffn) {
  return {
      loss == models::Loss::kRegression ? "mlp" : "mlp classifier",
      [loss, ffn](int64_t batch) {
        return models::build_mlp(
            {.batch = batch, .inputs = 10, .hidden = 24, .ffn = ffn, .outputs = 6, .loss = loss});
      },
      6};
}

TEST_CASE("an MLP with a skip over two stages trains alike under all plans") {
  const std::vector<std::string> plans{
      "microbatches=4,recompute=full",
      "pp=2,microbatches=4",
      "pp=4,microbatches=4",
      "pp=4,microbatches=8,schedule=gpipe",
      "pp=2,chunks=2,microbatches=4",
      "pp=3,layers=2:0:2,microbatches=4",
      "pp=2,layers=1:3,microbatches=2,zero=1",
      "dp=2,pp=2,microbatches=4,zero=1",
      "dp=2,pp=2,chunks=2,microbatches=4,zero=2",
      "dp=2,pp=2,microbatches=2,zero=3,recompute=full",
      "dp=4,zero=3",
      "dp=4,microbatches=2,zero=3,grad_reduce=step",
      "dp=2,zero=2,grad_reduce=step,microbatches=2",
      "tp=2,pp=2,microbatches=2",
      "tp=4,pp=2,chunks=2,microbatches=2,recompute=full",
      "dp=2,tp=2,pp=2,microbatches=4,zero=1",
      "dp=2,tp=2,pp=2,order=dp-pp-tp,microbatches=4,zero=3",
      "dp=2,tp=2,pp=4,microbatches=4,zero=2,recompute=full",
  };
  check_plans(mlp(models::Loss::kRegression, 64), plans);
  // 42 over tp=4: shards of 11, the last with padding.
  check_plans(mlp(models::Loss::kClassification, 42), plans);
}

TEST_CASE("two towers that share a weight train alike under all plans") {
  const Net net{
      "two towers", [](int64_t batch) {
        return models::build_two_tower({.batch = batch, .inputs = 12, .hidden = 30, .outputs = 5});
      }};
  check_plans(net, {
                       "microbatches=4,recompute=full",
                       "pp=2,microbatches=4",
                       "pp=3,microbatches=4",
                       "pp=3,microbatches=4,schedule=gpipe,zero=1",
                       "pp=2,layers=2:1,microbatches=2",
                       "pp=2,chunks=2,layers=1:1:1:0,microbatches=2",
                       "pp=2,chunks=2,layers=1:0:1:1,microbatches=4",
                       "dp=2,pp=3,microbatches=2,zero=1",
                       "dp=2,pp=2,microbatches=4,zero=2",
                       "dp=2,pp=3,microbatches=2,zero=3,recompute=full",
                       "dp=4,zero=3,grad_reduce=step",
                       "tp=2,pp=3,microbatches=2",
                       "tp=4,pp=2,microbatches=4,recompute=full",
                       "dp=2,tp=2,pp=2,microbatches=2,zero=3",
                       "dp=2,tp=2,pp=3,microbatches=4,zero=1",
                   });
}

TEST_CASE("a convolutional net trains alike under all plans") {
  const Net net{"conv net",
                [](int64_t batch) {
                  return models::build_conv_net(
                      {.batch = batch, .size = 10, .width = 4, .convolutions = 3, .outputs = 7});
                },
                7};
  check_plans(net, {
                       "microbatches=4,recompute=full",
                       "pp=2,microbatches=4",
                       "pp=4,microbatches=4",
                       "pp=2,chunks=2,microbatches=4",
                       "pp=4,microbatches=8,schedule=gpipe,recompute=full",
                       "pp=3,layers=1:2:1,microbatches=4",
                       "dp=2,microbatches=2,zero=1",
                       "dp=4,zero=3",
                       "dp=2,pp=2,microbatches=4,zero=2",
                       "dp=2,pp=2,chunks=2,microbatches=4,zero=3,recompute=full",
                       "dp=2,pp=4,microbatches=2,zero=1,order=dp-pp-tp",
                       "tp=2,pp=2,microbatches=2",
                   });
}

TEST_CASE("a weight of three layers keeps its bits wherever its uses lie") {
  check_plans(
      equivalence::shared_weight_net(3),
      {"pp=2,layers=2:2,microbatches=2", "pp=2,layers=3:1,microbatches=2",
       "pp=2,layers=1:3,microbatches=2", "pp=2,chunks=2,microbatches=2", "pp=4,microbatches=4",
       "dp=2,pp=3,layers=2:1:1,microbatches=2,zero=1", "dp=2,pp=4,microbatches=2,zero=3"});
}

TEST_CASE("a weight of four layers keeps its bits over two and four ranks with every ZeRO stage") {
  std::vector<std::string> plans{"pp=4,chunks=1,microbatches=4,layers=1:1:2:1",
                                 "pp=2,chunks=2,microbatches=4,layers=1:1:2:1",
                                 "pp=2,chunks=2,microbatches=4,layers=2:1:1:1,recompute=full"};
  for (const char* zero : {"0", "1", "2", "3"}) {
    for (const char* shape : {"pp=2,layers=2:3", "pp=2,layers=3:2", "pp=4,layers=1:1:1:2",
                              "pp=2,chunks=2,layers=1:1:1:2"}) {
      plans.push_back(fmt::format("dp=2,{},microbatches=2,zero={}", shape, zero));
    }
  }
  plans.push_back("dp=2,pp=2,layers=2:3,microbatches=2,zero=3,grad_reduce=step");
  plans.push_back("dp=2,pp=2,chunks=2,layers=1:1:1:2,microbatches=2,grad_reduce=microbatch");
  check_plans(equivalence::shared_weight_net(4), plans);
}

}  // namespace
}  // namespace mw
