// Names inside a folder of checkpoints, and the manifest's text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fs.h"
#include "base/json.h"

namespace mw::checkpoint {

constexpr std::string_view kManifest = "meshwright.json";
constexpr int64_t kManifestVersion = 1;
// What is being written, and what is being removed: never read.
constexpr std::string_view kTemporary = ".tmp";
constexpr std::string_view kDeleted = ".deleted";
// A complete checkpoint that a new one of the same step is about to replace; it counts as long as
// the new one is not there.
constexpr std::string_view kReplaced = ".replaced";

// "step-000020"
std::string step_name(int64_t step);
// "step-000020" and the suffix; nullopt for any other name.
std::optional<int64_t> parse_step_name(std::string_view name, std::string_view suffix = "");

// The folder of a step's complete checkpoint, "" where there is none.
std::string find_step(FileSystem& fs, const std::string& folder, int64_t step);

// The manifest with its own checksum as last key, and back. unseal throws Error for text that was
// changed.
std::string seal_manifest(Json manifest);
Json unseal_manifest(std::string_view text, const std::string& path);

}  // namespace mw::checkpoint
