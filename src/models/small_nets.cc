#include "models/small_nets.h"

#include <cmath>

#include <fmt/core.h>

#include "models/net_builder.h"

namespace mw::models {
namespace {

using Decay = NetBuilder::Decay;
const ir::LogicalAxes kHidden = {"batch", "embed"};

// [He et al. 2015] for the ReLUs: standard deviation sqrt(2 / inputs).
ValueId weight(NetBuilder& net, const std::string& name, const std::vector<int64_t>& sizes,
               const ir::LogicalAxes& logical, int64_t inputs) {
  return net.parameter(name, sizes, logical,
                       {ir::Init::Kind::kNormal, std::sqrt(2.0 / static_cast<double>(inputs))},
                       Decay::kYes);
}
ValueId bias(NetBuilder& net, const std::string& name, int64_t size, const std::string& logical) {
  return net.parameter(name, {size}, {logical}, {ir::Init::Kind::kZeros, 0}, Decay::kNo);
}

ValueId targets(NetBuilder& net, Loss loss, int64_t batch, int64_t outputs) {
  return loss == Loss::kRegression
             ? net.input("targets", DType::kF32, {batch, outputs}, {"batch", ""})
             : net.input("targets", DType::kI32, {batch, 1}, {"batch", ""});
}

void write_loss(NetBuilder& net, Loss loss, ValueId y_BO, ValueId targets) {
  ops::Builder& ops = net.ops();
  if (loss == Loss::kRegression) {
    const ValueId error_BO = ops.sub(y_BO, targets);
    net.output_loss(
        net.annotate(ops.scale(ops.mul(error_BO, error_BO), 0.5), "loss", {"batch", ""}));
  } else {
    const ir::TensorType type = ops.type(y_BO);
    const ValueId logits_B1O = ops.reshape(y_BO, {type.dim(0), 1, type.dim(1)});
    net.output_loss(net.annotate(ops.cross_entropy(logits_B1O, targets), "loss", {"batch", ""}));
  }
  net.output(y_BO);
}

}  // namespace

ir::Module build_mlp(const MlpSpec& spec) {
  std::vector<ir::Layer> layers = {{"in", true}};
  for (int64_t i = 0; i < spec.blocks; ++i) layers.push_back({fmt::format("block.{}", i), true});
  layers.push_back({"out", true});
  NetBuilder net("mlp", layers);
  ops::Builder& ops = net.ops();
  const ValueId x_BI = net.input("x", DType::kF32, {spec.batch, spec.inputs}, {"batch", ""});
  const ValueId target = targets(net, spec.loss, spec.batch, spec.outputs);
  net.input("loss_scale", DType::kF32, {});

  net.enter("in");
  const ValueId w_DI =
      weight(net, "in.weight", {spec.hidden, spec.inputs}, {"embed", ""}, spec.inputs);
  const ValueId first_BD = net.annotate(ops.dot(x_BI, w_DI, "bi,di->bd"), "in.out", kHidden);
  ValueId h_BD = first_BD;
  for (int64_t i = 0; i < spec.blocks; ++i) {
    const std::string name = fmt::format("block.{}", i);
    net.enter(name);
    const ValueId up_FD =
        weight(net, name + ".up.weight", {spec.ffn, spec.hidden}, {"ffn", "embed"}, spec.hidden);
    const ValueId b_F = bias(net, name + ".up.bias", spec.ffn, "ffn");
    const ValueId down_DF =
        weight(net, name + ".down.weight", {spec.hidden, spec.ffn}, {"embed", "ffn"}, spec.ffn);
    const ValueId u_BF =
        net.annotate(ops.relu(ops.bias_add(ops.dot(h_BD, up_FD, "bd,fd->bf"), b_F)),
                     name + ".hidden", {"batch", "ffn"});
    h_BD = net.annotate(ops.dot(u_BF, down_DF, "bf,df->bd"), name + ".out", kHidden);
  }
  net.enter("out");
  const ValueId sum_BD = net.annotate(ops.add(h_BD, first_BD), "out.skip", kHidden);
  const ValueId w_OD =
      weight(net, "out.weight", {spec.outputs, spec.hidden}, {"", "embed"}, spec.hidden);
  write_loss(net, spec.loss,
             net.annotate(ops.dot(sum_BD, w_OD, "bd,od->bo"), "out.y", {"batch", ""}), target);
  return net.finish();
}

ir::Module build_two_tower(const TwoTowerSpec& spec) {
  NetBuilder net("two_tower", {{"left", true}, {"right", true}, {"join", true}});
  ops::Builder& ops = net.ops();
  const std::vector<int64_t> sizes = {spec.batch, spec.inputs};
  const ValueId left_BI = net.input("left", DType::kF32, sizes, {"batch", ""});
  const ValueId right_BI = net.input("right", DType::kF32, sizes, {"batch", ""});
  const ValueId target = targets(net, spec.loss, spec.batch, spec.outputs);
  net.input("loss_scale", DType::kF32, {});

  net.enter("left");
  const ValueId shared_FI =
      weight(net, "shared.weight", {spec.hidden, spec.inputs}, {"ffn", ""}, spec.inputs);
  const auto tower = [&](const std::string& name, ValueId x_BI) {
    net.enter(name);
    const ValueId u_BF = net.annotate(ops.relu(ops.dot(x_BI, shared_FI, "bi,fi->bf")),
                                      name + ".hidden", {"batch", "ffn"});
    const ValueId w_DF =
        weight(net, name + ".weight", {spec.hidden, spec.hidden}, {"embed", "ffn"}, spec.hidden);
    return net.annotate(ops.dot(u_BF, w_DF, "bf,df->bd"), name + ".out", kHidden);
  };
  const ValueId l_BD = tower("left", left_BI);
  const ValueId r_BD = tower("right", right_BI);
  net.enter("join");
  const ValueId joined_BD = net.annotate(ops.mul(l_BD, r_BD), "join.product", kHidden);
  const ValueId w_OD =
      weight(net, "join.weight", {spec.outputs, spec.hidden}, {"", "embed"}, spec.hidden);
  write_loss(net, spec.loss,
             net.annotate(ops.dot(joined_BD, w_OD, "bd,od->bo"), "join.y", {"batch", ""}), target);
  return net.finish();
}

ir::Module build_conv_net(const ConvNetSpec& spec) {
  std::vector<ir::Layer> layers;
  for (int64_t i = 0; i < spec.convolutions; ++i)
    layers.push_back({fmt::format("conv.{}", i), true});
  layers.push_back({"head", true});
  NetBuilder net("conv_net", layers);
  ops::Builder& ops = net.ops();
  ValueId x_BCHW = net.input("x", DType::kF32, {spec.batch, spec.channels, spec.size, spec.size},
                             {"batch", "", "height", "width"});
  const ValueId target = targets(net, spec.loss, spec.batch, spec.outputs);
  net.input("loss_scale", DType::kF32, {});

  int64_t channels = spec.channels;
  int64_t width = spec.width;
  for (int64_t i = 0; i < spec.convolutions; ++i) {
    const std::string name = fmt::format("conv.{}", i);
    net.enter(name);
    const ValueId w_OIHW =
        weight(net, name + ".weight", {width, channels, 3, 3}, {"", "", "", ""}, 9 * channels);
    x_BCHW = net.annotate(ops.relu(ops.conv(x_BCHW, w_OIHW, {2, 2}, {1, 1})), name + ".out",
                          {"batch", "", "height", "width"});
    channels = width;
    width *= 2;
  }
  net.enter("head");
  const ir::TensorType type = ops.type(x_BCHW);
  const ValueId mean_BC =
      net.annotate(ops.scale(ops.reduce(x_BCHW, ir::Reduction::kSum, {2, 3}),
                             1.0 / static_cast<double>(type.dim(2) * type.dim(3))),
                   "head.mean", {"batch", ""});
  const ValueId w_OC = weight(net, "head.weight", {spec.outputs, channels}, {"", ""}, channels);
  write_loss(net, spec.loss,
             net.annotate(ops.dot(mean_BC, w_OC, "bc,oc->bo"), "head.y", {"batch", ""}), target);
  return net.finish();
}

}  // namespace mw::models
