// NetBuilder: writes a Module with one graph, "microbatch": parameters as states of the layer that
// first uses them, ops with the tag of the layer that is being written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ops/builder.h"

namespace mw::models {

class NetBuilder {
 public:
  NetBuilder(const std::string& name, std::vector<ir::Layer> layers);
  NetBuilder(const NetBuilder&) = delete;
  NetBuilder& operator=(const NetBuilder&) = delete;

  // Ops from here on belong to this layer. REQUIRES: the module has it.
  void enter(const std::string& layer);
  // Ops from here on belong to no layer: they are cloned into every stage that uses them.
  void leave();

  ValueId input(const std::string& name, DType dtype, const std::vector<int64_t>& sizes,
                ir::LogicalAxes logical = {});

  enum class Decay : bool { kNo, kYes };
  // A weight of the current layer, f32.
  ValueId parameter(const std::string& name, const std::vector<int64_t>& sizes,
                    ir::LogicalAxes logical, ir::Init init, Decay decay);

  ops::Builder& ops() { return builder_; }
  ValueId annotate(ValueId value, const std::string& name, ir::LogicalAxes logical) {
    return builder_.annotate(value, name, std::move(logical));
  }
  // The attention that made the value attends to so many keys. REQUIRES: an attention's result.
  void set_window(ValueId attention, int64_t window);
  // "loss_sum", the sum of all elements of loss: what is differentiated, and a graph output.
  void output_loss(ValueId loss);
  // A named value that is read after the microbatch.
  void output(ValueId value);

  // The module is whole; verifies it.
  ir::Module finish();

 private:
  ir::Module module_;
  ir::Graph graph_;
  ops::Builder builder_;
};

}  // namespace mw::models
