#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "cli/request_options.h"
#include "predict/what_if.h"
#include "predict/without_effect.h"

namespace mw::cli {
namespace {

struct WhatIfOptions {
  RequestOptions request;
  std::vector<std::string> vary;
  bool json = false;
};

void run_what_if(const WhatIfOptions& options, const Diagnostics& words) {
  Diagnostics diagnostics = words, of_vary;
  std::vector<predict::Variation> variations;
  for (const std::string& text : options.vary) {
    try {
      variations.push_back(predict::parse_variation(text));
    } catch (const Error& error) {
      of_vary.absorb(error);
    }
  }
  if (options.vary.empty())
    diagnostics.add("--vary: is missing; give KEY=VALUE,VALUE… such as link_bandwidth=0.5,1,2");
  const predict::Request request = read_request(posix_fs(), options.request, diagnostics);
  if (!diagnostics.empty() && request.cluster.links.empty()) {  // perhaps it could not be read
    std::erase_if(variations, [](const predict::Variation& variation) {
      return variation.key.find('.') != std::string::npos;
    });
  }
  for (const std::string& finding : predict::findings(request, variations))
    of_vary.add("{}", finding);
  for (const std::string& finding : of_vary.findings()) diagnostics.add("{}", finding);
  diagnostics.throw_if_any();
  const std::vector<predict::WhatIf> rows =
      predict::what_if(request, variations, options.request.gpus);
  const predict::Step step = predict::compile_step(request);
  predict::Prediction base = predict::predict(request, step);
  predict::add_without_effect(request, step, base);
  if (options.json) {
    fmt::print("{}", predict::to_json(request, base, variations, rows).dump_pretty());
  } else {
    fmt::print("{}", predict::to_text(base, variations, rows));
  }
}

}  // namespace

void add_what_if(CLI::App& app, const Diagnostics& words) {
  CLI::App* command = app.add_subcommand(
      "what-if", "Say how long a step takes with other links, devices, sizes and plans: a table");
  auto options = std::make_shared<WhatIfOptions>();
  add_request_options(*command, options->request);
  one_word(command->add_option(
      "--vary", options->vary,
      "KEY=VALUE,VALUE…, several make every combination. Factors of the cluster: "
      "link_bandwidth, link_latency (or of one level: link_bandwidth.nvlink), "
      "matrix_peak, memory_bandwidth, memory_size, host_time; keys of the plan; "
      "global_batch, seq_len, precision, gpus (dp and microbatches follow)"));
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, &words] {
    if (!options->vary.empty()) options->request.several = "--vary";
    run_what_if(*options, words);
  });
}

}  // namespace mw::cli
