#include "calibrate/runs.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/csv_table.h"
#include "calibrate/run_model.h"
#include "pipeline/schedule.h"
#include "simulate/overlap.h"

namespace mw::calibrate {
namespace {

// One row; findings name the column.
class RowReader {
 public:
  RowReader(Run& run, const std::vector<Amendment>& amendments) : run_(run), cells_(run.columns) {
    const std::string source = source_name(cell("source"));
    for (const Amendment& amendment : amendments) {
      if (amendment.source != source) continue;
      for (auto& [column, text] : cells_) {
        if (column != amendment.column || text != amendment.inferred) continue;
        text = amendment.value;
        run_.amended =
            fmt::format("{} {}: {}", amendment.column, amendment.value, amendment.reason);
      }
    }
  }

  bool empty(std::string_view name) const { return cell(name).empty(); }
  bool is(std::string_view name, std::string_view word) const { return cell(name) == word; }
  void text(std::string_view name, std::string& to) const { to = cell(name); }
  void count(std::string_view name, int64_t& to, int64_t least, bool optional = false,
             int64_t most = int64_t{1} << 32) const {
    const std::string& text = cell(name);
    if (text.empty() && optional) return;
    const std::optional<int64_t> value = parse_int64(text);
    if (value && *value >= least && *value <= most) {
      to = *value;
    } else if (value && *value > most) {
      fail(name, fmt::format("at most {}", most), text);
    } else {
      fail(name, fmt::format("an integer of at least {}", least), text);
    }
  }
  // An empty cell leaves what is there, and the row says so.
  void usual(std::string_view name, int64_t& to, int64_t least,
             int64_t most = int64_t{1} << 32) const {
    if (empty(name)) run_.usual.push_back(fmt::format("{} {}", name, to));
    count(name, to, least, true, most);
  }
  void number(std::string_view name, double& to, bool optional, double most = 1e12) const {
    const std::string& text = cell(name);
    if (text.empty() && optional) return;
    const std::optional<double> value = parse_double(text);
    if (value && (*value > most || (*value > 0 && *value < 1 / most))) {
      fail(name, fmt::format("from {:g} to {:g}", 1 / most, most), text);
    } else if (value && *value > 0) {
      to = *value;
    } else {
      fail(name, "a positive number", text);
    }
  }
  void refuse(std::string_view name, const std::string& must_be) const {
    fail(name, must_be, cell(name));
  }
  void one_of(std::string_view name, std::string& to, const std::vector<std::string>& known) const {
    const std::string& is = cell(name);
    if (std::find(known.begin(), known.end(), is) != known.end()) {
      to = is;
      return;
    }
    std::vector<std::string> words;
    for (const std::string& word : known) words.push_back(word.empty() ? "empty" : word);
    fail(name, (known.size() > 1 ? "one of " : "") + join(words, ", "), is);
  }

 private:
  const std::string& cell(std::string_view name) const {
    static const std::string kNone;
    for (const auto& [column, text] : cells_) {
      if (column == name) return text;
    }
    return kNone;
  }
  void fail(std::string_view name, const std::string& must_be, const std::string& is) const {
    run_.findings.push_back(fmt::format("{}: must be {}, is \"{}\"", name, must_be, is));
  }

