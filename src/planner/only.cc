#include "planner/only.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "pipeline/schedule.h"

namespace mw::planner {
namespace {

using compile::Recompute;

constexpr std::array<std::string_view, 10> kKeys = {
    "tp", "pp", "dp", "ep", "chunks", "microbatches", "zero", "sp", "recompute", "schedule"};
// What a search looks at.

template <typename T>
bool is_in(const std::vector<T>& list, const T& one) {
  return list.empty() || std::find(list.begin(), list.end(), one) != list.end();
}

// A key with a value that is refused is taken for one that was not given.
void forget(const std::string& key, Only& only) {
  only.counts.erase(key);
  if (key == "recompute") only.recompute.clear();
  if (key == "schedule") only.schedules.clear();
}

void add_count(const std::string& key, std::string_view value, Only& only,
               Diagnostics& diagnostics) {
  std::vector<int64_t>& counts = only.counts[key];
  const std::string hint = value.find('=') == std::string_view::npos
                               ? ""
                               : fmt::format("; give --only {} for itself", clipped(value));
  if (key == "sp") {
    if (value == "on" || value == "off") return counts.push_back(value == "on" ? 1 : 0);
    return diagnostics.add("--only sp: must be on or off, is '{}'{}", clipped(value), hint);
  }
  const auto number = parse_int64(value);
  const bool zero = key == "zero";
  if (number && *number >= (zero ? 0 : 1) && (!zero || *number <= 3))
    return counts.push_back(*number);
  diagnostics.add("--only {}: must be a whole number {}, is '{}'{}", key,
                  zero ? "from 0 to 3" : "from 1 on", clipped(value), hint);
}

void add_recompute(std::string_view value, Only& only, Diagnostics& diagnostics) {
  for (const Recompute recompute : transform::kRecomputes) {
    if (name_of(recompute) == value) return only.recompute.push_back(recompute);
  }
  diagnostics.add("--only recompute: must be none, selective, selective-op or full, is '{}'",
                  clipped(value));
}

void add_schedule(std::string_view value, Only& only, Diagnostics& diagnostics) {
  const std::vector<std::string> kinds = pipeline::schedule_kinds();
  const std::string kind(value);
  if (is_in(kinds, kind)) return only.schedules.push_back(kind);
  diagnostics.add("--only schedule: there is no '{}'{}; known are {}", clipped(value),
                  did_you_mean(value, std::span<const std::string>(kinds)), join(kinds, ", "));
}

}  // namespace

bool Only::takes(std::string_view key, int64_t value) const {
  const auto there = counts.find(key);
  return there == counts.end() || is_in(there->second, value);
}
bool Only::takes(Recompute value) const { return is_in(recompute, value); }
bool Only::takes_schedule(const std::string& kind) const { return is_in(schedules, kind); }

Only parse_only(const std::vector<std::string>& texts, Diagnostics& diagnostics) {
  Only only;
  std::vector<std::string> seen;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const std::string key(trim(text.substr(0, equals)));
    if (equals == std::string::npos) {
      diagnostics.add("--only: must be KEY=VALUE,VALUE… such as tp=1,2,4,8, is '{}'",
                      clipped(text));
    } else if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      diagnostics.add("--only: there is no key '{}'{}; there are {}", clipped(key),
                      did_you_mean(key, kKeys), join(kKeys, ", "));
    } else if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      diagnostics.add("--only {}: is there twice", key);
    } else {
      seen.push_back(key);
      const size_t before = diagnostics.findings().size();
      for (std::string_view value : split(std::string_view(text).substr(equals + 1), ',')) {
        value = trim(value);
        if (key == "recompute") {
          add_recompute(value, only, diagnostics);
        } else if (key == "schedule") {
          add_schedule(value, only, diagnostics);
        } else {
          add_count(key, value, only, diagnostics);
        }
      }
      if (diagnostics.findings().size() > before) forget(key, only);
    }
  }
  return only;
}

std::string to_string(const Only& only) {
  std::vector<std::string> parts;
  for (const auto& [key, counts] : only.counts) {
    std::vector<std::string> values;
    for (const int64_t count : counts)
      values.push_back(key == "sp" ? (count == 1 ? "on" : "off") : std::to_string(count));
    parts.push_back(fmt::format("{}={}", key, join(values, ",")));
  }
  std::vector<std::string> recompute;
  for (const Recompute one : transform::kRecomputes) {
    if (!only.recompute.empty() && only.takes(one)) recompute.emplace_back(name_of(one));
  }
  if (!recompute.empty()) parts.push_back("recompute=" + join(recompute, ","));
  if (!only.schedules.empty()) parts.push_back("schedule=" + join(only.schedules, ","));
  return join(parts, " ");
}

}  // namespace mw::planner
