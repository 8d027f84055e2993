#include "cli/failure_options.h"

#include <cmath>

#include "base/text.h"

namespace mw::cli {
namespace {

// `text` in the option's unit; `fallback` where it is empty.
double number_of(const std::string& option, const std::string& text, double least, bool equal,
                 const std::string& also, double fallback, Diagnostics& diagnostics) {
  if (text.empty()) return fallback;
  constexpr double kMost = 1e12;  // beyond it, and below one part of it, nothing is told apart
  const auto number = parse_double(text);
  if (number && (*number > kMost || (*number > 0 && *number < 1 / kMost))) {
    diagnostics.add("{}: must be {}from {:g} to {:g}{}, is '{}'", option, equal ? "0 or " : "",
                    1 / kMost, kMost, also, text);
    return fallback;
  }
  if (number && std::isfinite(*number) && (equal ? *number >= least : *number > least))
    return *number;
  diagnostics.add("{}: must be {} {}{}, is '{}'", option, equal ? "at least" : "above", least, also,
                  text);
  return fallback;
}

}  // namespace

bool FailureOptions::wanted() const {
  return goodput || !mtbf.empty() || !interval.empty() || !checkpoint.empty() || !restart.empty();
}

void add_failure_options(CLI::App& command, FailureOptions& options) {
  command.add_flag("--goodput", options.goodput,
                   "Share of time that is training that lasts, when devices fail; the figures of "
                   "Llama 3's run where the next four are not given");
  command
      .add_option("--mtbf", options.mtbf,
                  "Hours between failures of one device that stop the job (50677)")
      ->check(not_empty());
  command
      .add_option("--checkpoint-interval", options.interval,
                  "Seconds of training between checkpoints, or auto: the best (auto)")
      ->check(not_empty());
  command
      .add_option("--checkpoint-time", options.checkpoint,
                  "Seconds that training stands still for a checkpoint (12 bytes a parameter "
                  "over 2 TB/s); 0: it goes on meanwhile")
      ->check(not_empty());
  command
      .add_option("--restart-time", options.restart,
                  "Seconds from a failure until training goes on (600)")
      ->check(not_empty());
}

std::optional<predict::Failures> read_failures(const FailureOptions& options, int64_t parameters,
                                               Diagnostics& diagnostics) {
  if (!options.wanted()) return std::nullopt;
  predict::Failures failures;
  failures.device_mtbf =
      Seconds(3600 * number_of("--mtbf", options.mtbf, 0, false, " hours",
                               predict::kLlama3DeviceMtbf.value / 3600, diagnostics));
  const double state = static_cast<double>(parameters) * predict::kCheckpointBytesAParameter;
  failures.checkpoint =
      Seconds(number_of("--checkpoint-time", options.checkpoint, 0, true, " seconds",
                        state / predict::kLlama3StorageBytesPerSecond, diagnostics));
  failures.restart = Seconds(number_of("--restart-time", options.restart, 0, true, " seconds",
                                       predict::kDalyRestart.value, diagnostics));
  if (!options.interval.empty() && options.interval != "auto") {
    failures.interval = Seconds(number_of("--checkpoint-interval", options.interval, 0, false,
                                          " seconds or auto", 1, diagnostics));
  }
  return failures;
}

}  // namespace mw::cli
