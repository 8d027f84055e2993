// Measured collectives, one a row of a CSV file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace mw::calibrate {

// An all-reduce of so many bytes a rank.
struct CollectiveRow {
  int64_t nodes = 1, ranks = 1;  // of all nodes
  Bytes bytes;
  double time_us = 0;
};
// A CSV file with the columns device, collective, nodes, ranks, bytes, time_us: the rows of
// all_reduce on the device, or on what its name begins with ("A100-SXM" is any A100 with that
// connector); rows of other collectives and devices are checked and left out. Throws Error with
// all findings.
std::vector<CollectiveRow> parse_collectives(std::string_view csv, const std::string& file,
                                             const std::string& device);

}  // namespace mw::calibrate
