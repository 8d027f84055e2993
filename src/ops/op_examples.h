// One example or more of every op kind, for the table-driven tests.
#pragma once

#include <string>
#include <vector>

#include "ops/interpret.h"

namespace mw::ops::test {

struct OpExample {
  ir::OpKind kind;
  ir::Attributes attrs = ir::NoAttrs{};
  // "f32[2,3]", with a word for values that are not plain: "i32[2,4] positions", "i32[2,4] below
  // 7", "i32[2,4] targets 7" (one is ignored), "f32[3] positive", "bool[3]" (mixed).
  std::vector<std::string> operands;
  std::vector<std::string> declared = {};
};

const std::vector<OpExample>& op_examples();

ir::TensorType parse_type(const std::string& text);  // ignores the word behind the type
std::vector<ir::TensorType> parse_types(const std::vector<std::string>& texts);
ir::Op op_of(const OpExample& example);
// Random values of the operand; the same for the same seed.
Tensor sample(const std::string& operand, uint64_t seed);
std::vector<Tensor> samples(const OpExample& example);

}  // namespace mw::ops::test
