#include "checkpoint/layout.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace mw::checkpoint {
namespace {

constexpr std::string_view kChecksum = "checksum";

}  // namespace

std::string step_name(int64_t step) { return fmt::format("step-{:06}", step); }

std::optional<int64_t> parse_step_name(std::string_view name, std::string_view suffix) {
  constexpr std::string_view kPrefix = "step-";
  if (!starts_with(name, kPrefix) || !ends_with(name, suffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(suffix.size());
  const auto step = parse_int64(name);
  // One name a step: "step-20" is not ours.
  if (!step || *step < 0 || step_name(*step) != fmt::format("{}{}", kPrefix, name))
    return std::nullopt;
  return step;
}

std::string find_step(FileSystem& fs, const std::string& folder, int64_t step) {
  const std::string path = join_path(folder, step_name(step));
  for (const std::string& candidate : {path, path + std::string(kReplaced)}) {
    if (fs.is_directory(candidate)) return candidate;
  }
  return "";
}

std::string seal_manifest(Json manifest) {
  const std::string checksum = xxh3_128(manifest.dump()).hex();
  manifest[kChecksum] = checksum;
  return manifest.dump_pretty();
}

Json unseal_manifest(std::string_view text, const std::string& path) {
  const Json sealed = parse_json(text, path);
  const std::string& checksum = sealed.at(kChecksum, path).as_string(path + ": checksum");
  JsonObject manifest = sealed.as_object(path);
  manifest.erase(kChecksum);
  Json json(std::move(manifest));
  if (const std::string is = xxh3_128(json.dump()).hex(); is != checksum) {
    throw_error("{}: the checksum of its content is {}, must be {}; the file was damaged or edited",
                path, is, checksum);
  }
  return json;
}

}  // namespace mw::checkpoint
