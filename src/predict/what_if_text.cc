// A table of what-if for people and as JSON.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "base/text.h"
#include "predict/page.h"
#include "predict/what_if.h"

namespace mw::predict {
namespace {

double exposed(const Prediction& p) {
  double sum = 0;
  for (const auto& [label, time] : p.exposed_comm) sum += time.value;
  return sum;
}

using Row = std::vector<std::string>;

// What keeps a row from being taken at its word: "with chunks=2; does not fit; outside of the
// profile: tp 16 (measured 1 to 8)". What the first row has too stands once, below the table or
// above it.
std::string remarks(const Prediction& base, const Prediction& p, const std::string& followers) {
  std::vector<std::string> texts;
  if (!followers.empty()) texts.push_back(followers);
  if (!p.too_full().empty()) texts.emplace_back("does not fit");
  std::vector<std::string> outside;
  for (const std::string& one : p.outside) {
    if (std::find(base.outside.begin(), base.outside.end(), one) == base.outside.end())
      outside.push_back(one);
  }
  if (!outside.empty()) texts.push_back("outside of the profile: " + join(outside, ", "));
  return join(texts, "; ");
}

// `devices`: with their number.
Row figures(const Prediction& base, const Prediction& p, bool is_base, bool devices,
            const std::string& followers = "") {
  Row row;
  if (devices) row.push_back(std::to_string(p.devices));
  const Row more{format_seconds(p.step.value),
                 is_base ? "" : format_change(p.step.value / base.step.value - 1),
                 format_si(p.tokens_per_s),
                 percent_text(p.mfu) + " %",
                 format_percent(p.bubble),
                 format_seconds(exposed(p)),
                 format_bytes(p.needed().value),
                 remarks(base, p, followers)};
  row.insert(row.end(), more.begin(), more.end());
  return row;
}

// Columns to the right, but for the last one and the first `left`.
std::string lay_out(const std::vector<Row>& rows, size_t left) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const bool last = c + 1 == widths.size();
      line += last       ? row[c]
              : c < left ? fmt::format("{:<{}}", row[c], widths[c])
                         : fmt::format("{:>{}}", row[c], widths[c]);
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Json figures_json(const Request& request, const Prediction& base, const Prediction& p) {
  Json json{JsonObject{}};
  json["plan"] = compile::short_form(request.plan);
  json["devices"] = p.devices;
  json["step_s"] = p.step.value;
  json["step_error"] = error_json(p.error);
  json["outside_profile"] = Json::list(p.outside);
  json["speedup"] = base.step.value / p.step.value;
  json["tokens_per_s"] = p.tokens_per_s;
  json["tflops_per_gpu"] = p.tflops_per_device;
  json["mfu"] = p.mfu;
  json["hfu"] = p.hfu;
  json["bubble"] = p.bubble;
  json["exposed_comm_s"] = exposed_json(p);
  json["peak_bytes"] = peaks_json(p);
  json["memory_limit_bytes"] = p.memory_limit.value;
  json["memory_needed_bytes"] = p.needed().value;
  json["fits"] = p.too_full().empty();
  return json;
}

Row heads(bool devices) {
  Row row{"step", "change", "tokens/s", "MFU", "bubble", "exposed", "memory", ""};
  if (devices) row.insert(row.begin(), "devices");
  return row;
}

}  // namespace

std::string comparison_text(const std::vector<const Request*>& requests,
                            const std::vector<const Prediction*>& predictions,
                            const std::vector<Goodput>& goodputs) {
  const bool devices =
      std::any_of(predictions.begin(), predictions.end(),
                  [&](const Prediction* p) { return p->devices != predictions[0]->devices; });
  std::vector<Row> table(1);
  table[0].emplace_back("compared");
  if (!goodputs.empty()) table[0].emplace_back("goodput");
  for (std::string& head : heads(devices)) table[0].push_back(std::move(head));
  for (size_t i = 0; i < requests.size(); ++i) {
    table.push_back({compile::short_form(requests[i]->plan)});
    if (!goodputs.empty()) table.back().push_back(format_percent(goodputs[i].goodput, 2));
    for (std::string& cell : figures(*predictions.front(), *predictions[i], i == 0, devices))
      table.back().push_back(std::move(cell));
  }
  return lay_out(table, 1);
}

std::string to_text(const Prediction& base, const std::vector<Variation>& variations,
                    const std::vector<WhatIf>& rows) {
  const bool devices = std::any_of(rows.begin(), rows.end(), [&](const WhatIf& what) {
    return what.prediction && what.prediction->devices != base.devices;
  });
  std::vector<Row> table(1);
  for (const Variation& variation : variations) table[0].push_back(variation.key);
  for (std::string& head : heads(devices)) table[0].push_back(std::move(head));
  Row first(variations.size());
  first[0] = "as it is";
  for (std::string& cell : figures(base, base, true, devices)) first.push_back(std::move(cell));
  first[variations.size() + (devices ? 1 : 0)] += error_text(base.error, !base.outside.empty());
  table.push_back(std::move(first));
  for (const WhatIf& what : rows) {
    Row row = what.values;
    if (what.prediction) {
      for (std::string& cell : figures(base, *what.prediction, false, devices, what.followers))
        row.push_back(std::move(cell));
    } else {
      row.resize(table[0].size() - 1);
      row[variations.size()] = "-";
      row.push_back(what.reason);
    }
    table.push_back(std::move(row));
  }
  return lay_out(table, 0) + remarks_text(base);
}

Json to_json(const Request& request, const Prediction& base,
             const std::vector<Variation>& variations, const std::vector<WhatIf>& rows) {
  Json json{JsonObject{}};
  json["base"] = figures_json(request, base, base);
  Json list{JsonArray{}};
  for (const WhatIf& what : rows) {
    Json row{JsonObject{}};
    Json values{JsonObject{}};
    for (size_t v = 0; v < variations.size(); ++v) {
      Json& value = values[variations[v].key];
      if (const auto whole = parse_int64(what.values[v])) {
        value = *whole;
      } else if (const auto number = parse_double(what.values[v])) {
        value = *number;
      } else {
        value = what.values[v];
      }
    }
    row["values"] = std::move(values);
    if (!what.followers.empty()) row["follows"] = what.followers;
    if (what.prediction) {
      const Json numbers = figures_json(what.request, base, *what.prediction);
      for (const auto& [key, value] : numbers.as_object("what-if")) row[key] = value;
    } else {
      row["plan"] = what.has_request ? Json(compile::short_form(what.request.plan)) : Json();
      row["reason"] = what.reason;
    }
    list.push_back(std::move(row));
  }
  json["rows"] = std::move(list);
  return json;
}

}  // namespace mw::predict
