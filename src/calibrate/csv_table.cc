#include "calibrate/csv_table.h"

#include <algorithm>

#include "base/text.h"

namespace mw::calibrate {
namespace {

// Reads line after line; one with line ends in quoted cells is several of the file.
class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& file)
      : text_(without_bom(text)), file_(file) {}

  bool at_end() const { return at_ == text_.size(); }

  CsvTable::Line next() {
    CsvTable::Line line{line_, {}};
    do {
      line.cells.push_back(cell());
    } while (take(','));
    take('\r');
    take('\n');
    ++line_;
    return line;
  }

 private:
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool at_cell_end() const {
    return at_end() || text_[at_] == ',' || text_[at_] == '\n' ||
           text_.substr(at_).starts_with("\r\n");
  }

  std::string cell() {
    if (take('"')) return quoted_cell();
    const size_t begin = at_;
    while (!at_cell_end()) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  // Behind its opening quote.
  std::string quoted_cell() {
    const int begin = line_;
    std::string made;
    while (!at_end()) {
      const char c = text_[at_++];
      if (c == '"' && !take('"')) {
        if (at_cell_end()) return made;
        break;
      }
      if (c == '\n') ++line_;
      made += c;
    }
    throw_error(
        "{}:{}: the cell \"{} has no closing quote before a ',' or the end of a line; double the "
        "quotes inside of it",
        file_, begin, clipped(made.substr(0, made.find_first_of("\r\n"))));
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1;
};

bool is_blank(const CsvTable::Line& line) {
  return line.cells.size() == 1 && trim(line.cells[0]).empty();
}

}  // namespace

const std::string& CsvTable::cell(const Line& line, std::string_view name) const {
  const auto it = std::find(names.begin(), names.end(), name);
  MW_CHECK(it != names.end(), "column {}", name);
  return line.cells[static_cast<size_t>(it - names.begin())];
}

CsvTable parse_csv(std::string_view csv, const std::string& file,
                   std::span<const std::string_view> columns, Diagnostics& diagnostics,
                   std::vector<CsvTable::Line>* odd) {
  CsvTable table;
  CsvReader reader(csv, file);
  if (reader.at_end()) {
    diagnostics.add("{}: is empty; it must begin with the columns' names, {}", file,
                    join(columns, ", "));
    return table;
  }
  table.names = reader.next().cells;
  for (const std::string_view column : columns) {
    if (std::find(table.names.begin(), table.names.end(), column) == table.names.end())
      diagnostics.add("{}:1: there is no column '{}'{}", file, column,
                      did_you_mean(column, table.names));
  }
  for (auto name = table.names.begin(); name != table.names.end(); ++name) {
    const auto count = std::count(name, table.names.end(), *name);
    const bool is_first = std::find(table.names.begin(), name, *name) == name;
    if (is_first && count > 1 && !name->empty())
      diagnostics.add("{}:1: there are {} columns '{}'; leave one", file, count, *name);
  }
  diagnostics.throw_if_any();
  while (!reader.at_end()) {
    CsvTable::Line line = reader.next();
    if (is_blank(line)) continue;
    if (line.cells.size() == table.names.size()) {
      table.lines.push_back(std::move(line));
    } else if (odd != nullptr) {
      odd->push_back(std::move(line));
    } else {
      diagnostics.add("{}:{}: {}", file, line.number, odd_length(table, line));
    }
  }
  return table;
}

std::string odd_length(const CsvTable& table, const CsvTable::Line& line) {
  return fmt::format("has {} cells, must have the header's {}", line.cells.size(),
                     table.names.size());
}

}  // namespace mw::calibrate
