// What a search found, for people and as JSON.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/count.h"
#include "base/text.h"
#include "cluster/slice.h"
#include "planner/front.h"
#include "planner/planner.h"
#include "predict/lacking.h"
#include "predict/page.h"

namespace mw::planner {
namespace {

std::vector<std::string> outside(const Request& request, const Candidate& candidate) {
  predict::Request of = request.base;
  of.plan = candidate.plan;
  return predict::outside_profile(of);
}

std::string row(const Request& request, const Candidate& candidate, const Candidate& best,
                Bytes limit) {
  std::string text = fmt::format(
      "  {:>10} {:>7} % {:>10} {:>4.0f} %  {}\n", format_seconds(candidate.step.value),
      predict::percent_text(candidate.mfu), format_bytes(candidate.needed.value),
      100 * static_cast<double>(candidate.needed.value) / static_cast<double>(limit.value),
      short_form(candidate.plan));
  if (&candidate == &best) return text;
  text += std::string(41, ' ') + loss(best, candidate);
  // What the best has too is told once.
  const std::vector<std::string> known = outside(request, best);
  std::vector<std::string> more;
  for (const std::string& one : outside(request, candidate)) {
    if (std::find(known.begin(), known.end(), one) == known.end()) more.push_back(one);
  }
  if (!more.empty()) text += "; outside of the profile: " + join(more, ", ");
  return text + "\n";
}

std::string with_sign(double seconds) { return (seconds < 0 ? "" : "+") + format_seconds(seconds); }

// Where `other` takes longer than `best`, then where it gains; what is too little to be told by
// itself is told together. They add up to the difference.
std::vector<std::string> parts_of(const Candidate& best, const Candidate& other) {
  constexpr double kToldAlone = 0.05, kTold = 0.01;  // of the largest
  std::map<std::string, double> differences = other.seconds;
  for (const auto& [name, seconds] : best.seconds) differences[name] -= seconds;
  double largest = 0, rest = 0;
  for (const auto& [name, seconds] : differences) largest = std::max(largest, std::abs(seconds));
  std::vector<std::pair<double, std::string>> told;
  for (const auto& [name, seconds] : differences) {
    if (std::abs(seconds) >= kToldAlone * largest) {
      told.emplace_back(seconds, name);
    } else {
      rest += seconds;
    }
  }
  std::sort(told.begin(), told.end(), std::greater<>());
  if (std::abs(rest) >= kTold * largest) told.emplace_back(rest, "the rest");
  std::vector<std::string> parts;
  for (const auto& [seconds, name] : told) parts.push_back(name + " " + with_sign(seconds));
  return parts;
}

Json peaks_json(const Candidate& candidate) {
  Json peaks{JsonArray{}};
  for (const Bytes bytes : candidate.peak) peaks.push_back(bytes.value);
  return peaks;
}

Json plan_json(const Request& request, const Candidate& best, const Candidate& candidate) {
  Json json{JsonObject{}};
  json["plan"] = compile::to_json(candidate.plan);
  json["short"] = short_form(candidate.plan);
  json["step_s"] = candidate.step.value;
  json["tokens_per_s"] = candidate.tokens_per_s;
  json["mfu"] = candidate.mfu;
  json["peak_bytes"] = peaks_json(candidate);
  json["memory_needed_bytes"] = candidate.needed.value;
  json["loses"] = loss(best, candidate);
  json["outside_profile"] = Json::list(outside(request, candidate));
  return json;
}

}  // namespace

std::string loss(const Candidate& best, const Candidate& other) {
  const double lost = other.step.value - best.step.value;
  if (lost <= 0) return "equal";
  return fmt::format("{} (+{}): {}", format_change(lost / best.step.value), format_seconds(lost),
                     join(parts_of(best, other), ", "));
}

std::vector<std::string> notes(const Request& request) {
  constexpr int64_t kLong = 1 << 13;  // tokens of sequences that are divided as a rule
  std::vector<std::string> notes;
  if (request.base.model.mixture.experts > 0 && request.method == Method::kPtdP) {
    notes.emplace_back(
        "the rules of ptdp know no ep: every device of a stage holds all of its experts (or their "
        "parts); use --planner exhaustive");
  }
  if (request.base.seq_len >= kLong)
    notes.emplace_back("cp is not searched: no plan divides sequences; simulate --plan takes cp=…");
  const std::vector<std::string> lacking = predict::all_lacking(request.base.cluster.stack);
  if (!lacking.empty() && request.method == Method::kExhaustive) {
    notes.push_back(
        fmt::format("not searched, as the engine of '{}' has none: {}; --only takes what it names",
                    request.base.cluster.stack.name, join(lacking, ", ")));
  }
  return notes;
}

std::string to_text(const Request& request, const Found& found, int64_t top) {
  const Candidate& best = found.plans.front();
  std::string text = fmt::format(
      "{} on {} of {}, global batch {}\nbest plan     {}\nstep          {}{}   {} tokens/s   "
      "MFU {} %\nmemory        {} of {} {}\nsearched      {}, {} "
      "simulated, {}\n",
      request.base.model.source, request.gpus,
      cluster::slice_name(request.base.cluster, request.gpus), request.base.global_batch,
      short_form(best.plan), format_seconds(best.step.value),
      predict::error_text(request.base.cluster.stack.error, !outside(request, best).empty()),
      format_si(best.tokens_per_s), predict::percent_text(best.mfu),
      format_bytes(best.needed.value), predict::limit_text(request.base.cluster.device),
      found.shared ? "that all ranks share" : "on the fullest rank",
      counted(found.candidates, "plan") +
          (request.only.empty() ? "" : fmt::format(" with {}", to_string(request.only))),
      found.simulated, format_seconds(found.search.value));
  if (found.not_simulated > 0) {
    text += fmt::format("not simulated {} of the best by estimates, as their programs are long\n",
                        found.not_simulated);
  }
  text += predict::outside_text(request.base.cluster.stack.name, outside(request, best));
  for (const std::string& note : notes(request)) text += note + "\n";
  for (const Choice& choice : found.choices)
    text += fmt::format("{:<24} {}\n", choice.what, choice.rule);
  const auto count = std::min(found.plans.size(), static_cast<size_t>(std::max<int64_t>(1, top)));
  if (count > 1) text += "\nthe fastest, and what the others lose and gain:\n";
  for (size_t i = 0; i < count && count > 1; ++i)
    text += row(request, found.plans[i], best, found.memory_limit);
  if (found.front.size() > 1) text += "\nless memory for more time:\n";
  const Candidate* before = nullptr;
  for (const size_t i : found.front) {
    const Candidate& here = found.plans[i];
    if (found.front.size() == 1 ||
        (before != nullptr && static_cast<double>(here.needed.value) >
                                  Front::kLess * static_cast<double>(before->needed.value)))
      continue;
    text += row(request, here, best, found.memory_limit);
    before = &here;
  }
  return text;
}

Json to_json(const Request& request, const Found& found, int64_t top) {
  const Candidate& best = found.plans.front();
  Json json{JsonObject{}};
  json["model"] = request.base.model.source;
  json["cluster"] = request.base.cluster.name;
  json["gpus"] = request.gpus;
  json["planner"] = request.method == Method::kPtdP ? "ptdp" : "exhaustive";
  json["plan"] = compile::to_json(best.plan);
  json["short"] = short_form(best.plan);
  json["step_s"] = best.step.value;
  json["step_error"] = predict::error_json(request.base.cluster.stack.error);
  json["profile"] = request.base.cluster.stack.name;
  json["outside_profile"] = Json::list(outside(request, best));
  json["tokens_per_s"] = best.tokens_per_s;
  json["mfu"] = best.mfu;
  json["peak_bytes"] = peaks_json(best);
  json["memory_limit_bytes"] = found.memory_limit.value;
  json["memory_needed_bytes"] = best.needed.value;
  json["search_s"] = found.search.value;
  json["candidates"] = found.candidates;
  json["only"] = to_string(request.only);
  json["simulated"] = found.simulated;
  json["not_simulated"] = found.not_simulated;
  json["notes"] = Json::list(notes(request));
  Json alternatives{JsonArray{}}, front{JsonArray{}}, choices{JsonArray{}};
  for (size_t i = 1; i < found.plans.size() && static_cast<int64_t>(i) < top; ++i)
    alternatives.push_back(plan_json(request, best, found.plans[i]));
  for (const size_t i : found.front) front.push_back(plan_json(request, best, found.plans[i]));
  for (const Choice& choice : found.choices) {
    Json one{JsonObject{}};
    one["what"] = choice.what;
    one["rule"] = choice.rule;
    choices.push_back(std::move(one));
  }
  json["alternatives"] = std::move(alternatives);
  json["front"] = std::move(front);
  json["choices"] = std::move(choices);
  return json;
}

}  // namespace mw::planner
