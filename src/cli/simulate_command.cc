#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "cli/failure_options.h"
#include "cli/request_options.h"
#include "predict/advice.h"
#include "predict/page.h"
#include "predict/what_if.h"
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

std::unique_ptr<WritableFile> open(FileSystem& fs, const std::string& path) {
  return path.empty() ? nullptr : fs.create_file(path);
}

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
  std::vector<predict::Request> requests{read_request(fs, options.request, diagnostics)};
  for (const std::string& plan : options.compare) {
    predict::Request other = requests.front();
    attempt(diagnostics, [&] { other.plan = read_plan(fs, plan, "--compare"); });
    requests.push_back(std::move(other));
  }
  read_failures(options.failures, 1, diagnostics);
  return requests;
}

// The first request in full, the others in a table or a list.
void print(const SimulateOptions& options, const std::vector<predict::Request>& requests,
           const std::vector<predict::Prediction>& predictions,
           const predict::AdviceReport& advice) {
  Diagnostics diagnostics;
  const predict::Prediction& first = predictions.front();
  const std::optional<predict::Failures> failures =
      read_failures(options.failures, first.parameters, diagnostics);
  std::optional<predict::Goodput> goodput;
  if (failures) goodput = predict::goodput(*failures, first.devices, first.step);
  if (options.json) {
    Json json = predict::to_json(requests.front(), first);
    json["advice"] = predict::to_json(advice);
    if (goodput) json["goodput"] = predict::to_json(*failures, *goodput);
    Json compared{JsonArray{}};
    for (size_t i = 1; i < requests.size(); ++i)
      compared.push_back(predict::to_json(requests[i], predictions[i]));
    if (requests.size() > 1) json["compared"] = std::move(compared);
    fmt::print("{}", json.dump_pretty());
    return;
  }
  fmt::print("{}", predict::to_text(requests.front(), first));
  if (goodput) fmt::print("{}", predict::to_text(*failures, *goodput, first));
  if (requests.size() > 1) fmt::print("{}", predict::comparison_text(requests, predictions));
}

void run_simulate(const SimulateOptions& options) {
  FileSystem& fs = posix_fs();
  Diagnostics diagnostics;
  std::vector<predict::Request> requests = read_requests(fs, options, diagnostics);
  std::unique_ptr<WritableFile> trace, page;  // before the work: a wrong path is said at once
  if (diagnostics.empty()) {
    attempt(diagnostics, [&] { trace = open(fs, options.trace); });
    attempt(diagnostics, [&] { page = open(fs, options.report); });
  }
  diagnostics.throw_if_any();
  std::vector<predict::Prediction> predictions;
  predict::AdviceReport advice;  // of the first one
  for (predict::Request& request : requests) {
    request.options.trace = trace != nullptr || page != nullptr;
    request.options.op_spans = options.ops;
    attempt(diagnostics, [&] {
      const predict::Step step = predict::compile_step(request);
      predictions.push_back(predict::predict(request, step));
      predict::Prediction& made = predictions.back();
      const predict::AdviceReport found =
          predict::advise(request, made, step, trials_of(options.advice, made));
      made.suggestions = predict::sentences(found);
      if (predictions.size() == 1) advice = found;
    });
  }
  diagnostics.throw_if_any();
  if (trace) {
    trace->write(trace::to_chrome_json(predictions.front().result.trace));
    trace->close();
  }
  if (page) {
    page->write(report::to_html(predict::page_of(requests, predictions)));
    page->close();
  }
  print(options, requests, predictions, advice);
  for (size_t i = 0; i < requests.size() && !options.ignore_memory; ++i) {
    const std::string memory = predict::memory_findings(requests[i], predictions[i]);
    if (!memory.empty()) {
      diagnostics.add("{}{}", i == 0 ? "" : compile::short_form(requests[i].plan) + ": ", memory);
    }
  }
  diagnostics.throw_if_any();
}

}  // namespace

void add_simulate(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "simulate", "Say how long a step takes on a cluster, and where time and memory go");
  auto options = std::make_shared<SimulateOptions>();
  add_request_options(*command, options->request);
  add_failure_options(*command, options->failures);
  command->add_option("--trace", options->trace, "Write a Chrome trace that Perfetto opens");
  command->add_option("--report", options->report,
                      "Write one HTML file: time lines, memory, where the time goes");
  command
      ->add_option("--compare", options->compare,
                   "Another plan of the same step, side by side; may be given several times")
      ->take_all()
      ->allow_extra_args(false);
  command
      ->add_option("--advice", options->advice,
                   "What to change, each change simulated: of the options, or also of the plan "
                   "(plans); auto: options, for steps of up to 100,000 events")
      ->check(one_of({"auto", "none", "options", "plans"}));
  command->add_flag("--ops", options->ops, "With --trace: a span an op in place of a call");
  command->add_flag("--ignore-memory", options->ignore_memory,
                    "Do not fail where the devices have too little memory");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] { run_simulate(*options); });
}

}  // namespace mw::cli
