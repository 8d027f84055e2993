// Constants of a profile from measured runs: least squares on the logarithm of the step's time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "calibrate/kernels.h"
#include "calibrate/run_request.h"

namespace mw::calibrate {

struct FitOptions {
  // Of cluster::constant_infos(); at most kMostConstants.
  std::vector<std::string> constants;
  int iterations = 12;
  int threads = 1;
  // Of one source at most this many runs are fitted on, evenly spaced; 0: all.
  int runs_per_source = 120;
  bool bounded = false;  // runs that are further off than most pull no harder
};
inline constexpr size_t kMostConstants = 12;

struct Fitted {
  std::string name;
  double start = 0, value = 0;
  double low = 0, high = 0;  // 95 % interval
  bool determined = true;    // false: no row's time depends on it
};
struct Residual {
  const Run* run = nullptr;                   // or of the fitter's kernel table
  const CollectiveRow* collective = nullptr;  // or
  const KernelRow* kernel = nullptr;
  double error = 0;  // predicted / measured - 1
};
// A run that was not fitted on, and why.
struct Skipped {
  const Run* run = nullptr;
  std::string why;
};
struct Fit {
  std::vector<Fitted> constants;
  std::vector<Residual> residuals;  // of runs, collectives, kernels
  // Standard deviation of log(predicted / measured) of runs, every source alike; of kernels where
  // there is no run.
  double deviation = 0;
};

// A profile's fit. Runs that cannot be simulated, tell no time, or are of a schedule whose steps
// run into each other are left out. Deterministic.
class Fitter {
 public:
  // Compiles the runs: the long part. The profile gives what is not fitted, and where the fit
  // starts. REQUIRES: the runs are of the profile's device and software and outlive the fitter;
  // the machines have a cluster of that device.
  Fitter(const std::vector<const Run*>& runs, const MeasuredKernels& measured,
         const Machines& machines, const cluster::Profile& profile, FitOptions options);
  ~Fitter();

  // Minimises the sum over runs of weight * log(predicted / measured)^2, weight one over the number
  // of the source's runs that are used (a table of kernels is one source, its kinds alike), by
  // damped Gauss-Newton steps in the constants' logarithms with numeric derivatives [Levenberg
  // 1944, Marquardt 1963]. A constant that the runs do not determine stays where it starts: its
  // logarithm has a prior of standard deviation 3 there, weighed against how far the rows are off
  // in the end, so that rows without noise give the constants that made them. `bounded`: beyond
  // 1.345 standard deviations, by the runs' median, |log| counts in place of its square [Huber
  // 1964]; kernels count as they are. `used`: [row]
  // whether it counts, runs, then collectives, then kernels; empty: all. Intervals from the
  // covariance at the end.
  Fit fit(const std::vector<bool>& used = {}) const;
  // [row] its source; "measured kernels" of a table.
  std::vector<std::string> sources() const;
  // Runs that were left out.
  const std::vector<Skipped>& skipped() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Error on rows that a fit has not seen: leaves out every fifth run, every fifth kernel, then each
// source in turn.
std::vector<cluster::LeftOut> left_out(const Fitter& fitter);

// The files that were fitted on, as its profile tells them.
struct FitFiles {
  std::vector<std::string> runs;
  std::string kernels;
};
// The profile with the fit's constants, its error, and the range that the runs cover. Its source
// says what was fitted on what; the constants that were not keep theirs.
cluster::Profile fitted_profile(cluster::Profile profile, const Fit& fit,
                                std::vector<cluster::LeftOut> left_out, const FitFiles& files);
// Where to begin without one: the cluster file's figures, whatever the stack.
cluster::Profile blank_profile(const cluster::Cluster& cluster, const std::string& software);

std::string to_text(const Fit& fit, const std::vector<cluster::LeftOut>& left_out,
                    bool rows = true);
// A line a run, "" without any.
std::string to_text(const std::vector<Skipped>& skipped);

}  // namespace mw::calibrate
