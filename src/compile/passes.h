// The compiler's passes by name: each can be switched off, and no bit of a loss or a weight
// changes.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

namespace mw::compile {

struct PassInfo {
  std::string_view name, description;
};
// In the order in which they run. Those of room transform that may be left out, and the compiler's
// own.
std::span<const PassInfo> passes();

class PassSet {
 public:
  // All passes but these. Throws Error for unknown names, all together, with the near misses.
  explicit PassSet(std::set<std::string> without = {});

  bool runs(std::string_view name) const { return !without_.contains(std::string(name)); }
  const std::set<std::string>& without() const { return without_; }

 private:
  std::set<std::string> without_;
};

inline constexpr std::string_view kShareStages = "share_stages";
inline constexpr std::string_view kFoldAccumulate = "fold_accumulate";
inline constexpr std::string_view kRemake = "remake";
inline constexpr std::string_view kOverlap = "overlap";
inline constexpr std::string_view kGatherAhead = "gather_ahead";
inline constexpr std::string_view kBucket = "bucket";

}  // namespace mw::compile
