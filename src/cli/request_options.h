// The options that name a model, a cluster and a plan, and the request that they make: shared by
// the subcommands that predict.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "cli/command.h"
#include "cli/data_folders.h"
#include "predict/predict.h"

namespace mw::cli {

struct RequestOptions {
  std::string what;  // a job (x.toml), a plan file (x.json) or a plan (tp=8,pp=8), or empty
  std::string model, cluster, profile, plan, precision;  // no precision: bf16
  std::vector<std::string> overlap, slowdown;
  int64_t gpus = 0, global_batch = 0, seq_len = 0;
  std::optional<bool> scatter_gather;
  bool tf32 = false;
  std::string several;  // the command's option of one word a time, where it was given
};

// What they fill must live as long as the command.
void add_profile_option(CLI::App& command, std::string& profile);
void add_scatter_gather_option(CLI::App& command, std::optional<bool>& scatter_gather);
void add_request_options(CLI::App& command, RequestOptions& options);

// Parts of a request, which `plan` reads as well. What is wrong, or not given, is added to
// `diagnostics`; false: it could not be read. The model's sequence is its positions where `seq_len`
// is 0; `precision` says what is wrong by the names in `words`.
bool read_model(FileSystem& fs, const std::string& model, int64_t seq_len,
                predict::Request& request, Diagnostics& diagnostics);
bool read_cluster(FileSystem& fs, const std::string& cluster, const std::string& profile,
                  predict::Request& request, Diagnostics& diagnostics);
bool read_batch(int64_t global_batch, predict::Request& request, Diagnostics& diagnostics);
struct PrecisionWords {
  std::string precision = "--precision", tf32 = "--tf32";
};
void read_precision(const std::string& precision, bool tf32, const PrecisionWords& words,
                    predict::Request& request, Diagnostics& diagnostics);

// A job gives model, plan, batch and sequence; a plan file the plan and the step that it is for;
// options replace them. What is wrong is added to `diagnostics`, what the cluster has against the
// plan too; the request is good where nothing was.
predict::Request read_request(FileSystem& fs, const RequestOptions& options,
                              Diagnostics& diagnostics);

// The files that make the request, and perhaps texts that are none.
std::vector<std::string> input_files(FileSystem& fs, const RequestOptions& options);

// `request` with another plan, which has as many replicas as --gpus asks for unless it says its own
// dp. `where` names the plan in messages. `is_known`: model, cluster and batch could be read.
predict::Request with_plan(FileSystem& fs, const RequestOptions& options,
                           const predict::Request& request, bool is_known, const std::string& plan,
                           const std::string& where, Diagnostics& diagnostics);

}  // namespace mw::cli
