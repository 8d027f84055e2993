#include "calibrate/runs.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"

namespace mw::calibrate {
namespace {

// One row; findings name line and column.
class RowReader {
 public:
  RowReader(Run& run, const std::string& file, Diagnostics& diagnostics)
      : run_(run), file_(file), diagnostics_(diagnostics) {}

  void text(std::string_view name, std::string& to) const { to = cell(name); }
  void count(std::string_view name, int64_t& to, int64_t least, bool optional = false) const {
    const std::string& text = cell(name);
    if (text.empty() && optional) return;
    const std::optional<int64_t> value = parse_int64(text);
    if (value && *value >= least) {
      to = *value;
    } else {
      fail(name, fmt::format("an integer of at least {}", least), text);
    }
  }
  void number(std::string_view name, double& to, bool optional) const {
    const std::string& text = cell(name);
    if (text.empty() && optional) return;
    const std::optional<double> value = parse_double(text);
    if (value && *value > 0) {
      to = *value;
    } else {
      fail(name, "a positive number", text);
    }
  }
  void one_of(std::string_view name, std::string& to, const std::vector<std::string>& known) const {
    to = cell(name);
    if (std::find(known.begin(), known.end(), to) == known.end())
      fail(name, "one of " + join(known, ", "), to);
  }

 private:
  const std::string& cell(std::string_view name) const {
    static const std::string kNone;
    for (const auto& [column, text] : run_.columns) {
      if (column == name) return text;
    }
    return kNone;
  }
  void fail(std::string_view name, const std::string& must_be, const std::string& is) const {
    diagnostics_.add("{}:{}: {}: must be {}, is \"{}\"", file_, run_.line, name, must_be, is);
  }

  Run& run_;
  const std::string& file_;
  Diagnostics& diagnostics_;
};

constexpr std::array<std::string_view, 34> kColumns = {
    "source",      "model",        "params_b",  "layers",    "hidden",     "heads", "kv_heads",
    "ffn",         "seq",          "vocab",     "moe",       "gpu",        "gpus",  "tp",
    "sp",          "cp",           "pp",        "vpp",       "ep",         "dp",    "zero",
    "micro_batch", "global_batch", "recompute", "precision", "metric",     "value", "unit",
    "nic_GBps",    "schedule",     "overlap",   "software",  "memory_GiB", "use"};

void read_row(const RowReader& row, Run& run) {
  row.text("source", run.source);
  row.text("model", run.model);
  row.text("moe", run.moe);
  row.text("gpu", run.gpu);
  row.one_of("recompute", run.recompute, {"none", "selective", "full", "unknown"});
  row.text("precision", run.precision);
  row.one_of("metric", run.metric,
             {"iteration_time", "hw_tflops_per_gpu", "model_tflops_per_gpu", "mfu",
              "tokens_per_s_per_gpu", "sequences_per_s", "place"});
  row.text("schedule", run.schedule);
  row.text("overlap", run.overlap);
  row.text("software", run.software);
  row.text("notes", run.notes);
  row.one_of("use", run.use, {"fit", "check"});
  row.count("layers", run.layers, 1);
  row.count("hidden", run.hidden, 1);
  row.count("heads", run.heads, 1);
  row.count("kv_heads", run.kv_heads, 1);
  row.count("ffn", run.ffn, 1);
  row.count("seq", run.seq, 1);
  row.count("vocab", run.vocab, 1);
  row.count("gpus", run.gpus, 1);
  row.count("tp", run.tp, 1);
  row.count("cp", run.cp, 1);
  run.pp = run.dp = 0;
  row.count("pp", run.pp, 1, true);
  row.count("vpp", run.vpp, 1);
  row.count("ep", run.ep, 1);
  row.count("dp", run.dp, 1, true);
  row.count("zero", run.zero, 0);
  row.count("micro_batch", run.micro_batch, 1, true);
  row.count("global_batch", run.global_batch, 1);
  int64_t sp = 0;
  row.count("sp", sp, 0);
  run.sp = sp != 0;
  row.number("value", run.value, false);
  row.number("nic_GBps", run.nic_GBps, true);
  row.number("memory_GiB", run.memory_GiB, true);
}

}  // namespace

double block_parameters(const Run& run) {
  const auto hidden = static_cast<double>(run.hidden);
  return static_cast<double>(run.layers) * hidden * (4 * hidden + 2 * static_cast<double>(run.ffn));
}

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

std::vector<Run> parse_runs(std::string_view csv, const std::string& file) {
  Diagnostics diagnostics;
  const std::vector<std::string_view> lines = split_lines(csv);
  const std::vector<std::string> names =
      lines.empty() ? std::vector<std::string>() : csv_cells(lines[0]);
  for (const std::string_view column : kColumns) {
    if (std::find(names.begin(), names.end(), column) == names.end())
      diagnostics.add("{}:1: there is no column '{}'{}", file, column, did_you_mean(column, names));
  }
  diagnostics.throw_if_any();
  std::vector<Run> runs;
  for (size_t l = 1; l < lines.size(); ++l) {
    if (trim(lines[l]).empty()) continue;
    const std::vector<std::string> cells = csv_cells(lines[l]);
    Run run;
    run.line = static_cast<int>(l) + 1;
    if (cells.size() != names.size()) {
      diagnostics.add("{}:{}: has {} cells, must have the header's {}", file, run.line,
                      cells.size(), names.size());
      continue;
    }
    for (size_t c = 0; c < cells.size(); ++c) run.columns.emplace_back(names[c], cells[c]);
    read_row(RowReader(run, file, diagnostics), run);
    runs.push_back(std::move(run));
  }
  diagnostics.throw_if_any();
  return runs;
}

std::vector<Run> read_runs(FileSystem& fs, const std::string& file) {
  return parse_runs(fs.read_file(file), file);
}

std::string source_name(const std::string& source) {
  const size_t end = source.find_first_of(";,(");
  return std::string(trim(std::string_view(source).substr(0, end)));
}

}  // namespace mw::calibrate
