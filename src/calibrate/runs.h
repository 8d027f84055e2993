// Published training runs, one a row of a CSV file: everything that it takes to simulate them, and
// what was measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "calibrate/families.h"

namespace mw::calibrate {

// Counts are 0 and texts empty where the source does not say. pp and dp are both 0 where it
// compares schedules at the best depth of each: then any that devices and layers allow. tp is 0
// where it compares them at the best layout: then any inside a node, too.
struct Run {
  std::vector<std::pair<std::string, std::string>> columns;  // the row as it stands
  int line = 0;                                              // of the file

  std::string source, model, moe, gpu, recompute, precision, metric, schedule, overlap, software,
      notes, use;
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, seq = 0, vocab = 0;
  int64_t gpus = 0, tp = 1, cp = 1, pp = 1, vpp = 1, ep = 1, dp = 1, zero = 0;
  int64_t micro_batch = 0, global_batch = 0;
  bool sp = false;
  bool vpp_unknown = false;  // vpp, or any other number of chunks
  std::optional<bool> tied;  // whether the output's weights are the embedding's
  // s, TFLOP/s, %, tokens/s, sequences/s or a place, whatever the row's unit; 0: none is published
  double value = 0;
  double params_b = 0, nic_GBps = 0, memory_GiB = 0;
  // That of its model's name, or whose latent attention it has (family_of).
  std::optional<ModelFamily> family;
  // "zero 0": what is taken where sp, cp, vpp, ep, zero, kv_heads, ffn or use are empty.
  std::vector<std::string> usual;
  std::string amended;                // what is not taken from the row, and why; see Amendment
  std::vector<std::string> findings;  // of its cells; what they concern is as if not said
  bool is_odd = false;                // too few or too many cells: none is read, but its source

  bool fits() const { return use == "fit"; }  // a profile may be fitted on it
};

// What the column `overlap` may say besides simulate::overlap_words().
inline constexpr const char* kNoScatterGather = "no-scatter-gather";
inline constexpr const char* kPostValidation = "post-validation";

// A cell that a file of runs infers where its source does not say it, and that the source's own
// times refute: in all rows of that source (source_name) it is read as `value` in place of
// `inferred`.
struct Amendment {
  std::string source, column, inferred, value, reason;
};
// A CSV with these columns. Throws Error with all findings.
std::vector<Amendment> parse_amendments(std::string_view csv, const std::string& file);

// What is known beside a file of runs.
struct RunFacts {
  std::vector<Amendment> amendments;
  std::vector<ModelFamily> families;
};

// What is wrong with a row stays with it, in Run::findings: cells that are no numbers or unknown
// words, too many or too few of them. Throws Error with what is wrong with the file: columns that
// are missing, quotes, no rows. Run::columns stay as they stand in the file.
std::vector<Run> parse_rows(std::string_view csv, const std::string& file,
                            const RunFacts& facts = {});
std::vector<Run> read_rows(FileSystem& fs, const std::string& file, const RunFacts& facts = {});
// Rows to fit on: throws Error with all rows' findings, too, by line, and where nothing is
// published or a row does not say its use.
std::vector<Run> parse_runs(std::string_view csv, const std::string& file,
                            const RunFacts& facts = {});
std::vector<Run> read_runs(FileSystem& fs, const std::string& file, const RunFacts& facts = {});

// Up to the first ',', ';' or bracket: what rows of one table have in common; "(no source)" where
// that is nothing.
std::string source_name(const std::string& source);
// Its last letters behind dots, where it has more: what tells sources apart stands at the end.
std::string ending_of(const std::string& name, size_t letters);

}  // namespace mw::calibrate
