// A small model whose ranks are processes of PyTorch, for tests.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "predict/predict.h"
#include "predict/test_request.h"
#include "predict/torch_memory.h"

namespace mw::predict::test {

constexpr int64_t kBlockElements = 12 * 64 * 64 + 13 * 64;  // of a block's weights

inline Request torch_request(const std::string& plan, const std::string& precision = "bf16") {
  Request request = small();
  REQUIRE(set_precision(request, precision));
  request.plan = compile::parse_plan(plan);
  request.cluster.stack.allocator = cluster::Allocator::kExpandable;
  request.cluster.stack.f32_loss = true;
  return request;
}

inline std::vector<simulate::Held> held_of(const Request& request, int steps = kSettled) {
  return torch_memory(program_of(request), request.precision,
                      stack_memory(request.cluster, request.plan, request.options.fp8),
                      request.cluster, steps);
}

}  // namespace mw::predict::test
