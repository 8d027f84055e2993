// The constants of a profile: what each is, and where a cluster has it.
#pragma once

#include <span>
#include <string_view>

#include "cluster/hardware.h"

namespace mw::cluster {

// A constant that a profile may give. All are positive.
struct ConstantInfo {
  std::string_view name;  // with its unit, as in host_op_us; without one it is a ratio
  double least, most;     // beyond which it means nothing
  std::string_view what;
  // What tells something of it: a table of collectives, one of kernels, runs of whatever stack.
  bool of_collectives = false, of_kernels = false, of_runs = false;
};
std::span<const ConstantInfo> constant_infos();

// REQUIRES: a name of constant_infos(). The bus fractions are those of the first link that is no
// network, and of the first that is; setting changes all such links.
double constant(const Cluster& cluster, std::string_view name);
void set_constant(Cluster& cluster, std::string_view name, double value);

}  // namespace mw::cluster
