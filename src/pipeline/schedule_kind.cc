#include "pipeline/schedule_kind.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace mw::pipeline {
namespace {

template <typename Holds>
const ScheduleKind* first_where(const Holds& holds) {
  const auto kinds = listed_kinds();
  const auto found =
      std::find_if(kinds.begin(), kinds.end(), [&](const ScheduleKind* k) { return holds(*k); });
  return found == kinds.end() ? nullptr : *found;
}

template <typename Holds>
std::vector<std::string> names_where(const Holds& holds) {
  std::vector<std::string> names;
  for (const ScheduleKind* kind : listed_kinds()) {
    if (holds(*kind)) names.emplace_back(kind->name);
  }
  return names;
}

bool names(const char* other, const ScheduleKind& kind) {
  return other != nullptr && std::string_view(other) == kind.name;
}

}  // namespace

const ScheduleKind* find_kind(const std::string& name) {
  static const std::unordered_map<std::string_view, const ScheduleKind*> by_name = [] {
    std::unordered_map<std::string_view, const ScheduleKind*> kinds;
    for (const ScheduleKind* kind : listed_kinds()) kinds.emplace(kind->name, kind);
    return kinds;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

const ScheduleKind& kind_of(const std::string& name) {
  const ScheduleKind* found = find_kind(name);
  if (found == nullptr) found = find_kind(kUsualKind);
  MW_CHECK(found != nullptr, "no kind {}", kUsualKind);
  return *found;
}

PublishedKind published_kind(const std::string& name) {
  for (const ScheduleKind* kind : listed_kinds()) {
    for (const NamedLimit& limit : kind->limits) {
      if (name == limit.name) return {kind, limit.ranks};
    }
  }
  return {&kind_of(name), 0};
}

std::vector<std::string> published_names() {
  std::vector<std::string> all = all_schedule_kinds();
  for (const ScheduleKind* kind : listed_kinds()) {
    for (const NamedLimit& limit : kind->limits) all.emplace_back(limit.name);
  }
  return all;
}

std::string kind_finding(const std::string& name) {
  if (find_kind(name) != nullptr) return "";
  const std::vector<std::string> all = all_schedule_kinds();
  return fmt::format("schedule '{}' is unknown{}; it must be one of {}", name,
                     did_you_mean(name, all), join(all, ", "));
}

std::vector<std::string> all_schedule_kinds() {
  return names_where([](const ScheduleKind&) { return true; });
}
std::vector<std::string> schedule_kinds() {
  return names_where([](const ScheduleKind& kind) { return kind.runs(); });
}
std::vector<std::string> kinds_with(bool KindOptions::* option) {
  return names_where([&](const ScheduleKind& kind) { return kind.options.*option; });
}

const ScheduleKind& kind_with_chunks(const ScheduleKind& kind, int64_t chunks) {
  if (chunks == 1 && kind.variant.one_chunk != nullptr) return kind_of(kind.variant.one_chunk);
  if (kind.chunks.holds(chunks)) return kind;
  const ScheduleKind* several = first_where([&](const ScheduleKind& other) {
    return names(other.variant.one_chunk, kind) && other.chunks.holds(chunks);
  });
  return several == nullptr ? kind : *several;
}

const ScheduleKind* with_split_backward(const ScheduleKind& kind) {
  return first_where(
      [&](const ScheduleKind& other) { return names(other.variant.whole_backward, kind); });
}

const ScheduleKind* shorter_in_same_memory(const ScheduleKind& kind) {
  return first_where(
      [&](const ScheduleKind& other) { return names(other.variant.same_memory, kind); });
}

bool is_usual(const ScheduleKind& kind) { return names(kUsualKind, kind_with_chunks(kind, 1)); }

}  // namespace mw::pipeline
