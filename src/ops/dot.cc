// dot: a product in einsum form.
#include <cctype>
#include <set>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::DotAttrs;
using ir::OpKind;

std::string einsum(const DotAttrs& attrs) { return attrs.lhs + "," + attrs.rhs + "->" + attrs.out; }

bool has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

// Every letter once in an operand or the result, and in two of the three at least.
void check_letters(const ir::Op& op, const DotAttrs& attrs) {
  for (const std::string* letters : {&attrs.lhs, &attrs.rhs, &attrs.out}) {
    if (std::set<char>(letters->begin(), letters->end()).size() != letters->size()) {
      reject(op, "\"{}\" has a letter twice in \"{}\"", einsum(attrs), *letters);
    }
    for (const char letter : *letters) {
      const int places = has(attrs.lhs, letter) + has(attrs.rhs, letter) + has(attrs.out, letter);
      if (places >= 2 && std::isalpha(static_cast<unsigned char>(letter)) != 0) continue;
      reject(op, "\"{}\": '{}' must be a letter that stands in two of lhs, rhs and out",
             einsum(attrs), letter);
    }
  }
}

TypeList infer_dot(const ir::Op& op, Types operands, Types) {
  const DotAttrs& attrs = op.as<DotAttrs>();
  check_letters(op, attrs);
  const ir::TensorType &lhs = operands[0], &rhs = operands[1];
  const auto no_fit = [&](const std::string& why) {
    reject(op, "lhs {} and rhs {} do not fit \"{}\": {}", ir::to_string(lhs), ir::to_string(rhs),
           einsum(attrs), why);
  };
  if (lhs.rank() != static_cast<int>(attrs.lhs.size()))
    no_fit("lhs has another number of dimensions");
  if (rhs.rank() != static_cast<int>(attrs.rhs.size()))
    no_fit("rhs has another number of dimensions");
  if (lhs.dtype != rhs.dtype) no_fit("the dtypes differ");
  for (size_t i = 0; i < attrs.lhs.size(); ++i) {
    const size_t j = attrs.rhs.find(attrs.lhs[i]);
    if (j == std::string::npos || lhs.dims[i] == rhs.dims[j]) continue;
    no_fit(fmt::format("'{}' is {} and {}", attrs.lhs[i], lhs.dims[i].size, rhs.dims[j].size));
  }
  ir::TensorType y{lhs.dtype, {}};
  for (const char letter : attrs.out) {
    const size_t i = attrs.lhs.find(letter);
    y.dims.push_back(i != std::string::npos ? lhs.dims[i] : rhs.dims[attrs.rhs.find(letter)]);
  }
  return {y};
}

std::string spaced(const std::string& letters) {
  std::string text;
  for (const char letter : letters) text += letter, text += ' ';
  return text;
}

ShardingRule rule_dot(const ir::Op& op, Types operands, Types results) {
  const DotAttrs& attrs = op.as<DotAttrs>();
  ShardingRule rule = make_rule(
      spaced(attrs.lhs) + ", " + spaced(attrs.rhs) + "-> " + spaced(attrs.out), operands, results);
  rule.linear = {0, 1};
  return rule;
}

OpCost cost_dot(const ir::Op& op, Types operands, Types results) {
  const DotAttrs& attrs = op.as<DotAttrs>();
  double products = static_cast<double>(results[0].elements());
  for (size_t i = 0; i < attrs.lhs.size(); ++i) {
    if (!has(attrs.out, attrs.lhs[i])) products *= static_cast<double>(operands[0].dims[i].size);
  }
  return {.flops = 2 * products,
          .bytes = tensor_bytes(operands) + tensor_bytes(results),
          .matrix_product = true};
}

void gradient_dot(GradientContext& c) {
  Builder& b = c.builder();
  const DotAttrs& attrs = c.op().as<DotAttrs>();
  const ValueId dy = c.result_grad(0);
  if (c.needs(0)) {
    c.set_operand_grad(
        0, b.emit1(OpKind::kDot, DotAttrs{attrs.out, attrs.rhs, attrs.lhs}, {dy, c.operand(1)}));
  }
  if (c.needs(1)) {
    c.set_operand_grad(
        1, b.emit1(OpKind::kDot, DotAttrs{attrs.out, attrs.lhs, attrs.rhs}, {dy, c.operand(0)}));
  }
}

}  // namespace

void register_dot(Registry& registry) {
  registry.add({.kind = OpKind::kDot,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_dot,
                .rule = rule_dot,
                .cost = cost_dot,
                .gradient = gradient_dot,
                .can_accumulate = true});
}

}  // namespace mw::ops
