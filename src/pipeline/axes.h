// Whose an axis of the mesh is.
#pragma once

#include <string_view>

namespace mw::pipeline {

// Of tensor parallelism: "tp", or with fewer key heads than ranks "tp_kv" and "tp_rep".
constexpr bool is_tensor_axis(std::string_view axis) {
  return axis == "tp" || axis == "tp_kv" || axis == "tp_rep";
}
// Divides the data, so that gradients are summed over it: experts ("ep") are the inner part of dp.
constexpr bool is_data_axis(std::string_view axis) {
  return axis == "dp" || axis == "ep" || axis == "cp";
}
// Divides parameters: experts' along "ep".
constexpr bool is_parameter_axis(std::string_view axis) {
  return is_tensor_axis(axis) || axis == "ep";
}

}  // namespace mw::pipeline
