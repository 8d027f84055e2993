// A run's checkpoints: weights under their Hugging Face names, optimizer state beside them, and
// what it takes to go on.
#pragma once

#include <string>

#include "base/fs.h"
#include "train/job.h"
#include "train/parameter_io.h"

namespace mw::train {

constexpr const char* kCheckpoints = "checkpoint";  // their folder in that of the run

struct RunState {
  int64_t step = 0;     // steps done; the next batch begins at sample step * global_batch
  int64_t samples = 0;  // drawn so far
  std::string data;     // fingerprint of what they are drawn from; "" in older checkpoints
};

// A folder that is moved or removed while its run goes on must not be made anew: it would lack the
// run's other files. RunError where it is gone.
void require_run_folder(FileSystem& fs, const std::string& run_dir);

// Writes <run_dir>/checkpoint/step-NNNNNN, complete or not at all, and keeps the last job.keep.
void save_run(FileSystem& fs, const std::string& run_dir, const Job& job,
              const compile::CompiledPlan& plan, const ParameterIo& io, const RunState& state);

// Reads the newest checkpoint of a run under any plan. Throws Error that names every damaged or
// missing file, and where it is of another run's seed or model.
RunState load_run(FileSystem& fs, const std::string& run_dir, const Job& job,
                  const compile::CompiledPlan& plan, ParameterIo& io);

// Reads weights alone from safetensors files with Hugging Face names (TensorFiles::open_path).
// Throws Error with every tensor that is missing, has another shape, or that the model has not.
void load_weights(FileSystem& fs, const std::string& path, const Job& job,
                  const compile::CompiledPlan& plan, ParameterIo& io);

}  // namespace mw::train
