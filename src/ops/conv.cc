// conv and its two gradients. x_NCHW, w_OIHW, y_NOYX.
#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::ConvAttrs;
using ir::OpKind;

int64_t output_size(const ConvAttrs& attrs, int64_t in, int64_t kernel, size_t d) {
  return (in + 2 * attrs.padding[d] - kernel) / attrs.stride[d] + 1;
}

void check_attrs(const ir::Op& op, bool needs_input_size) {
  const ConvAttrs& attrs = op.as<ConvAttrs>();
  const bool fits = attrs.stride.size() == 2 && attrs.padding.size() == 2 && attrs.stride[0] >= 1 &&
                    attrs.stride[1] >= 1 && attrs.padding[0] >= 0 && attrs.padding[1] >= 0 &&
                    (!needs_input_size || attrs.input_size.size() == 2);
  if (!fits) {
    reject(op, "needs two strides >= 1, two paddings >= 0{}",
           needs_input_size ? " and two input sizes" : "");
  }
}

// The height and width that x and w give must be those of y.
void check_image(const ir::Op& op, const ir::TensorType& x, const ir::TensorType& w,
                 const ir::TensorType& y) {
  const ConvAttrs& attrs = op.as<ConvAttrs>();
  for (size_t d = 0; d < 2; ++d) {
    const int64_t size = output_size(attrs, x.dims[d + 2].size, w.dims[d + 2].size, d);
    if (size == y.dims[d + 2].size &&
        x.dims[d + 2].size + 2 * attrs.padding[d] >= w.dims[d + 2].size)
      continue;
    reject(op, "x {} and w {} with stride {} and padding {} do not give y {}", ir::to_string(x),
           ir::to_string(w), attrs.stride[d], attrs.padding[d], ir::to_string(y));
  }
}

TypeList infer_conv(const ir::Op& op, Types operands, Types) {
  const ir::TensorType &x = operands[0], &w = operands[1];
  check_attrs(op, false);
  require_rank(op, "x", x, 4);
  require_rank(op, "w", w, 4);
  const ConvAttrs& attrs = op.as<ConvAttrs>();
  if (x.dtype != w.dtype || x.dims[1] != w.dims[1]) {
    reject(op, "x {} and w {} must have the same dtype and number of input channels (dimension 1)",
           ir::to_string(x), ir::to_string(w));
  }
  ir::TensorType y{x.dtype, {x.dims[0], w.dims[0]}};
  for (size_t d = 0; d < 2; ++d) {
    if (x.dims[d + 2].size + 2 * attrs.padding[d] < w.dims[d + 2].size) {
      reject(op, "w {} is larger than x {} with padding {}", ir::to_string(w), ir::to_string(x),
             attrs.padding[d]);
    }
    y.dims.push_back(output_size(attrs, x.dims[d + 2].size, w.dims[d + 2].size, d));
  }
  return {y};
}

TypeList infer_input_grad(const ir::Op& op, Types operands, Types) {
  const ir::TensorType &dy = operands[0], &w = operands[1];
  check_attrs(op, true);
  require_rank(op, "dy", dy, 4);
  require_rank(op, "w", w, 4);
  if (dy.dtype != w.dtype || dy.dims[1] != w.dims[0]) {
    reject(op, "dy {} and w {} must have the same dtype and number of output channels",
           ir::to_string(dy), ir::to_string(w));
  }
  const std::vector<int64_t>& size = op.as<ConvAttrs>().input_size;
  const ir::TensorType x{dy.dtype, {dy.dims[0], w.dims[1], size[0], size[1]}};
  check_image(op, x, w, dy);
  return {x};
}

TypeList infer_weight_grad(const ir::Op& op, Types operands, Types) {
  const ir::TensorType &x = operands[0], &dy = operands[1];
  check_attrs(op, true);
  require_rank(op, "x", x, 4);
  require_rank(op, "dy", dy, 4);
  if (dy.dtype != x.dtype || dy.dims[0] != x.dims[0]) {
    reject(op, "x {} and dy {} must have the same dtype and batch size", ir::to_string(x),
           ir::to_string(dy));
  }
  const std::vector<int64_t>& size = op.as<ConvAttrs>().input_size;
  const ir::TensorType w{x.dtype, {dy.dims[1], x.dims[1], size[0], size[1]}};
  check_image(op, x, w, dy);
  return {w};
}

template <int kPlace>
ShardingRule rule_conv(const ir::Op&, Types operands, Types results) {
  static constexpr const char* kTexts[] = {
      "n c [h] [w], o c [i] [j] -> n o [y] [x]",
      "n o [y] [x], o c [i] [j] -> n c [h] [w]",
      "n c [h] [w], n o [y] [x] -> o c [i] [j]",
  };
  ShardingRule rule = make_rule(kTexts[kPlace], operands, results);
  rule.linear = {0, 1};
  return rule;
}

// Multiplications and additions of the forward product, which each gradient has too. y and w say
// how many.
OpCost cost_of_product(const ir::TensorType& y, const ir::TensorType& w, Types operands,
                       Types results) {
  double taps = 1;  // of one element of y
  for (int d = 1; d < w.rank(); ++d) taps *= static_cast<double>(w.dim(d));
  return {.flops = 2.0 * static_cast<double>(y.elements()) * taps,
          .bytes = tensor_bytes(operands) + tensor_bytes(results),
          .matrix_product = true};
}

void gradient_conv(GradientContext& c) {
  Builder& b = c.builder();
  const ir::TensorType x = b.type(c.operand(0)), w = b.type(c.operand(1));
  ConvAttrs attrs = c.op().as<ConvAttrs>();
  if (c.needs(0)) {
    attrs.input_size = {x.dim(2), x.dim(3)};
    c.set_operand_grad(0, b.emit1(OpKind::kConvInputGrad, attrs, {c.result_grad(0), c.operand(1)}));
  }
  if (c.needs(1)) {
    attrs.input_size = {w.dim(2), w.dim(3)};
    c.set_operand_grad(1,
                       b.emit1(OpKind::kConvWeightGrad, attrs, {c.operand(0), c.result_grad(0)}));
  }
}

}  // namespace

void register_conv(Registry& registry) {
  registry.add({.kind = OpKind::kConv,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_conv,
                .rule = rule_conv<0>,
                .cost =
                    [](const ir::Op&, Types operands, Types results) {
                      return cost_of_product(results[0], operands[1], operands, results);
                    },
                .gradient = gradient_conv});
  registry.add({.kind = OpKind::kConvInputGrad,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_input_grad,
                .rule = rule_conv<1>,
                .cost = [](const ir::Op&, Types operands, Types results) {
                  return cost_of_product(operands[0], operands[1], operands, results);
                }});
  registry.add({.kind = OpKind::kConvWeightGrad,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_weight_grad,
                .rule = rule_conv<2>,
                .cost =
                    [](const ir::Op&, Types operands, Types results) {
                      return cost_of_product(operands[1], results[0], operands, results);
                    },
                .can_accumulate = true});
}

}  // namespace mw::ops
