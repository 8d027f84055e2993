// Comparisons for people and as JSON.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/validate.h"

namespace mw::calibrate {
std::string layout(const Run& run) {
  std::string text = run.tp == 0   ? "any layout"
                     : run.pp == 0 ? fmt::format("tp={}", run.tp)
                                   : fmt::format("tp={} pp={} dp={}", run.tp, run.pp, run.dp);
  if (run.cp > 1) text += fmt::format(" cp={}", run.cp);
  if (run.ep > 1) text += fmt::format(" ep={}", run.ep);
  if (!pipeline::is_usual(*pipeline::published_kind(run.schedule).kind)) text += " " + run.schedule;
  if (run.vpp > 1) text += fmt::format(" v={}", run.vpp);
  if (run.zero > 0) text += fmt::format(" zero={}", run.zero);
  if (run.micro_batch > 0) text += fmt::format(" mb={}", run.micro_batch);
  return text + (run.sp ? " sp " : " ") + run.recompute;
}

namespace {

std::string table(const std::vector<Summary>& summaries) {
  std::string text = fmt::format("{:<72} {:>5} {:>8} {:>8} {:>9} {:>6}\n", "source", "rows", "mean",
                                 "bias", "worst", "rank");
  for (const Summary& s : summaries) {
    text += fmt::format(
        "{:<72.72} {:>5} {:>8} {:>8} {:>9} {:>6}\n", s.name, s.rows, format_percent(s.mean),
        format_change(s.bias), format_change(s.worst),
        s.rows > 2 && s.rank_correlation ? fmt::format("{:.3f}", *s.rank_correlation) : "");
  }
  return text;
}

void add_memory(const std::vector<Comparison>& comparisons, std::string& text) {
  bool first = true;
  for (const Comparison& c : comparisons) {
    if (!c.reason.empty() || c.run.memory_GiB <= 0) continue;
    if (first) text += "\nmemory of the fullest device, GiB:\n";
    first = false;
    text += fmt::format("  {:<20} {:<36} published {:6.1f} predicted {:6.1f} {:>8}\n", c.run.model,
                        layout(c.run), c.run.memory_GiB, c.predicted_GiB,
                        format_change(c.predicted_GiB / c.run.memory_GiB - 1));
  }
}

// The row's cells where they are not all understood.
std::string plan_text(const Run& run) {
  if (run.findings.empty()) return layout(run);
  std::string text;
  for (const auto& [column, cell] : run.columns) {
    if ((column == "tp" || column == "pp" || column == "dp") && !cell.empty())
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", column, cell);
  }
  return text;
}

std::string published_words(const Comparison& c) {
  if (c.published > 0) return format_seconds(c.published);
  return c.run.value > 0 ? fmt::format("place {:g}", c.run.value) : "nothing";
}

// A number where the cell is one; null where it is empty.
Json cell(const std::string& text) {
  if (text.empty()) return {};
  if (const std::optional<int64_t> integer = parse_int64(text)) return *integer;
  if (const std::optional<double> number = parse_double(text); number && std::isfinite(*number))
    return *number;
  return text;
}

}  // namespace

std::string to_text(const std::vector<Comparison>& comparisons, bool rows) {
  std::string text;
  std::vector<const Comparison*> fit, check, assumed;
  int open = 0;
  for (const Comparison& c : comparisons) {
    if (!c.reason.empty()) {
      ++open;
    } else if (c.published <= 0) {
      continue;
    } else if (!c.assumed.empty()) {
      assumed.push_back(&c);
    } else {
      (c.run.fits() ? fit : check).push_back(&c);
    }
  }
  if (rows) {
    std::string source;
    for (const Comparison& c : comparisons) {
      if (source_name(c.run.source) != source) {
        source = source_name(c.run.source);
        text += fmt::format("{}\n", source);
      }
      const std::string head =
          fmt::format("  {:<16.16} {:<38} {:>5} x {:<18.18} {:<5}", c.run.model, plan_text(c.run),
                      c.run.gpus > 0 ? fmt::format("{}", c.run.gpus) : "?", c.run.gpu, c.run.use);
      if (!c.reason.empty()) {
        const std::string line = c.run.findings.empty() ? "" : fmt::format("line {}: ", c.run.line);
        text += fmt::format("{} not simulated: {}{}\n", head, line, c.reason);
        continue;
      }
      text +=
          fmt::format("{} published {:>9} predicted {:>9} {:>8}{}{}\n", head, published_words(c),
                      format_seconds(c.predicted), c.published > 0 ? format_change(c.error) : "",
                      c.assumed.empty() ? "" : "  with " + c.assumed,
                      c.fits ? "" : "  beyond the device's memory");
    }
    text += "\n";
  }
  std::vector<Summary> all = summaries(comparisons);
  const auto add = [&](const char* name, const std::vector<const Comparison*>& of) {
    if (!of.empty()) all.push_back(summary(name, of));
  };
  add("rows that profiles are fitted on", fit);
  add("rows that are only compared", check);
  add("rows of which something is assumed", assumed);
  text += table(all);
  if (open > 0)
    text += fmt::format("{} not simulated\n",
                        open == 1 ? "1 row is" : fmt::format("{} rows are", open));
  std::map<std::string, int> amended;
  for (const Comparison& c : comparisons) {
    if (!c.run.amended.empty()) ++amended[c.run.amended];
  }
  for (const auto& [what, rows_of] : amended) text += fmt::format("{} rows: {}\n", rows_of, what);
  add_memory(comparisons, text);
  return text;
}

std::string left_out_text(const std::vector<Comparison>& comparisons, const Machines& machines) {
  std::vector<const cluster::Profile*> profiles;
  for (const Comparison& c : comparisons) {
    if (!c.reason.empty()) continue;
    const cluster::Profile* profile = profile_of(c.run, machines);
    if (profile == nullptr || profile->left_out.empty()) continue;
    if (std::find(profiles.begin(), profiles.end(), profile) == profiles.end())
      profiles.push_back(profile);
  }
  if (profiles.empty()) return "";
  std::string text =
      fmt::format("\n{:<72} {:>5} {:>8} {:>18}\n", "left out of a profile's fit, then predicted",
                  "rows", "mean", "worst");
  for (const cluster::Profile* profile : profiles) {
    text += profile->name + "\n";
    for (const cluster::LeftOut& out : profile->left_out) {
      text += fmt::format("  {:<70} {:>5} {:>8} {:>18}\n", ending_of(out.name, 70), out.runs,
                          format_percent(out.mean), format_change(out.worst));
    }
  }
  return text;
}

Json to_json(const std::vector<Summary>& summaries) {
  JsonArray list;
  for (const Summary& s : summaries) {
    list.push_back(Json(
        JsonObject{{"source", s.name},
                   {"rows", s.rows},
                   {"mean", s.mean},
                   {"bias", s.bias},
                   {"worst", s.worst},
                   {"rank_correlation", s.rank_correlation ? Json(*s.rank_correlation) : Json()}}));
  }
  return Json(std::move(list));
}

Json to_json(const std::vector<Comparison>& comparisons) {
  JsonArray list;
  for (const Comparison& c : comparisons) {
    JsonObject row;
    for (const auto& [column, text] : c.run.columns) row[column] = cell(text);
    if (!c.run.amended.empty()) row["amended"] = c.run.amended;
    if (c.reason.empty()) {
      row["predicted"] = c.predicted;
      row["published"] = c.published > 0 ? Json(c.published) : Json();
      row["error"] = c.published > 0 ? Json(c.error) : Json();
      row["predicted_memory_GiB"] = c.predicted_GiB;
      row["fits"] = c.fits;
      row["assumed"] = c.assumed.empty() ? Json() : Json(c.assumed);
      if (c.run.value <= 0) row["reason"] = "value: is empty; nothing is published to compare with";
    } else {
      row["predicted"] = nullptr;
      const double published = published_step(c.run);
      row["published"] = published > 0 ? Json(published) : Json();
      row["error"] = nullptr;
      row["reason"] = c.reason;
    }
    list.push_back(Json(std::move(row)));
  }
  return Json(std::move(list));
}

}  // namespace mw::calibrate
