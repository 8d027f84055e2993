// The options that say how a job fails and restarts.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "cli/command.h"
#include "predict/goodput.h"

namespace mw::cli {

struct FailureOptions {
  bool goodput = false;  // with published figures for what is not given
  std::string mtbf, interval, checkpoint, restart;

  bool wanted() const;
};

// `options` must live as long as the command.
void add_failure_options(CLI::App& command, FailureOptions& options);

// nullopt where none was given; what is wrong is added to `diagnostics`. Without a time of a
// checkpoint it is the state of `parameters` over a published storage's bandwidth.
std::optional<predict::Failures> read_failures(const FailureOptions& options, int64_t parameters,
                                               Diagnostics& diagnostics);

}  // namespace mw::cli
