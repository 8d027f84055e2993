#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "cli/failure_options.h"
#include "cli/output_file.h"
#include "cli/request_options.h"
#include "predict/advice.h"
#include "predict/page.h"
#include "predict/what_if.h"
#include "predict/without_effect.h"
#include "trace/chrome_trace.h"

namespace mw::cli {
namespace {

struct SimulateOptions {
  RequestOptions request;
  FailureOptions failures;
  std::vector<std::string> compare;
  std::string trace, report, advice = "auto";
  bool json = false, ops = false, ignore_memory = false;
};

// Left to itself, advice must not take much longer than the answer.
constexpr int64_t kQuickEvents = 100'000;

predict::Trials trials_of(const std::string& advice, const predict::Prediction& prediction) {
  if (advice == "plans") return predict::Trials::kPlans;
  if (advice == "none") return predict::Trials::kNone;
  return advice == "options" || prediction.result.events <= kQuickEvents ? predict::Trials::kOptions
                                                                         : predict::Trials::kNone;
}

// The first request and, for each plan that it is compared with, the same with that plan.
std::vector<predict::Request> read_requests(FileSystem& fs, const SimulateOptions& options,
                                            Diagnostics& diagnostics) {
  const size_t before = diagnostics.findings().size();
  std::vector<predict::Request> requests{read_request(fs, options.request, diagnostics)};
  const bool sound = diagnostics.findings().size() == before;
  for (const std::string& plan : options.compare) {
    requests.push_back(
        with_plan(fs, options.request, requests.front(), sound, plan, "--compare", diagnostics));
  }
  read_failures(options.failures, 1, diagnostics);
  return requests;
}

struct Simulated {
  predict::Request request;
  predict::Prediction prediction;
  predict::AdviceReport advice;
  std::optional<predict::Failures> failures;
  std::optional<predict::Goodput> goodput;
};

Simulated simulate_one(const SimulateOptions& options, const std::string& advice,
                       predict::Request request) {
  Simulated made;
  made.request = std::move(request);
  const predict::Step step = predict::compile_step(made.request);
  made.prediction = predict::predict(made.request, step);
  predict::add_without_effect(made.request, step, made.prediction);
  made.advice =
      predict::advise(made.request, made.prediction, step, trials_of(advice, made.prediction));
  made.prediction.suggestions = predict::sentences(made.advice);
  Diagnostics none;  // the options have been read before
  made.failures = read_failures(options.failures, made.prediction.parameters, none);
  if (made.failures) {
    made.goodput = predict::goodput(*made.failures, made.prediction.devices, made.prediction.step);
  }
  return made;
}

Json json_of(const Simulated& one) {
  Json json = predict::to_json(one.request, one.prediction);
  json["advice"] = predict::to_json(one.advice);
  if (one.goodput) json["goodput"] = predict::to_json(*one.failures, *one.goodput, one.prediction);
  return json;
}

// The first one in full, the others in a table or a list.
void print(const SimulateOptions& options, const std::vector<Simulated>& all) {
  if (options.json) {
    Json json = json_of(all.front());
    Json compared{JsonArray{}};
    for (size_t i = 1; i < all.size(); ++i) compared.push_back(json_of(all[i]));
    if (all.size() > 1) json["compared"] = std::move(compared);
    fmt::print("{}", json.dump_pretty());
    return;
  }
  const Simulated& first = all.front();
  fmt::print("{}", predict::to_text(first.request, first.prediction));
  if (const int64_t events = first.prediction.result.events;
      options.advice == "auto" && events > kQuickEvents)
    fmt::print("no changes were tried on {} events; --advice options or plans does\n", events);
  if (first.goodput)
    fmt::print("{}", predict::to_text(*first.failures, *first.goodput, first.prediction));
  if (all.size() == 1) return;
  std::vector<const predict::Request*> requests;
  std::vector<const predict::Prediction*> predictions;
  std::vector<predict::Goodput> goodputs;
  for (const Simulated& one : all) {
    requests.push_back(&one.request);
    predictions.push_back(&one.prediction);
    if (one.goodput) goodputs.push_back(*one.goodput);
  }
  fmt::print("{}", predict::comparison_text(requests, predictions, goodputs));
}

std::string page_text(const std::vector<Simulated>& all) {
  std::vector<const predict::Request*> requests;
  std::vector<const predict::Prediction*> predictions;
  for (const Simulated& one : all) {
    requests.push_back(&one.request);
    predictions.push_back(&one.prediction);
  }
  report::Page page = predict::page_of(requests, predictions);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].goodput) predict::add_goodput(*all[i].goodput, page.runs[i]);
  }
  return report::to_html(page);
}

