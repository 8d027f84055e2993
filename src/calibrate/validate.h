// Predicted against published: every row of a file of runs, simulated.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "calibrate/run_request.h"

namespace mw::calibrate {

struct Comparison {
  Run run;
  std::string reason;  // why it was not simulated; then nothing below holds
  // Seconds of a step; published 0: only a place is known, or nothing (Run::value 0).
  double predicted = 0, published = 0;
  double error = 0;  // predicted / published - 1
  double work = 0;   // the model's FLOPs of a step on one device
  // What the row does not say: the fastest that fits the memory; what takes the least if none does.
  std::string assumed;
  double predicted_GiB = 0;  // the fullest device's
  bool fits = true;          // in the device's memory
};

// A change of the cluster or of how it is simulated, to see what a mechanism is worth.
using Change = std::function<void(predict::Request&)>;

// In the order of the runs, on `threads` threads. `change` may be empty.
std::vector<Comparison> validate(const std::vector<Run>& runs, const Machines& machines,
                                 int threads, const Change& change = {});
// [change][run]: the same for several changes; a row is compiled once for all of them.
std::vector<std::vector<Comparison>> validate(const std::vector<Run>& runs,
                                              const Machines& machines, int threads,
                                              const std::vector<Change>& changes);

// Errors of the rows of one source, of one use ("fit", "check"), of one kind of row.
struct Summary {
  std::string name;
  int rows = 0;
  double mean = 0;   // of |error|
  double bias = 0;   // of error
  double worst = 0;  // the error that is largest in size
  // Spearman, predicted against published; none where all of either are equal.
  std::optional<double> rank_correlation;
};
// By source; rows that assume something apart, as "… (assumed)".
std::vector<Summary> summaries(const std::vector<Comparison>& comparisons);
Summary summary(const std::string& name, const std::vector<const Comparison*>& comparisons);

struct Ablation {
  std::string name;
  Change change;
};
std::vector<Ablation> ablations();

// "tp=8 pp=8 dp=1 v=3 mb=1 full"
std::string layout(const Run& run);
std::string to_text(const std::vector<Comparison>& comparisons, bool rows = true);
// What the profiles of these rows predict of runs that they were not fitted on: the error with a
// part of the runs left out, every source in turn; "" where no profile was fitted.
std::string left_out_text(const std::vector<Comparison>& comparisons, const Machines& machines);
Json to_json(const std::vector<Summary>& summaries);  // a list: source, rows, mean, bias, worst, …
// A list: the row's columns, predicted, published, error (null with a reason).
Json to_json(const std::vector<Comparison>& comparisons);

}  // namespace mw::calibrate
