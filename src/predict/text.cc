// A prediction for people and as JSON.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/count.h"
#include "base/text.h"
#include "cluster/slice.h"
#include "predict/page.h"
#include "predict/predict.h"

namespace mw::predict {
namespace {

double part_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Mean over pipeline ranks.
template <typename F>
double mean(const simulate::Result& result, F value) {
  double sum = 0;
  for (const simulate::RankResult& rank : result.ranks) sum += value(rank);
  return sum / static_cast<double>(result.ranks.size());
}

std::string time_text(const Prediction& p) {
  std::vector<report::Share> sums;  // over ranks
  for (const simulate::RankResult& rank : p.result.ranks) {
    for (const report::Share& share : shares_of(rank)) {
      const auto it = std::find_if(sums.begin(), sums.end(), [&](const report::Share& other) {
        return other.name == share.name;
      });
      if (it == sums.end()) {
        sums.push_back(share);
      } else {
        it->time += share.time;
      }
    }
  }
  // A rank without the share before it may have brought a share first: idle time is the last.
  std::stable_partition(sums.begin(), sums.end(),
                        [](const report::Share& share) { return share.name != kIdleShare; });
  std::string text;
  for (const report::Share& share : sums) {
    const double mean = share.time.value / static_cast<double>(p.result.ranks.size());
    text += fmt::format("  {:<24} {:>10} {:>7}\n", share.name, format_seconds(mean),
                        format_percent(part_of(mean, p.step.value)));
  }
  return text;
}

// What the rank that is fullest holds then.
std::string largest_text(const Prediction& p) {
  size_t most = 0;
  for (size_t r = 0; r < p.memory.size(); ++r) {
    if (p.memory[r].peak > p.memory[most].peak) most = r;
  }
  const simulate::MemoryPeak& peak = p.result.ranks[most].peak;
  std::string text =
      fmt::format("  rank {} is fullest {} into the step, in {}; largest then: ", most,
                  format_seconds(peak.time.value), peak.at);
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min<size_t>(4, peak.largest.size()); ++i) {
    parts.push_back(
        fmt::format("{} {}", peak.largest[i].name, format_bytes(peak.largest[i].bytes.value)));
  }
  return text + join(parts, ", ") + "\n";
}

bool same_memory(const Prediction& p, size_t a, size_t b) {
  return p.memory[a].peak == p.memory[b].peak && p.memory[a].alive == p.memory[b].alive &&
         p.result.ranks[a].peak.by_category == p.result.ranks[b].peak.by_category;
}

// Consecutive ranks with the same memory on one line.
std::string memory_text(const Prediction& p, cluster::Allocator allocator) {
  std::string text;
  for (size_t r = 0; r < p.memory.size();) {
    size_t end = r + 1;
    Seconds first = p.result.ranks[r].peak.time, last = first;
    for (; end < p.memory.size() && same_memory(p, r, end); ++end) {
      first = std::min(first, p.result.ranks[end].peak.time);
      last = std::max(last, p.result.ranks[end].peak.time);
    }
    const std::string from = format_seconds(first.value), to = format_seconds(last.value);
    const std::string ranks =
        end - r == 1 ? fmt::format("rank {}", r) : fmt::format("ranks {}-{}", r, end - 1);
    std::vector<std::string> parts;
    const auto& held = p.result.ranks[r].peak.by_category;
    std::vector<std::pair<pipeline::Category, Bytes>> sorted(held.begin(), held.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    for (const auto& [category, bytes] : sorted) {
      if (bytes.value * 100 >= p.memory[r].alive.value)
        parts.push_back(
            fmt::format("{} {}", pipeline::to_string(category), format_bytes(bytes.value)));
    }
    const Bytes kept = p.memory[r].peak - p.memory[r].alive;
    if (allocator != cluster::Allocator::kPlan && kept.value * 100 >= p.memory[r].alive.value)
      parts.push_back(fmt::format("kept by the allocator {}", format_bytes(kept.value)));
    text += fmt::format("  {:<12} {:<12} {:>9}  at {}: {}\n", ranks,
                        end - r == 1 ? stages_text(p.memory[r].stages) : "",
                        format_bytes(p.memory[r].peak.value),
                        from == to ? from : from + " to " + to, join(parts, ", "));
    r = end;
  }
  return text;
}

Json peak_json(const simulate::MemoryPeak& peak) {
  Json json{JsonObject{}};
  json["time_s"] = peak.time.value;
  json["at"] = peak.at;
  Json by{JsonObject{}};
  for (const auto& [category, bytes] : peak.by_category)
    by[pipeline::to_string(category)] = bytes.value;
  json["bytes_by_category"] = std::move(by);
  Json largest{JsonArray{}};
  for (const simulate::LiveTensor& tensor : peak.largest) {
    Json entry{JsonObject{}};
    entry["name"] = tensor.name;
    entry["category"] = pipeline::to_string(tensor.category);
    entry["bytes"] = tensor.bytes.value;
    largest.push_back(std::move(entry));
  }
  json["largest"] = std::move(largest);
  return json;
}

}  // namespace

std::string limit_text(const cluster::Device& device) {
  const std::string usable = format_bytes(device.usable_memory().value);
  if (device.reserved.value == 0) return usable;
  return fmt::format("{} for tensors (of {})", usable, format_bytes(device.memory.value));
}

std::string tflops_text(double tflops) {
  return tflops >= 1 ? fmt::format("{:.1f}", tflops) : fmt::format("{:.3g}", tflops);
}

std::string percent_text(double part) {
  return part >= 0.001 ? fmt::format("{:.1f}", 100 * part) : fmt::format("{:.2g}", 100 * part);
}

std::string error_text(double error, bool outside) {
  if (error <= 0) return "";
  return fmt::format(" +- {:.0f} %{}", 100 * error, outside ? " or more" : "");
}

Json error_json(double error) { return error > 0 ? Json(error) : Json(); }

std::string outside_text(const std::string& profile, const std::vector<std::string>& outside) {
  if (outside.empty()) return "";
  if (profile.empty())
    return fmt::format("outside of what was measured: {}\n", join(outside, ", "));
  return fmt::format("outside of what the profile '{}' was measured on: {}\n", profile,
                     join(outside, ", "));
}

std::string remarks_text(const Prediction& p) {
  std::string text = outside_text(p.profile, p.outside);
  if (!p.without_effect.empty())
    text += fmt::format("without effect here: {}\n", join(p.without_effect, ", "));
  constexpr double kMuch = 0.1;
  if (p.hfu > 1 || p.causal_mfu < (1 - kMuch) * p.mfu) {
    text += fmt::format(
        "MFU and HFU count the whole square of a causal mask, of which half is computed; with that "
        "half MFU is {} %\n",
        percent_text(p.causal_mfu));
  }
  return text;
}

std::string to_text(const Request& request, const Prediction& p) {
  std::string text =
      fmt::format("{}: {} parameters on {} x {} ({}), plan {}, global batch {}, sequence {}\n",
                  request.model.source, format_si(static_cast<double>(p.parameters)), p.devices,
                  request.cluster.device.name, cluster::slice_name(request.cluster, p.devices),
                  compile::short_form(request.plan), request.global_batch, request.seq_len);
  text += fmt::format(
      "step {}{}, {} tokens/s, {} TFLOP/s a device; MFU {} %, HFU {} % of {} TFLOP/s "
      "dense {}; bubble {}\n",
      format_seconds(p.step.value), error_text(p.error, !p.outside.empty()),
      format_si(p.tokens_per_s), tflops_text(p.tflops_per_device), percent_text(p.mfu),
      percent_text(p.hfu), p.peak.value / 1e12, p.peak_format, format_percent(p.bubble));
  text += remarks_text(p);
  text += "where the time goes, mean over pipeline ranks:\n" + time_text(p);
  const std::string limit = limit_text(request.cluster.device);
  text += p.sharing > 1 ? fmt::format("memory, {} of {} that the {} ranks share",
                                      format_bytes(p.needed().value), limit, p.sharing)
                        : fmt::format("memory of {} a device", limit);
  text += "; what each rank needs, and what of it is alive at its fullest instant:\n" +
          memory_text(p, request.cluster.stack.allocator) + largest_text(p);
  text += "critical path:\n";
  for (const std::string& line : p.path) text += "  " + line + "\n";
  if (!p.suggestions.empty()) text += "to change, simulated:\n";
  for (const std::string& line : p.suggestions) text += "  " + line + "\n";
  text += fmt::format("compiled in {}, simulated in {} ({} events)\n",
                      format_seconds(p.compile_time.value), format_seconds(p.simulate_time.value),
                      p.result.events);
  return text;
}

Json exposed_json(const Prediction& p) {
  Json exposed{JsonObject{}};
  for (const auto& [label, time] : p.exposed_comm) exposed[label] = time.value;
  return exposed;
}

Json peaks_json(const Prediction& p) {
  Json peaks{JsonArray{}};
  for (const StageMemory& memory : p.memory) peaks.push_back(memory.peak.value);
  return peaks;
}

Json to_json(const Request& request, const Prediction& p) {
  Json json{JsonObject{}};
  json["model"] = request.model.source;
  json["cluster"] = request.cluster.name;
  json["devices"] = p.devices;
  json["plan"] = compile::to_json(request.plan);
  json["global_batch"] = request.global_batch;
  json["seq_len"] = request.seq_len;
  json["parameters"] = p.parameters;
  json["step_s"] = p.step.value;
  json["step_error"] = error_json(p.error);
  json["profile"] = p.profile;
  json["outside_profile"] = Json::list(p.outside);
  json["without_effect"] = Json::list(p.without_effect);
  json["tokens_per_s"] = p.tokens_per_s;
  json["tflops_per_gpu"] = p.tflops_per_device;
  json["mfu"] = p.mfu;
  json["hfu"] = p.hfu;
  json["causal_mfu"] = p.causal_mfu;
  json["peak_format"] = p.peak_format;
  json["peak_tflops"] = p.peak.value / 1e12;
  json["bubble"] = p.bubble;
  json["compute_s"] = mean(p.result, [](const auto& r) { return r.compute.value; });
  json["gaps_s"] = mean(p.result, [](const auto& r) { return r.gaps.value; });
  json["core_wait_s"] = mean(p.result, [](const auto& r) { return r.core_wait.value; });
  json["exposed_comm_s"] = exposed_json(p);
  Json alive{JsonArray{}}, instructions{JsonArray{}}, sent{JsonArray{}};
  for (const simulate::RankResult& rank : p.result.ranks) {
    instructions.push_back(rank.instructions);
    sent.push_back(rank.bytes_sent.value);
  }
  for (const StageMemory& memory : p.memory) alive.push_back(memory.alive.value);
  json["peak_bytes"] = peaks_json(p);
  json["alive_bytes"] = std::move(alive);
  Json fullest{JsonArray{}};
  for (const simulate::RankResult& rank : p.result.ranks) fullest.push_back(peak_json(rank.peak));
  json["fullest"] = std::move(fullest);
  json["instructions"] = std::move(instructions);
  json["bytes_sent"] = std::move(sent);
  json["memory_limit_bytes"] = p.memory_limit.value;
  json["memory_needed_bytes"] = p.needed().value;
  json["fits"] = p.too_full().empty();
  json["critical_path"] = Json::list(p.path);
  json["suggestions"] = Json::list(p.suggestions);
  json["events"] = p.result.events;
  json["compile_s"] = p.compile_time.value;
  json["simulate_s"] = p.simulate_time.value;
  return json;
}

// A step that takes so many times its time is none.
constexpr double kNoProgress = 1e-4;

std::string to_text(const Failures& failures, const Goodput& g, const Prediction& p) {
  const double steps = std::round(g.interval.value / p.step.value);
  const std::string count = steps < 1e9 ? fmt::format("{:.0f}", steps) : format_si(steps);
  const std::string best =
      failures.interval
          ? fmt::format("; the best interval is {}: {}, {} tokens/s",
                        format_seconds(g.best_interval.value), format_percent(g.best_goodput, 2),
                        format_si(p.tokens_per_s * g.best_goodput))
      : g.goodput < kNoProgress ? ": the job makes no progress, its devices fail too often"
                                : " (the best one)";
  return fmt::format(
      "with failures: a device every {:.6g} h, so one of {} every {}; a checkpoint takes {}, a "
      "restart "
      "{}\n"
      "  goodput {} with a checkpoint every {}, {} {}, {} tokens/s{}\n"
      "  lost: {} checkpoints, {} work done again, {} restarts; best "
      "interval to first order {} [Young 1974], as a series {} [Daly 2006]\n",
      failures.device_mtbf.value / 3600, p.devices, format_seconds(g.job_mtbf.value),
      format_seconds(failures.checkpoint.value), format_seconds(failures.restart.value),
      format_percent(g.goodput, 2), format_seconds(g.interval.value), count,
      steps == 1 ? "step" : "steps", format_si(p.tokens_per_s * g.goodput), best,
      format_percent(g.checkpoints, 2), format_percent(g.lost_work, 2),
      format_percent(g.restarts, 2), format_seconds(g.young.value), format_seconds(g.daly.value));
}

Json to_json(const Failures& failures, const Goodput& g, const Prediction& p) {
  Json json{JsonObject{}};
  json["device_mtbf_h"] = failures.device_mtbf.value / 3600;
  json["job_mtbf_h"] = g.job_mtbf.value / 3600;
  json["checkpoint_s"] = failures.checkpoint.value;
  json["restart_s"] = failures.restart.value;
  json["interval_s"] = g.interval.value;
  json["interval_steps"] = std::round(g.interval.value / p.step.value);
  json["goodput"] = g.goodput;
  json["tokens_per_s"] = p.tokens_per_s * g.goodput;
  json["checkpoints"] = g.checkpoints;
  json["lost_work"] = g.lost_work;
  json["restarts"] = g.restarts;
  json["best_interval_s"] = g.best_interval.value;
  json["best_goodput"] = g.best_goodput;
  json["best_tokens_per_s"] = p.tokens_per_s * g.best_goodput;
  json["young_s"] = g.young.value;
  json["daly_s"] = g.daly.value;
  return json;
}

}  // namespace mw::predict
