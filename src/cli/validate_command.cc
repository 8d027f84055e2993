#include <memory>
#include <thread>

#include <fmt/core.h>

#include "base/fs.h"
#include "calibrate/orderings.h"
#include "calibrate/validate.h"
#include "cli/command.h"
#include "cli/data_folders.h"

namespace mw::cli {
namespace {

struct ValidateOptions {
  std::string runs;
  int64_t threads = 0;
  bool json = false, ablate = false, summary = false, orderings = false;
};

// `all`: without a change, then of each ablation.
void print_ablations(const std::vector<calibrate::Ablation>& ablations,
                     const std::vector<std::vector<calibrate::Comparison>>& all) {
  const auto mean = [](const std::vector<calibrate::Comparison>& comparisons) {
    std::vector<const calibrate::Comparison*> rows;
    for (const calibrate::Comparison& c : comparisons) {
      if (c.reason.empty()) rows.push_back(&c);
    }
    return calibrate::summary("", rows);
  };
  fmt::print("\n{:<44} {:>8} {:>8}\n", "without", "mean", "bias");
  const auto print = [](const std::string& name, const calibrate::Summary& s) {
    fmt::print("{:<44} {:>6.1f} % {:>+6.1f} %\n", name, 100 * s.mean, 100 * s.bias);
  };
  print("(nothing: the whole model)", mean(all.front()));
  for (size_t i = 0; i < ablations.size(); ++i) print(ablations[i].name, mean(all[i + 1]));
}

void run_validate(const ValidateOptions& options) {
  FileSystem& fs = posix_fs();
  const std::string file =
      options.runs.empty() ? join_path(data_folder("data/published"), "runs.csv") : options.runs;
  const std::vector<calibrate::Run> runs = calibrate::read_runs(fs, file, published_amendments(fs));
  const calibrate::Machines machines = calibrate::read_machines(fs, data_folder("clusters"));
  const int threads = options.threads > 0
                          ? static_cast<int>(options.threads)
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<calibrate::Ablation> ablations;
  if (options.ablate) ablations = calibrate::ablations();
  std::vector<calibrate::Change> changes(1);  // none
  for (const calibrate::Ablation& ablation : ablations) changes.push_back(ablation.change);
  const std::vector<std::vector<calibrate::Comparison>> all =
      calibrate::validate(runs, machines, threads, changes);
  const std::vector<calibrate::Comparison>& comparisons = all.front();
  if (options.orderings) {
    const std::vector<calibrate::Ordering> orderings = calibrate::orderings(comparisons);
    fmt::print("{}", options.json ? calibrate::to_json(orderings).dump_pretty()
                                  : calibrate::to_text(orderings));
    return;
  }
  if (options.json) {
    fmt::print("{}", calibrate::to_json(comparisons).dump_pretty());
    return;
  }
  fmt::print("{}{}", calibrate::to_text(comparisons, !options.summary),
             calibrate::left_out_text(comparisons, machines));
  if (options.ablate) print_ablations(ablations, all);
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
  command->add_flag("--orderings", options->orderings,
                    "Which of two rows of a source is faster, as published and as predicted");
  command->add_flag("--summary", options->summary, "By source alone, not every row");
  command->callback([options] { run_validate(*options); });
}

}  // namespace mw::cli
