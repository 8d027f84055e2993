#include "models/net_builder.h"

#include <numeric>
#include <utility>

#include "base/error.h"

namespace mw::models {

NetBuilder::NetBuilder(const std::string& name, std::vector<ir::Layer> layers) : builder_(graph_) {
  module_.name = name;
  module_.layers = std::move(layers);
  graph_.name = "microbatch";
}

void NetBuilder::enter(const std::string& layer) {
  for (size_t i = 0; i < module_.layers.size(); ++i) {
    if (module_.layers[i].name != layer) continue;
    builder_.layer = LayerId(static_cast<int64_t>(i));
    return;
  }
  MW_CHECK(false, "module '{}' has no layer '{}'", module_.name, layer);
}

void NetBuilder::leave() { builder_.layer = LayerId(); }

ValueId NetBuilder::input(const std::string& name, DType dtype, const std::vector<int64_t>& sizes,
                          ir::LogicalAxes logical) {
  const ValueId value = graph_.add_input(ir::make_type(dtype, sizes), name);
  graph_.value(value).logical = std::move(logical);
  return value;
}

ValueId NetBuilder::parameter(const std::string& name, const std::vector<int64_t>& sizes,
                              ir::LogicalAxes logical, ir::Init init, Decay decay) {
  ir::State state;
  state.name = name;
  state.type = ir::make_type(DType::kF32, sizes);
  state.logical = logical;
  state.init = init;
  state.layer = builder_.layer;
  state.decay = decay == Decay::kYes;
  const StateId id = module_.add_state(state);
  const ValueId value = graph_.add_input(state.type, name, id);
  graph_.value(value).logical = std::move(logical);
  return value;
}

void NetBuilder::set_window(ValueId attention, int64_t window) {
  ir::Op& op = graph_.op(graph_.value(attention).producer);
  std::get<ir::AttentionAttrs>(op.attrs).window = window;
}

void NetBuilder::output_loss(ValueId loss) {
  std::vector<int> dims(static_cast<size_t>(graph_.type(loss).rank()));
  std::iota(dims.begin(), dims.end(), 0);
  output(annotate(builder_.reduce(loss, ir::Reduction::kSum, dims), "loss_sum", {}));
}

void NetBuilder::output(ValueId value) { graph_.outputs.push_back(value); }

ir::Module NetBuilder::finish() {
  module_.graphs.push_back(std::move(graph_));
  ir::verify(module_.graphs.back(), &module_);
  return std::move(module_);
}

}  // namespace mw::models
