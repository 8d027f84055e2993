// How much of its time a job that fails now and then spends on training that lasts.
//
// Failures come at random, independent of each other (exponential times between them); every one
// stops the whole job, which restarts from its last checkpoint. Exact for that model [Daly 2006, A
// higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22:303]:
//
//   time of tau seconds of work = M e^(R/M) (e^((tau + C)/M) - 1)
//   best tau = M (1 + W(-e^(-1 - C/M)))
//
// with M mean time between failures of the job, C time of a checkpoint, R time of a restart, W
// Lambert's function (its main branch). The job's M is a device's over the number of devices.
#pragma once

#include <optional>

#include "base/ids.h"

namespace mw::predict {

struct Failures {
  Seconds device_mtbf;              // mean time between failures of one device that stop the job
  Seconds checkpoint;               // that training stands still for one; 0: it goes on meanwhile
  Seconds restart;                  // from a failure until training goes on: detect, replace, load
  std::optional<Seconds> interval;  // of training between two checkpoints; none: the best
};

// Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 devices [Dubey 2024, section
// 3.3.4].
inline constexpr Seconds kLlama3DeviceMtbf{54 * 86400.0 * 16384 / 419};
// Of the storage that Llama 3's checkpoints went to: 2 TB/s sustained [Dubey 2024, section 3.3.1,
// from memory].
inline constexpr double kLlama3StorageBytesPerSecond = 2e12;
// Weights' master copy and two moments in f32.
inline constexpr double kCheckpointBytesAParameter = 12;
// The restart that [Daly 2006] takes for his figures.
inline constexpr Seconds kDalyRestart{600};

struct Goodput {
  Seconds job_mtbf;
  Seconds interval;    // the one given, or the best
  double goodput = 0;  // share of time that is training that lasts
  // Where the rest goes; with goodput they are 1.
  double checkpoints = 0, lost_work = 0, restarts = 0;
  Seconds best_interval;  // of whole steps, too
  double best_goodput = 0;
  Seconds young;  // sqrt(2 C M) [Young 1974]
  Seconds daly;   // his perturbation solution, within 1 % for C < M/2
};

// An interval is of whole steps, at least one: a checkpoint is between two. REQUIRES: positive
// times (a checkpoint and a restart may take none), devices of at least 1.
Goodput goodput(const Failures& failures, int64_t devices, Seconds step);

}  // namespace mw::predict