// Which of the plans need more memory than there is.
void add_memory(const std::vector<Simulated>& all, Diagnostics& diagnostics) {
  for (const Simulated& one : all) {
    const std::string memory = predict::memory_findings(one.request, one.prediction);
    if (memory.empty()) continue;
    diagnostics.add(
        "{}{}", &one == &all.front() ? "" : compile::short_form(one.request.plan) + ": ", memory);
  }
}

void run_simulate(const SimulateOptions& options, const Diagnostics& words) {
  FileSystem& fs = posix_fs();
  Diagnostics diagnostics = words, outputs;
  std::vector<predict::Request> requests = read_requests(fs, options, diagnostics);
  if (options.ops && options.trace.empty() && options.report.empty())
    diagnostics.add(
        "--ops: says what --trace and --report draw; give one of them, or leave it out");
  std::vector<std::string> inputs = input_files(fs, options.request);
  inputs.insert(inputs.end(), options.compare.begin(), options.compare.end());
  check_outputs(fs, {{"--trace", options.trace}, {"--report", options.report}}, inputs, outputs);
  const bool sound = diagnostics.empty(), writable = outputs.empty();
  for (const std::string& finding : outputs.findings()) diagnostics.add("{}", finding);
  if (!sound) diagnostics.throw_if_any();
  // What cannot be written is told together with what does not fit, and nothing is printed.
  std::vector<Simulated> all;
  for (predict::Request& request : requests) {
    request.options.trace = writable && (!options.trace.empty() || !options.report.empty());
    request.options.op_spans = options.ops;
    attempt(diagnostics, [&] {
      all.push_back(simulate_one(options, writable ? options.advice : "none", std::move(request)));
    });
  }
  if (writable) {
    diagnostics.throw_if_any();
    if (!options.trace.empty())
      write_output(fs, options.trace, [&](const TextSink& sink) {
        trace::write_chrome_json(all.front().prediction.result.trace, sink);
      });
    if (!options.report.empty()) write_output(fs, options.report, page_text(all));
    print(options, all);
  }
  if (!options.ignore_memory) add_memory(all, diagnostics);
  diagnostics.throw_if_any();
}

}  // namespace

void add_simulate(CLI::App& app, const Diagnostics& words) {
  CLI::App* command = app.add_subcommand(
      "simulate", "Say how long a step takes on a cluster, and where time and memory go");
  auto options = std::make_shared<SimulateOptions>();
  add_request_options(*command, options->request);
  add_failure_options(*command, options->failures);
  command->add_option("--trace", options->trace, "Write a Chrome trace that Perfetto opens")
      ->check(written_file());
  command
      ->add_option("--report", options->report,
                   "Write one HTML file: time lines, memory, where the time goes")
      ->check(written_file());
  one_word(command->add_option("--compare", options->compare,
                               "Another plan of the same step, side by side"))
      ->check(not_empty());
  command
      ->add_option("--advice", options->advice,
                   "What to change, each change simulated: of the options, or also of the plan "
                   "(plans); auto: options, for steps of up to 100,000 events")
      ->check(one_of({"auto", "none", "options", "plans"}));
  command->add_flag("--ops", options->ops,
                    "With --trace, --report: a span an op in place of a call");
  command->add_flag("--ignore-memory", options->ignore_memory,
                    "Do not fail where the devices have too little memory");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, &words] {
    if (!options->compare.empty()) options->request.several = "--compare";
    run_simulate(*options, words);
  });
}

}  // namespace mw::cli
