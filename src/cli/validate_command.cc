#include <algorithm>
#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "base/fs.h"
#include "base/in_parallel.h"
#include "base/text.h"
#include "calibrate/orderings.h"
#include "calibrate/validate.h"
#include "cli/command.h"
#include "cli/data_folders.h"

namespace mw::cli {
namespace {

struct ValidateOptions {
  std::string runs, cluster;
  int64_t threads = 0;
  bool json = false, ablate = false, summary = false, orderings = false;
};

// Without a change, then of each ablation. `all`: the comparisons of each.
std::vector<calibrate::Summary> effects(
    const std::vector<calibrate::Ablation>& ablations,
    const std::vector<std::vector<calibrate::Comparison>>& all) {
  std::vector<calibrate::Summary> made;
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<const calibrate::Comparison*> rows;
    for (const calibrate::Comparison& c : all[i]) {
      if (c.reason.empty() && c.published > 0) rows.push_back(&c);
    }
    made.push_back(
        calibrate::summary(i == 0 ? "(nothing: the whole model)" : ablations[i - 1].name, rows));
  }
  return made;
}

void print_effects(const std::vector<calibrate::Summary>& effects) {
  fmt::print("\n{:<44} {:>8} {:>8}\n", "without", "mean", "bias");
  for (const calibrate::Summary& s : effects)
    fmt::print("{:<44} {:>8} {:>8}\n", s.name, format_percent(s.mean), format_change(s.bias));
}

Json json_of(const std::vector<calibrate::Summary>& effects) {
  JsonArray list;
  for (const calibrate::Summary& s : effects) {
    list.push_back(Json(
        JsonObject{{"without", s.name}, {"rows", s.rows}, {"mean", s.mean}, {"bias", s.bias}}));
  }
  return Json(std::move(list));
}

// Options of which one would be dropped.
void check_together(const ValidateOptions& options, Diagnostics& diagnostics) {
  if (options.orderings && options.ablate)
    diagnostics.add("--ablate: is of errors, and --orderings prints pairs of rows; leave one out");
  if (options.orderings && options.summary)
    diagnostics.add("--summary: is of errors, and --orderings prints pairs of rows; leave one out");
  if (options.json && options.summary && options.ablate)
    diagnostics.add("--json: prints one list, of --summary or of --ablate; leave one out");
}

// `all`: without a change, then of each ablation.
void print(const ValidateOptions& options, const calibrate::Machines& machines,
           const std::vector<calibrate::Ablation>& ablations,
           const std::vector<std::vector<calibrate::Comparison>>& all) {
  const std::vector<calibrate::Comparison>& comparisons = all.front();
  if (options.orderings) {
    const std::vector<calibrate::Ordering> orderings = calibrate::orderings(comparisons);
    fmt::print("{}", options.json ? calibrate::to_json(orderings).dump_pretty()
                                  : calibrate::to_text(orderings));
  } else if (options.json) {
    const Json json = options.ablate    ? json_of(effects(ablations, all))
                      : options.summary ? calibrate::to_json(calibrate::summaries(comparisons))
                                        : calibrate::to_json(comparisons);
    fmt::print("{}", json.dump_pretty());
  } else {
    fmt::print("{}{}", calibrate::to_text(comparisons, !options.summary),
               calibrate::left_out_text(comparisons, machines));
    if (options.ablate) print_effects(effects(ablations, all));
  }
}

void run_validate(const ValidateOptions& options, const Diagnostics& words) {
  FileSystem& fs = posix_fs();
  Diagnostics diagnostics = words;
  check_together(options, diagnostics);
  const std::string file =
      options.runs.empty() ? join_path(data_folder("data/published"), "runs.csv") : options.runs;
  std::vector<calibrate::Run> runs;
  calibrate::Machines machines;
  attempt(diagnostics, [&] { runs = calibrate::read_rows(fs, file, published_facts(fs)); });
  attempt(diagnostics, [&] {
    machines = calibrate::read_machines(fs, data_folder("clusters"));
    if (!options.cluster.empty())
      calibrate::take_cluster(fs, options.cluster, data_folders("clusters"), machines);
  });
  diagnostics.throw_if_any();
  calibrate::name_devices(runs, machines);
  const int threads = threads_or_cores(options.threads);
  std::vector<calibrate::Ablation> ablations;
  if (options.ablate) ablations = calibrate::ablations();
  std::vector<calibrate::Change> changes(1);  // none
  for (const calibrate::Ablation& ablation : ablations) changes.push_back(ablation.change);
  const std::vector<std::vector<calibrate::Comparison>> all =
      calibrate::validate(runs, machines, threads, changes);
  print(options, machines, ablations, all);
  const auto can_be = [](const calibrate::Comparison& c) { return c.reason.empty(); };
  if (std::none_of(all.front().begin(), all.front().end(), can_be))
    throw_error("{}: no row can be simulated; of the first: {}", file, all.front().front().reason);
}

}  // namespace

void add_validate(CLI::App& app, const Diagnostics& words) {
  CLI::App* command =
      app.add_subcommand("validate", "Hold simulated step times against published training runs");
  auto options = std::make_shared<ValidateOptions>();
  command
      ->add_option("--runs", options->runs,
                   "A CSV file of runs; data/published/runs.csv if not given")
      ->check(not_empty());
  command
      ->add_option("--cluster", options->cluster,
                   "The cluster of its device's rows, in place of that of clusters/")
      ->check(not_empty());
  command->add_option("--threads", options->threads, "Rows at a time; as many as there are cores")
      ->check(whole(1, kMostWhole32));
  command->add_flag(
      "--json", options->json,
      "A list of rows with predicted, published and error; with --summary, --ablate or "
      "--orderings theirs");
  command->add_flag("--ablate", options->ablate, "And the errors with each mechanism switched off");
  command->add_flag("--orderings", options->orderings,
                    "Which of two rows of a source is faster, as published and as predicted");
  command->add_flag("--summary", options->summary, "By source alone, not every row");
  command->callback([options, &words] { run_validate(*options, words); });
}

}  // namespace mw::cli
