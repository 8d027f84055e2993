#include "calibrate/kernels.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/csv_table.h"

namespace mw::calibrate {
namespace {

constexpr std::array<std::string_view, 6> kColumns = {"device", "collective", "nodes",
                                                      "ranks",  "bytes",      "time_us"};

// Beyond these nothing was measured.
constexpr int64_t kMostRanks = 1 << 20, kMostBytes = int64_t{1} << 50;
constexpr double kMostMicroseconds = 1e12;

}  // namespace

std::vector<CollectiveRow> parse_collectives(std::string_view csv, const std::string& file,
                                             const std::string& device) {
  static const std::vector<std::string> kCollectives = {
      "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"};
  Diagnostics diagnostics;
  const CsvTable table = parse_csv(csv, file, kColumns, diagnostics);
  std::vector<CollectiveRow> rows;
  for (const CsvTable::Line& line : table.lines) {
    const auto fail = [&](std::string_view name, const std::string& must_be) {
      diagnostics.add("{}:{}: {}: must be {}, is \"{}\"", file, line.number, name, must_be,
                      table.cell(line, name));
    };
    const auto count = [&](std::string_view name, int64_t least, int64_t most) {
      const std::optional<int64_t> value = parse_int64(table.cell(line, name));
      if (value && *value >= least && *value <= most) return *value;
      fail(name, value && *value > most ? fmt::format("at most {}", most)
                                        : fmt::format("an integer of at least {}", least));
      return least;
    };
    const std::string& collective = table.cell(line, "collective");
    if (std::find(kCollectives.begin(), kCollectives.end(), collective) == kCollectives.end())
      fail("collective", "one of " + join(kCollectives, ", "));
    if (table.cell(line, "device").empty()) fail("device", "that of a cluster, or how it begins");
    CollectiveRow row{count("nodes", 1, kMostRanks), count("ranks", 2, kMostRanks),
                      Bytes(count("bytes", 1, kMostBytes)), 0};
    if (row.ranks % row.nodes != 0)
      fail("ranks", fmt::format("a multiple of the {} nodes", row.nodes));
    const std::optional<double> time = parse_double(table.cell(line, "time_us"));
    if (time && *time >= 1 / kMostMicroseconds && *time <= kMostMicroseconds) {
      row.time_us = *time;
    } else {
      fail("time_us", time && *time > 0 ? fmt::format("from {:g} to {:g}", 1 / kMostMicroseconds,
                                                      kMostMicroseconds)
                                        : "a positive number");
    }
    if (starts_with(device, table.cell(line, "device")) && collective == "all_reduce")
      rows.push_back(row);
  }
  if (table.lines.empty() && diagnostics.empty()) diagnostics.add("{}: has no rows", file);
  diagnostics.throw_if_any();
  return rows;
}

}  // namespace mw::calibrate