  Run& run_;
  std::vector<std::pair<std::string, std::string>> cells_;
};

constexpr std::array<std::string_view, 35> kColumns = {
    "source",      "model",        "params_b",  "layers",    "hidden",     "heads", "kv_heads",
    "ffn",         "seq",          "vocab",     "moe",       "gpu",        "gpus",  "tp",
    "sp",          "cp",           "pp",        "vpp",       "ep",         "dp",    "zero",
    "micro_batch", "global_batch", "recompute", "precision", "metric",     "value", "unit",
    "nic_GBps",    "schedule",     "overlap",   "software",  "memory_GiB", "use",   "tied"};

// Those whose cells are never empty; a file may leave the others out.
constexpr std::array<std::string_view, 11> kNeeded = {"layers", "hidden", "heads", "seq",
                                                      "vocab",  "gpu",    "gpus",  "global_batch",
                                                      "metric", "value",  "unit"};

constexpr std::array<std::string_view, 5> kAmendmentColumns = {"source", "column", "inferred",
                                                               "value", "reason"};

// What a metric may be told in, and how much of the first of them that is.
struct Unit {
  const char* name;
  double factor;
};
struct Metric {
  const char* name;
  std::vector<Unit> units;
};
const std::vector<Metric>& known_metrics() {
  static const std::vector<Unit> kFlops = {{"TFLOP/s", 1}, {"GFLOP/s", 1e-3}, {"PFLOP/s", 1e3}};
  static const std::vector<Metric> kMetrics = {
      {"iteration_time", {{"s", 1}, {"ms", 1e-3}, {"min", 60}}},
      {"hw_tflops_per_gpu", kFlops},
      {"model_tflops_per_gpu", kFlops},
      {"mfu", {{"%", 1}, {"fraction", 100}}},
      {"tokens_per_s_per_gpu", {{"tok/s", 1}, {"ktok/s", 1e3}}},
      {"sequences_per_s", {{"seq/s", 1}}},
      {"place", {{"", 1}}}};
  return kMetrics;
}
std::vector<std::string> metrics() {
  std::vector<std::string> names;
  for (const Metric& metric : known_metrics()) names.emplace_back(metric.name);
  return names;
}

// What is published, in the metric's first unit; nothing where the cell is empty.
void read_value(const RowReader& row, Run& run) {
  const bool is_published = !row.empty("value");
  if (is_published || !row.empty("metric")) row.one_of("metric", run.metric, metrics());
  if (!is_published) return;
  double cell = 0;
  row.number("value", cell, false);
  for (const Metric& metric : known_metrics()) {
    if (metric.name != run.metric) continue;
    std::vector<std::string> names;
    for (const Unit& unit : metric.units) names.emplace_back(unit.name);
    std::string unit = "?";
    row.one_of("unit", unit, names);
    for (const Unit& known : metric.units) {
      if (unit == known.name) run.value = cell * known.factor;
    }
  }
  if (run.metric == "mfu" && run.value > 100) row.refuse("value", "at most the peak");
}

// Every kind, also by its names under a memory limit, or none.
std::vector<std::string> schedules() {
  std::vector<std::string> names = pipeline::published_names();
  names.emplace_back("");
  return names;
}
// A word of Overlap, of scatter/gather or of post-validation, or none.
std::vector<std::string> overlaps() {
  std::vector<std::string> names = simulate::overlap_words();
  names.insert(names.end(), {kNoScatterGather, kPostValidation, ""});
  return names;
}

// A GPT's MLPs are four times as wide as its blocks; those of mixtures are experts alone, unless
// some layers are dense.
void take_usual_ffn(const RowReader& row, Run& run) {
  const std::optional<Experts> experts = experts_of(run.moe);
  if (experts && experts->dense == 0) {
    run.ffn = experts->ffn;
  } else if (const bool known = run.layers * run.heads * run.kv_heads * run.vocab * run.seq > 0;
             known) {
    run.ffn = 4 * run.hidden;
    if (blocks_of(run).family == models::Family::kLlama) {
      run.ffn = 0;
      row.refuse("ffn", "given for a Llama's blocks, which have no usual width");
    }
  }
  if (run.ffn > 0) run.usual.push_back(fmt::format("ffn {}", run.ffn));
}

constexpr const char* kUsualUse = "use check";
constexpr std::string_view kUnknown = "unknown";

// Words of the notes that published files have in place of a cell
// (docs/validation/rows.md#how-a-rows-cells-are-read).
struct Phrase {
  std::string_view words;
  void (*take)(Run& run);
};
constexpr std::array<Phrase, 3> kPhrases = {{
    {"vpp not stated", [](Run& run) { run.vpp_unknown = true; }},
    {"VPP not published", [](Run& run) { run.vpp_unknown = true; }},
    {"untied embeddings", [](Run& run) { run.tied = false; }},
}};

// What cells say in words, or the notes for them; a cell of `tied` goes before the notes.
void read_words(const RowReader& row, Run& run) {
  run.vpp_unknown = row.is("vpp", kUnknown);
  for (const Phrase& phrase : kPhrases) {
    if (run.notes.find(phrase.words) != std::string::npos) phrase.take(run);
  }
  if (row.empty("tied")) return;
  int64_t tied = 0;
  row.count("tied", tied, 0, false, 1);
  run.tied = tied != 0;
}

void read_row(const RowReader& row, const std::vector<ModelFamily>& families, Run& run) {
  row.text("source", run.source);
  row.text("model", run.model);
  row.text("moe", run.moe);
  if (const ModelFamily* family = family_of(run.model, says_latent(run.moe), families))
    run.family = *family;
  row.text("gpu", run.gpu);
  row.one_of("recompute", run.recompute, {"none", "selective", "full", "unknown", ""});
  if (run.recompute.empty()) run.recompute = "unknown";  // an empty cell was not published
  row.text("precision", run.precision);
  row.one_of("schedule", run.schedule, schedules());
  row.one_of("overlap", run.overlap, overlaps());
  row.text("software", run.software);
  row.text("notes", run.notes);
  read_words(row, run);
  if (row.empty("use")) {
    run.use = "check";
    run.usual.emplace_back(kUsualUse);
  } else {
    row.one_of("use", run.use, {"fit", "check"});
  }
  // As in a model's config.json (models/config.cc).
  constexpr int64_t kMostLayers = 1 << 14, kMostHeads = 1 << 14, kMostWidth = 1 << 20,
                    kMostWords = 1 << 26;
  row.count("layers", run.layers, 1, false, kMostLayers);
  row.count("hidden", run.hidden, 1, false, kMostWidth);
  row.count("heads", run.heads, 1, false, kMostHeads);
  run.kv_heads = run.heads;
  row.usual("kv_heads", run.kv_heads, 1, kMostHeads);
  row.count("ffn", run.ffn, 1, true, 4 * kMostWidth);
  row.count("seq", run.seq, 1, false, kMostWords);
  row.count("vocab", run.vocab, 1, false, kMostWords);
  constexpr int64_t kMostWays = 1 << 20;  // as a plan's ranks; three of them multiply to an int64_t
  row.count("gpus", run.gpus, 1, false, kMostWays);
  row.usual("cp", run.cp, 1, kMostWays);
  run.tp = run.pp = run.dp = 0;
  row.count("tp", run.tp, 1, true, kMostWays);
  row.count("pp", run.pp, 1, true, kMostWays);
  if (!row.is("vpp", kUnknown)) row.usual("vpp", run.vpp, 1, kMostWays);
  row.usual("ep", run.ep, 1, kMostWays);
  row.count("dp", run.dp, 1, true, kMostWays);
  row.usual("zero", run.zero, 0);
  row.count("micro_batch", run.micro_batch, 1, true, kMostWays);
  row.count("global_batch", run.global_batch, 1, false, kMostWays);
  int64_t sp = 0;
  row.usual("sp", sp, 0, 1);
  run.sp = sp != 0;
  read_value(row, run);
  row.number("params_b", run.params_b, true);
  constexpr double kMostGBps = 1e9;  // as of a cluster file's links
  row.number("nic_GBps", run.nic_GBps, true, kMostGBps);
  row.number("memory_GiB", run.memory_GiB, true);
  if (row.empty("ffn") && run.hidden > 0) take_usual_ffn(row, run);
}

// A column that nothing is read of, but nearly the name of one that is not there.
void add_slips(const CsvTable& table, const std::string& file, Diagnostics& diagnostics) {
  const auto is_in = [](const auto& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<std::string> missing;
  for (const std::string_view column : kColumns) {
    if (!is_in(table.names, std::string(column))) missing.emplace_back(column);
  }
  for (const std::string& name : table.names) {
    if (is_in(kColumns, name)) continue;
    if (const std::string hint = did_you_mean(name, missing); !hint.empty())
      diagnostics.add("{}:1: runs have no column '{}'{}", file, name, hint);
  }
}

// A cell that the line does not have is empty.
Run row_of(const CsvTable& table, const CsvTable::Line& line) {
  Run run;
  run.line = line.number;
  for (size_t c = 0; c < table.names.size(); ++c)
    run.columns.emplace_back(table.names[c], c < line.cells.size() ? line.cells[c] : "");
  return run;
}

}  // namespace

std::vector<Amendment> parse_amendments(std::string_view csv, const std::string& file) {
  Diagnostics diagnostics;
  const CsvTable table = parse_csv(csv, file, kAmendmentColumns, diagnostics);
  std::vector<Amendment> amendments;
  for (const CsvTable::Line& line : table.lines) {
    const auto cell = [&](std::string_view name) { return table.cell(line, name); };
    Amendment made{cell("source"), cell("column"), cell("inferred"), cell("value"), cell("reason")};
    if (made.column != "notes" &&  // which a file may leave out
        std::find(kColumns.begin(), kColumns.end(), made.column) == kColumns.end())
      diagnostics.add("{}:{}: column: runs have no column '{}'", file, line.number, made.column);
    if (made.reason.empty()) diagnostics.add("{}:{}: reason: must be given", file, line.number);
    amendments.push_back(std::move(made));
  }
  diagnostics.throw_if_any();
  return amendments;
}

std::vector<Run> parse_rows(std::string_view csv, const std::string& file, const RunFacts& facts) {
  Diagnostics diagnostics;
  std::vector<CsvTable::Line> odd;
  const CsvTable table = parse_csv(csv, file, kNeeded, diagnostics, &odd);
  add_slips(table, file, diagnostics);
  diagnostics.throw_if_any();
  std::vector<Run> runs;
  for (const CsvTable::Line& line : table.lines) {
    Run run = row_of(table, line);
    read_row(RowReader(run, facts.amendments), facts.families, run);
    runs.push_back(std::move(run));
  }
  for (const CsvTable::Line& line : odd) {
    Run run = row_of(table, line);
    RowReader(run, facts.amendments).text("source", run.source);
    run.is_odd = true;
    run.findings.push_back(odd_length(table, line));
    const auto later = std::find_if(runs.begin(), runs.end(),
                                    [&](const Run& other) { return other.line > run.line; });
    runs.insert(later, std::move(run));
  }
  if (runs.empty() && diagnostics.empty()) diagnostics.add("{}: has no runs", file);
  diagnostics.throw_if_any();
  return runs;
}

std::vector<Run> parse_runs(std::string_view csv, const std::string& file, const RunFacts& facts) {
  std::vector<Run> runs = parse_rows(csv, file, facts);
  Diagnostics diagnostics;
  for (const Run& run : runs) {
    for (const std::string& finding : run.findings)
      diagnostics.add("{}:{}: {}", file, run.line, finding);
    if (!run.findings.empty()) continue;
    if (run.value == 0)
      diagnostics.add("{}:{}: value: must be a positive number, is \"\"", file, run.line);
    if (std::find(run.usual.begin(), run.usual.end(), kUsualUse) != run.usual.end())
      diagnostics.add("{}:{}: use: must be one of fit, check, is \"\"", file, run.line);
  }
  diagnostics.throw_if_any();
  return runs;
}

std::vector<Run> read_rows(FileSystem& fs, const std::string& file, const RunFacts& facts) {
  return parse_rows(fs.read_file(file), file, facts);
}

std::vector<Run> read_runs(FileSystem& fs, const std::string& file, const RunFacts& facts) {
  return parse_runs(fs.read_file(file), file, facts);
}

std::string source_name(const std::string& source) {
  const size_t end = source.find_first_of(";,(");
  const std::string_view name = trim(std::string_view(source).substr(0, end));
  return name.empty() ? "(no source)" : std::string(name);
}

std::string ending_of(const std::string& name, size_t letters) {
  if (name.size() <= letters) return name;
  return "..." + name.substr(name.size() - letters + 3);
}

}  // namespace mw::calibrate
