#include <memory>
#include <thread>

#include <fmt/core.h>

#include "base/fs.h"
#include "calibrate/validate.h"
#include "cli/command.h"
#include "cli/data_folders.h"

namespace mw::cli {
namespace {

struct ValidateOptions {
  std::string runs;
  int64_t threads = 0;
  bool json = false, ablate = false, summary = false;
};

void print_ablations(const std::vector<calibrate::Run>& runs, const calibrate::Machines& machines,
                     int threads, const std::vector<calibrate::Comparison>& whole) {
  const auto mean = [](const std::vector<calibrate::Comparison>& comparisons) {
    std::vector<const calibrate::Comparison*> rows;
    for (const calibrate::Comparison& c : comparisons) {
      if (c.reason.empty()) rows.push_back(&c);
    }
    return calibrate::summary("", rows);
  };
  fmt::print("\nwithout                                    mean      bias\n");
  const auto print = [](const std::string& name, const calibrate::Summary& s) {
    fmt::print("{:<40} {:>6.1f} % {:>+6.1f} %\n", name, 100 * s.mean, 100 * s.bias);
  };
  print("(nothing: the whole model)", mean(whole));
  for (const calibrate::Ablation& ablation : calibrate::ablations())
    print(ablation.name, mean(calibrate::validate(runs, machines, threads, ablation.change)));
}

void run_validate(const ValidateOptions& options) {
  FileSystem& fs = posix_fs();
  const std::string file =
      options.runs.empty() ? join_path(data_folder("data/published"), "runs.csv") : options.runs;
  const std::vector<calibrate::Run> runs = calibrate::read_runs(fs, file);
  const calibrate::Machines machines = calibrate::read_machines(fs, data_folder("clusters"));
  const int threads = options.threads > 0
                          ? static_cast<int>(options.threads)
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::vector<calibrate::Comparison> comparisons =
      calibrate::validate(runs, machines, threads);
  if (options.json) {
    fmt::print("{}", calibrate::to_json(comparisons).dump_pretty());
    return;
  }
  fmt::print("{}", calibrate::to_text(comparisons, !options.summary));
  if (options.ablate) print_ablations(runs, machines, threads, comparisons);
}

}  // namespace

void add_validate(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("validate", "Hold simulated step times against published training runs");
  auto options = std::make_shared<ValidateOptions>();
  command->add_option("--runs", options->runs,
                      "A CSV file of runs; data/published/runs.csv if not given");
  command->add_option("--threads", options->threads, "Rows at a time; as many as there are cores")
      ->check(at_least(1));
  command->add_flag("--json", options->json, "A list of rows with predicted, published and error");
  command->add_flag("--ablate", options->ablate, "And the errors with each mechanism switched off");
  command->add_flag("--summary", options->summary, "By source alone, not every row");
  command->callback([options] { run_validate(*options); });
}

}  // namespace mw::cli
