#include "base/name.h"

#include <fmt/format.h>

#include <mutex>
#include <set>
#include <vector>

namespace mw {
namespace {

// A thread looks through so many names of its own before it asks for all of them.
constexpr size_t kNear = 32;

const std::string* kept(std::string_view text) {
  static std::mutex mutex;
  static auto& all = *new std::set<std::string, std::less<>>;  // names outlive whatever has one
  const std::lock_guard lock(mutex);
  const auto it = all.find(text);
  return &*(it != all.end() ? it : all.emplace(text).first);
}

const std::string* kept_near(std::string_view text) {
  thread_local std::vector<const std::string*> near;
  for (const std::string* known : near) {
    if (*known == text) return known;
  }
  const std::string* found = kept(text);
  if (near.size() < kNear) near.push_back(found);
  return found;
}

}  // namespace

std::string join(const Names& names, std::string_view separator) {
  return fmt::format("{}", fmt::join(names, separator));
}

Name::Name() {
  static const std::string* const none = kept("");
  text_ = none;
}
Name::Name(std::string_view text) : text_(kept_near(text)) {}

}  // namespace mw
