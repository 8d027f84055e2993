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
// missing or there twice, or a quote is never closed; lines of another length are left out: they
// go to `odd`, and without it are findings.
CsvTable parse_csv(std::string_view csv, const std::string& file,
                   std::span<const std::string_view> columns, Diagnostics& diagnostics,
                   std::vector<CsvTable::Line>* odd = nullptr);
// "has 2 cells, must have the header's 35".
std::string odd_length(const CsvTable& table, const CsvTable::Line& line);

}  // namespace mw::calibrate
