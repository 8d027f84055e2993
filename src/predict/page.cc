#include "predict/page.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/fs.h"
#include "base/text.h"
#include "pipeline/trace_category.h"

namespace mw::predict {
namespace {

report::PageRank page_rank(const simulate::RankResult& rank, const StageMemory& memory) {
  report::PageRank made;
  made.device = rank.rank;
  made.stages = stages_text(memory.stages);
  made.shares = shares_of(rank);
  made.reserved = rank.reserved;
  made.peak.time = rank.peak.time;
  made.peak.at = rank.peak.at.empty() ? "between calls" : "in " + rank.peak.at;
  for (const auto& [category, bytes] : rank.peak.by_category)
    made.peak.by_category[pipeline::trace_category(category)] += bytes;
  for (const simulate::LiveTensor& tensor : rank.peak.largest) {
    made.peak.largest.push_back(
        {tensor.name, pipeline::trace_category(tensor.category), tensor.bytes});
  }
  return made;
}

std::vector<report::Figure> figures_of(const Request& request, const Prediction& p) {
  double exposed = 0;
  for (const auto& [label, time] : p.exposed_comm) exposed += time.value;
  const std::string dense =
      fmt::format("{} of {} TFLOP/s dense {}", tflops_text(p.tflops_per_device),
                  p.peak.value / 1e12, p.peak_format);
  return {{"devices", std::to_string(p.devices), ""},
          {"step", format_seconds(p.step.value) + error_text(p.error, !p.outside.empty()),
           p.error > 0 ? fmt::format("the deviation of the runs behind the profile '{}'", p.profile)
                       : ""},
          {"tokens/s", format_si(p.tokens_per_s), ""},
          {"MFU", percent_text(p.mfu) + " %", dense},
          {"HFU", percent_text(p.hfu) + " %", "recomputation counted"},
          {"bubble", format_percent(p.bubble), "waits and idle, mean of the ranks"},
          {"exposed comm.", format_seconds(exposed), "that nothing hides, mean of the ranks"},
          {"memory", format_bytes(p.needed().value),
           fmt::format("of {}, {}", limit_text(request.cluster.device),
                       p.sharing > 1 ? "all ranks" : "fullest rank")}};
}

report::PageRun page_run(const Request& request, const Prediction& p) {
  report::PageRun run;
  run.plan = compile::short_form(request.plan);
  run.step = p.step;
  run.chunks = static_cast<int32_t>(request.plan.chunks);
  run.figures = figures_of(request, p);
  if (!p.too_full().empty()) {
    run.note = fmt::format("does not fit: needs {} of {}; ", format_bytes(p.needed().value),
                           limit_text(request.cluster.device));
  }
  const std::string remarks = remarks_text(p);
  for (const std::string_view remark : split(remarks, '\n')) {
    if (!remark.empty()) run.note += fmt::format("{}; ", remark);
  }
  if (ends_with(run.note, "; ")) run.note.resize(run.note.size() - 2);
  run.memory_limit = p.memory_limit;
  for (size_t r = 0; r < p.result.ranks.size(); ++r)
    run.ranks.push_back(page_rank(p.result.ranks[r], p.memory[r]));
  for (const simulate::PathPart& part : p.result.critical_path)
    run.path.push_back({part.rank, part.begin, part.end, part.message});
  run.words = p.path;
  run.changes = p.suggestions;
  run.trace = p.result.trace;
  return run;
}

}  // namespace

std::string stages_text(const std::vector<int32_t>& stages) {
  std::vector<std::string> numbers;
  for (const int32_t s : stages) numbers.push_back(std::to_string(s));
  if (numbers.empty()) return "";
  return (stages.size() == 1 ? "stage " : "stages ") + join(numbers, ", ");
}

std::vector<report::Share> shares_of(const simulate::RankResult& rank) {
  std::vector<report::Share> shares = {{"computation", rank.compute}};
  for (const auto& [label, time] : rank.exposed_comm) shares.push_back({"exposed " + label, time});
  shares.push_back({"host and stream gaps", rank.gaps});
  for (size_t w = 0; w < simulate::kWaitReasons; ++w) {
    shares.push_back(
        {fmt::format("wait: {}", simulate::wait_reason_name(static_cast<simulate::WaitReason>(w))),
         rank.waits[w]});
  }
  shares.push_back({"wait: core", rank.core_wait});
  shares.push_back({kIdleShare, rank.idle});
  // Less is what differences of times leave by rounding.
  constexpr double kNanosecond = 1e-9;
  std::erase_if(shares, [](const report::Share& share) { return share.time.value < kNanosecond; });
  return shares;
}

report::Page page_of(const std::vector<const Request*>& requests,
                     const std::vector<const Prediction*>& predictions) {
  const Request& first = *requests.front();
  const Prediction& p = *predictions.front();
  report::Page page;
  const std::string file = base_name(first.model.source);
  const std::string model = ends_with(file, ".json") ? file.substr(0, file.size() - 5) : file;
  std::vector<std::string> devices;  // "8" or, of several plans, "8", "16"
  for (const Prediction* of : predictions) {
    const std::string count = std::to_string(of->devices);
    if (std::find(devices.begin(), devices.end(), count) == devices.end()) devices.push_back(count);
  }
  page.title = fmt::format("One training step of {} on {} x {}", model, join(devices, " or "),
                           first.cluster.device.name);
  page.subtitle = fmt::format("{} parameters, {}, global batch {}, sequence {}, {}",
                              format_si(double(p.parameters)), first.cluster.name,
                              first.global_batch, first.seq_len, precision_name(first));
  for (size_t i = 0; i < requests.size(); ++i)
    page.runs.push_back(page_run(*requests[i], *predictions[i]));
  return page;
}

void add_goodput(const Goodput& goodput, report::PageRun& run) {
  run.figures.push_back({"goodput", format_percent(goodput.goodput, 2),
                         fmt::format("a failure every {}, a checkpoint every {}",
                                     format_seconds(goodput.job_mtbf.value),
                                     format_seconds(goodput.interval.value))});
}

}  // namespace mw::predict
