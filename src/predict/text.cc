// A prediction for people and as JSON.
#include <fmt/core.h>

#include <algorithm>

#include "base/text.h"
#include "predict/predict.h"

namespace mw::predict {
namespace {

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string stages_text(const std::vector<int32_t>& stages) {
  std::vector<std::string> numbers;
  for (const int32_t s : stages) numbers.push_back(std::to_string(s));
  return (stages.size() == 1 ? "stage " : "stages ") + join(numbers, ", ");
}

// Mean over pipeline ranks.
template <typename F>
double mean(const simulate::Result& result, F value) {
  double sum = 0;
  for (const simulate::RankResult& rank : result.ranks) sum += value(rank);
  return sum / static_cast<double>(result.ranks.size());
}

std::string time_text(const Prediction& p) {
  const double step = p.step.value;
  std::string text;
  const auto line = [&](const std::string& name, double seconds) {
    if (seconds > 0)
      text += fmt::format("  {:<24} {:>10} {:5.1f} %\n", name, format_seconds(seconds),
                          percent(seconds, step));
  };
  line("computation", mean(p.result, [](const auto& r) { return r.compute.value; }));
  for (const auto& [label, time] : p.exposed_comm) line("exposed " + label, time.value);
  line("host and stream gaps", mean(p.result, [](const auto& r) { return r.gaps.value; }));
  for (size_t w = 0; w < simulate::kWaitReasons; ++w) {
    line(fmt::format("wait: {}", simulate::wait_reason_name(static_cast<simulate::WaitReason>(w))),
         mean(p.result, [w](const auto& r) { return r.waits[w].value; }));
  }
  line("idle at the end", mean(p.result, [](const auto& r) { return r.idle.value; }));
  return text;
}

// Consecutive ranks with the same memory on one line.
std::string memory_text(const Prediction& p) {
  std::string text;
  for (size_t r = 0; r < p.memory.size();) {
    size_t end = r + 1;
    while (end < p.memory.size() && p.memory[end].peak == p.memory[r].peak &&
           p.memory[end].alive == p.memory[r].alive)
      ++end;
    const std::string ranks =
        end - r == 1 ? fmt::format("rank {}", r) : fmt::format("ranks {}-{}", r, end - 1);
    std::vector<std::string> parts;
    for (const auto& [category, bytes] : p.result.ranks[r].peak.by_category) {
      if (bytes.value * 100 >= p.memory[r].alive.value)
        parts.push_back(
            fmt::format("{} {}", pipeline::to_string(category), format_bytes(bytes.value)));
    }
    text += fmt::format("  {:<12} {:<12} {:>9}  at {}: {}\n", ranks,
                        end - r == 1 ? stages_text(p.memory[r].stages) : "",
                        format_bytes(p.memory[r].peak.value),
                        format_seconds(p.result.ranks[r].peak.time.value), join(parts, ", "));
    r = end;
  }
  return text;
}

}  // namespace

std::string to_text(const Request& request, const Prediction& p) {
  std::string text =
      fmt::format("{}: {} parameters on {} x {} ({}), plan {}, global batch {}, sequence {}\n",
                  request.model.source, format_si(static_cast<double>(p.parameters)), p.devices,
                  request.cluster.device.name, request.cluster.name,
                  compile::short_form(request.plan), request.global_batch, request.seq_len);
  text += fmt::format(
      "step {}{}, {} tokens/s, {:.1f} TFLOP/s a device; MFU {:.1f} %, HFU {:.1f} % of {} TFLOP/s "
      "dense {}; bubble {:.1f} %\n",
      format_seconds(p.step.value),
      p.error > 0 ? fmt::format(" +- {:.0f} %", 100 * p.error) : std::string(),
      format_si(p.tokens_per_s), p.tflops_per_device, 100 * p.mfu, 100 * p.hfu, p.peak.value / 1e12,
      p.peak_format, 100 * p.bubble);
  if (!p.outside.empty()) {
    text += fmt::format("outside of what the profile '{}' was measured on: {}\n",
                        request.cluster.stack.name, join(p.outside, ", "));
  }
  text += "where the time goes, mean over pipeline ranks:\n" + time_text(p);
  text += fmt::format("memory of {} a device, largest first category as alive at the peak:\n",
                      format_bytes(p.memory_limit.value)) +
          memory_text(p);
  text += "critical path:\n";
  for (const std::string& line : p.path) text += "  " + line + "\n";
  if (!p.suggestions.empty()) text += "to change:\n";
  for (const std::string& line : p.suggestions) text += "  " + line + "\n";
  text += fmt::format("compiled in {}, simulated in {} ({} events)\n",
                      format_seconds(p.compile_time.value), format_seconds(p.simulate_time.value),
                      p.result.events);
  return text;
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
  json["step_error"] = p.error;
  json["profile"] = request.cluster.stack.name;
  json["outside_profile"] = Json::list(p.outside);
  json["tokens_per_s"] = p.tokens_per_s;
  json["tflops_per_gpu"] = p.tflops_per_device;
  json["mfu"] = p.mfu;
  json["hfu"] = p.hfu;
  json["peak_format"] = p.peak_format;
  json["peak_tflops"] = p.peak.value / 1e12;
  json["bubble"] = p.bubble;
  json["compute_s"] = mean(p.result, [](const auto& r) { return r.compute.value; });
  Json exposed{JsonObject{}};
  for (const auto& [label, time] : p.exposed_comm) exposed[label] = time.value;
  json["exposed_comm_s"] = std::move(exposed);
  Json peaks{JsonArray{}}, alive{JsonArray{}}, instructions{JsonArray{}}, sent{JsonArray{}};
  for (const simulate::RankResult& rank : p.result.ranks) {
    instructions.push_back(rank.instructions);
    sent.push_back(rank.bytes_sent.value);
  }
  for (const StageMemory& memory : p.memory) {
    peaks.push_back(memory.peak.value);
    alive.push_back(memory.alive.value);
  }
  json["peak_bytes"] = std::move(peaks);
  json["alive_bytes"] = std::move(alive);
  json["instructions"] = std::move(instructions);
  json["bytes_sent"] = std::move(sent);
  json["memory_limit_bytes"] = p.memory_limit.value;
  json["fits"] = p.too_full().empty();
  json["critical_path"] = Json::list(p.path);
  json["suggestions"] = Json::list(p.suggestions);
  json["events"] = p.result.events;
  json["compile_s"] = p.compile_time.value;
  json["simulate_s"] = p.simulate_time.value;
  return json;
}

}  // namespace mw::predict
