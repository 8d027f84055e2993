#include "cli/plan_file.h"

#include <filesystem>

#include "base/text.h"
#include "cluster/profile.h"

namespace mw::cli {
namespace {

// Calls change(path) for every entry that is one, not a name.
template <typename Change>
void change_paths(compile::PlannedStep& step, const Change& change) {
  if (ends_with(step.model, ".json")) change(step.model);
  if (ends_with(step.cluster, ".toml")) change(step.cluster);
  auto [profile, version] = cluster::parse_profile_name(step.profile);
  if (!ends_with(profile, ".toml")) return;
  change(profile);
  step.profile = version.empty() ? profile : profile + ":" + version;
}

}  // namespace

compile::PlannedStep beside_plan_file(compile::PlannedStep step, const std::string& plan_file) {
  change_paths(step, [&](std::string& path) {
    if (path.starts_with('/')) return;
    path = std::filesystem::relative(path, parent_path(plan_file)).string();
  });
  return step;
}

compile::PlannedStep from_plan_file(FileSystem& fs, compile::PlannedStep step,
                                    const std::string& plan_file) {
  const std::string folder = parent_path(plan_file);
  change_paths(step, [&](std::string& path) {
    const std::string beside = folder == "." ? path : join_path(folder, path);
    if (fs.exists(beside)) path = beside;
  });
  return step;
}

}  // namespace mw::cli
