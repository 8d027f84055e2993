// A CSV file with a header [RFC 4180]. Private to room calibrate.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace mw::calibrate {

struct CsvTable {
  struct Line {
    int number = 0;                  // of the file, from 1: where it begins
    std::vector<std::string> cells;  // as many as there are names
  };
  std::vector<std::string> names;
  std::vector<Line> lines;

  // REQUIRES: there is such a column.
  const std::string& cell(const Line& line, std::string_view name) const;
};

// A quoted cell may hold commas, line ends and doubled quotes. Throws Error where a column is
// missing or there twice, or a quote is never closed; lines of another length are findings, and
// left out.
CsvTable parse_csv(std::string_view csv, const std::string& file,
                   std::span<const std::string_view> columns, Diagnostics& diagnostics);

}  // namespace mw::calibrate
