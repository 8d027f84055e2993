#include "cli/data_folders.h"

#include <filesystem>

#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"

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

}  // namespace mw::cli
