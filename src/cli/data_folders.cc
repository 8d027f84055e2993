#include "cli/data_folders.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "cluster/profile.h"

namespace mw::cli {

std::vector<std::string> data_folders(const std::string& kind) {
  std::vector<std::string> folders{kind};
  std::error_code none;
  std::filesystem::path at = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  for (int up = 0; up < 4 && !at.empty(); ++up, at = at.parent_path())
    folders.push_back((at / kind).string());
  return folders;
}

std::string data_folder(const std::string& kind) {
  const std::vector<std::string> folders = data_folders(kind);
  for (const std::string& folder : folders) {
    if (posix_fs().is_directory(folder)) return folder;
  }
  throw_error("there is no folder '{}' here or above the program; looked for {}", kind,
              join(folders, ", "));
}

std::string model_file(FileSystem& fs, const std::string& name) {
  if (ends_with(name, ".json")) return name;
  std::vector<std::string> known;
  for (const std::string& folder : data_folders("models")) {
    const std::string path = join_path(folder, name + ".json");
    if (fs.exists(path)) return path;
    if (!fs.is_directory(folder)) continue;
    for (const std::string& file : fs.list(folder)) {
      if (ends_with(file, ".json")) known.push_back(file.substr(0, file.size() - 5));
    }
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw_error("--model: there is no model '{}'{}; known are {}; or give a file, x.json",
              clipped(name), did_you_mean(name, known), known.empty() ? "none" : join(known, ", "));
}

std::vector<std::string> named_files(FileSystem& fs, const std::string& model,
                                     const std::string& cluster, const std::string& profile) {
  std::vector<std::string> files;
  const auto add = [&](const std::string& name, const std::string& ending, const std::string& kind,
                       const std::string& inside) {
    if (name.empty()) return;
    std::vector<std::string> paths{name};
    if (!ends_with(name, ending)) {
      paths = data_folders(kind);
      for (std::string& path : paths) path = join_path(path, inside + name + ending);
    }
    const auto there =
        std::find_if(paths.begin(), paths.end(), [&](const auto& path) { return fs.exists(path); });
    if (there != paths.end()) files.push_back(*there);
  };
  add(model, ".json", "models", "");
  add(cluster, ".toml", "clusters", "");
  add(cluster::parse_profile_name(profile).name, ".toml", "clusters", "profiles/");
  return files;
}

calibrate::RunFacts published_facts(FileSystem& fs) {
  const std::string folder = data_folder("data/published");
  const std::string amendments = join_path(folder, "amendments.csv");
  calibrate::RunFacts facts;
  facts.amendments = calibrate::parse_amendments(fs.read_file(amendments), amendments);
  facts.families =
      calibrate::read_families(fs, join_path(folder, "families.toml"), data_folders("models"));
  return facts;
}

}  // namespace mw::cli
