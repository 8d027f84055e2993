// What a fit is made of: files of runs and of kernels, the profile that it begins with, and which
// constants are fitted.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "calibrate/kernels.h"
#include "calibrate/run_request.h"

namespace mw::calibrate {

struct FitRequest {
  std::vector<std::string> runs;  // CSV files of runs
  std::string kernels;            // one of collectives or of kernels
  // The profile to begin with: its name or file, or the software of the rows marked fit; empty:
  // that of those rows, or with a cluster its figures.
  std::string profile;
  std::string cluster;                 // its name or file, whose device's rows are fitted
  std::vector<std::string> constants;  // empty: those that the profile fits, or the usual ones
  RunFacts facts;
  // Where clusters and profiles are looked for by name, and whose all are known.
  std::vector<std::string> cluster_folders;
  std::string machines;
};

struct FitInput {
  std::vector<Run> runs;  // of all files
  Machines machines;
  cluster::Profile profile;  // to begin with
  MeasuredKernels measured;
  std::vector<std::string> constants;
};
// Adds what is wrong to the findings, and is then of no use.
FitInput read_fit_input(FileSystem& fs, const FitRequest& asked, Diagnostics& diagnostics);

struct FitRows {
  std::vector<const Run*> fitted;  // of the input
  std::vector<Run> larger;         // to be predicted
};
// The profile's rows that are marked fit; those of models above so many billion parameters, if that
// is not 0, are left out.
FitRows fit_rows(const FitInput& input, double most_billions);

}  // namespace mw::calibrate
