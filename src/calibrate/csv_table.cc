#include "calibrate/csv_table.h"

#include <algorithm>

#include "base/text.h"

namespace mw::calibrate {

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  return cells;
}

const std::string& CsvTable::cell(const Line& line, std::string_view name) const {
  const auto it = std::find(names.begin(), names.end(), name);
  MW_CHECK(it != names.end(), "column {}", name);
  return line.cells[static_cast<size_t>(it - names.begin())];
}

CsvTable parse_csv(std::string_view csv, const std::string& file,
                   std::span<const std::string_view> columns, Diagnostics& diagnostics) {
  CsvTable table;
  const std::vector<std::string_view> lines = split_lines(csv);
  if (!lines.empty()) table.names = csv_cells(lines[0]);
  for (const std::string_view column : columns) {
    if (std::find(table.names.begin(), table.names.end(), column) == table.names.end())
      diagnostics.add("{}:1: there is no column '{}'{}", file, column,
                      did_you_mean(column, table.names));
  }
  diagnostics.throw_if_any();
  for (size_t l = 1; l < lines.size(); ++l) {
    if (trim(lines[l]).empty()) continue;
    CsvTable::Line line{static_cast<int>(l) + 1, csv_cells(lines[l])};
    if (line.cells.size() == table.names.size()) {
      table.lines.push_back(std::move(line));
    } else {
      diagnostics.add("{}:{}: has {} cells, must have the header's {}", file, line.number,
                      line.cells.size(), table.names.size());
    }
  }
  return table;
}

}  // namespace mw::calibrate
