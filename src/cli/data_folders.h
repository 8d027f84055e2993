// Where the data files that come with the program lie.
#pragma once

#include <string>
#include <vector>

#include "base/fs.h"
#include "calibrate/runs.h"

namespace mw::cli {

// Folders for files of this kind ("clusters", "models", "data/published"): here, or beside the
// program or above it; they need not be there.
std::vector<std::string> data_folders(const std::string& kind);
// The first of them that is there. Throws Error where none is.
std::string data_folder(const std::string& kind);
// The file of a model that is named, or the file itself. Throws Error with the near miss.
std::string model_file(FileSystem& fs, const std::string& name);
// The files of a model, a cluster and a profile as the options name them, of those that there are.
std::vector<std::string> named_files(FileSystem& fs, const std::string& model,
                                     const std::string& cluster, const std::string& profile);
// data/published/amendments.csv and families.toml.
calibrate::RunFacts published_facts(FileSystem& fs);

}  // namespace mw::cli
