// The section [measured] of cluster files and profiles: what the runs behind their constants cover.
//
//   [measured]
//   hidden = [1024, 8192]             # least, most
//   precision = ["bf16"]
#pragma once

#include "base/json_reader.h"
#include "cluster/hardware.h"

namespace mw::cluster {

// Adds to the stack's ranges and precisions; a range with no least and most is a finding.
void read_measured(JsonReader reader, Stack& stack);
// The section's lines with its head, or "" where nothing is measured.
std::string measured_toml(const Stack& stack);

}  // namespace mw::cluster
