#include "checkpoint/store.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/text.h"
#include "checkpoint/layout.h"

namespace mw::checkpoint {
namespace {

std::vector<std::string> names_of(const TensorFiles& files) {
  std::vector<std::string> names;
  for (const SafetensorsFile& shard : files.shards()) {
    for (const TensorSpec& tensor : shard.tensors()) names.push_back(tensor.name);
  }
  return names;
}

}  // namespace

std::vector<int64_t> list_steps(FileSystem& fs, const std::string& folder) {
  std::vector<int64_t> steps;
  if (!fs.is_directory(folder)) return steps;
  for (const std::string& name : fs.list(folder)) {
    for (const std::string_view suffix : {std::string_view(), kReplaced}) {
      if (const auto step = parse_step_name(name, suffix)) steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::string newest_step(FileSystem& fs, const std::string& folder) {
  const std::vector<int64_t> steps = list_steps(fs, folder);
  return steps.empty() ? "" : join_path(folder, step_name(steps.back()));
}

bool is_checkpoint(FileSystem& fs, const std::string& folder) {
  return fs.exists(join_path(folder, kManifest));
}

CheckpointReader CheckpointReader::at_step(FileSystem& fs, const std::string& folder,
                                           int64_t step) {
  const std::string path = find_step(fs, folder, step);
  if (!path.empty()) return open(fs, path);
  std::vector<std::string> steps;
  for (const int64_t known : list_steps(fs, folder)) steps.push_back(std::to_string(known));
  throw_error("{}: has no checkpoint of step {}; it has {}", folder, step,
              steps.empty() ? "none" : "those of the steps " + join(steps, ", "));
}

CheckpointReader CheckpointReader::latest(FileSystem& fs, const std::string& folder) {
  const std::vector<int64_t> steps = list_steps(fs, folder);
  if (steps.empty()) {
    throw_error("{}: has no checkpoint (a folder such as {})", folder, step_name(20));
  }
  std::string before;
  if (steps.size() > 1) {
    before = fmt::format("{}: the checkpoint before it, the newest without {}, is {}", folder,
                         find_step(fs, folder, steps.back()),
                         find_step(fs, folder, steps[steps.size() - 2]));
  }
  try {
    CheckpointReader reader = at_step(fs, folder, steps.back());
    reader.before_ = std::move(before);
    return reader;
  } catch (const Error& error) {
    // A writer may have put a newer one in its place meanwhile.
    if (const std::vector<int64_t> now = list_steps(fs, folder);
        !now.empty() && now.back() > steps.back())
      return latest(fs, folder);
    std::vector<std::string> findings = error.findings();
    if (!before.empty()) findings.push_back(before);
    throw Error(std::move(findings));
  }
}

CheckpointReader CheckpointReader::open(FileSystem& fs, const std::string& path) {
  CheckpointReader reader;
  reader.fs_ = &fs;
  reader.path_ = path;
  while (ends_with(reader.path_, "/")) reader.path_.pop_back();
  reader.read_manifest();
  Diagnostics out;
  const std::set<std::string> bad = reader.check_files(out);
  for (auto& [name, files] : reader.groups_)
    files = TensorFiles::open(fs, reader.path_, name, out, bad);
  if (bad.empty()) reader.check_tensors(out);
  out.throw_if_any();
  return reader;
}

void CheckpointReader::read_manifest() {
  const std::string path = join_path(path_, kManifest);
  if (fs_->is_directory(path_) && !is_checkpoint(*fs_, path_)) {
    const std::string newest = newest_step(*fs_, path_);
    throw_error(
        "{}: is no checkpoint, for it has no {}{}", path_, kManifest,
        newest.empty() ? "" : fmt::format("; its checkpoints are folders such as {}", newest));
  }
  const std::string text = fs_->read_file(path);
  // The version first: a newer manifest may be sealed in another way.
  const Json unchecked = parse_json(text, path);
  const int64_t version = unchecked.at("version", path).as_integer(path + ": version");
  if (version != kManifestVersion) {
    throw_error("{}: version is {}, must be {}; it was written by another version of meshwright",
                path, version, kManifestVersion);
  }
  const Json manifest = unseal_manifest(text, path);
  JsonReader reader(manifest, path);
  reader.ignore("version");
  step_ = reader.integer("step", {.min = 0});
  const Json* run_state = reader.raw("run_state");
  run_state_ = run_state ? *run_state : Json();
  for (const std::string& group : reader.strings("groups"))
    groups_.emplace_back(group, TensorFiles());
  JsonReader files = reader.object("files");
  for (const std::string& file : files.keys()) {
    JsonReader record = files.object(file);
    files_[file] = {Bytes(record.integer("bytes", {.min = 0})), record.string("xxh3"), {}};
  }
  const std::string where = path + ": tensors";
  for (const auto& [name, hash] : manifest.at("tensors", path).as_object(where)) {
    tensor_hashes_[name] = hash.as_string(where + "." + name);
  }
}

bool CheckpointReader::check_hash(const std::string& name, const FileRecord& record,
                                  Diagnostics& out) const {
  const std::string is = xxh3_128(record.content.bytes).hex();
  if (is == record.hash) return true;
  out.add("{}: checksum is {}, must be {}; the file was changed", join_path(path_, name), is,
          record.hash);
  return false;
}

std::set<std::string> CheckpointReader::check_files(Diagnostics& out) {
  std::set<std::string> bad;
  for (auto& [name, record] : files_) {
    const std::string path = join_path(path_, name);
    if (!fs_->exists(path)) {
      out.add("{}: is missing; must have {} bytes", path, record.size.value);
    } else if (const Bytes size = fs_->file_size(path); size != record.size) {
      out.add("{}: has {} bytes, must have {}{}", path, size.value, record.size.value,
              size < record.size ? " (truncated)" : "");
    } else {
      if (ends_with(name, ".safetensors")) continue;
      record.content = fs_->map_file(path);
      if (check_hash(name, record, out)) continue;
    }
    bad.insert(name);
  }
  return bad;
}

void CheckpointReader::check_tensors(Diagnostics& out) const {
  std::set<std::string, std::less<>> found;
  for (const auto& [group, files] : groups_) {
    for (const std::string& name : names_of(files)) found.insert(name);
  }
  const std::string manifest = join_path(path_, kManifest);
  for (const auto& group : groups_) {
    for (const SafetensorsFile& shard : group.second.shards()) {
      if (!files_.contains(base_name(shard.path())))
        out.add("{}: {} is not listed", manifest, shard.path());
    }
  }
  for (const auto& [name, hash] : tensor_hashes_) {
    if (!found.contains(name)) out.add("{}: tensor '{}' is in no shard", manifest, name);
  }
  for (const std::string& name : found) {
    if (!tensor_hashes_.contains(name))
      out.add("{}: tensor '{}' of a shard is not listed", manifest, name);
  }
}

std::vector<std::string> CheckpointReader::groups() const {
  std::vector<std::string> names;
  for (const auto& group : groups_) names.push_back(group.first);
  return names;
}

std::optional<std::string_view> CheckpointReader::text(std::string_view file) const {
  const auto it = files_.find(file);
  if (it == files_.end() || ends_with(file, ".safetensors")) return std::nullopt;
  return it->second.content.text();
}

std::vector<TensorSpec> CheckpointReader::tensors(std::string_view group) const {
  std::vector<TensorSpec> specs;
  for (const auto& [name, files] : groups_) {
    if (name != group) continue;
    for (const SafetensorsFile& shard : files.shards()) {
      specs.insert(specs.end(), shard.tensors().begin(), shard.tensors().end());
    }
  }
  return specs;
}

const TensorSpec* CheckpointReader::find(std::string_view tensor) const {
  for (const auto& group : groups_) {
    if (const TensorSpec* spec = group.second.find(tensor)) return spec;
  }
  return nullptr;
}

std::span<const std::byte> CheckpointReader::bytes(std::string_view tensor) const {
  for (const auto& group : groups_) {
    if (group.second.find(tensor)) return group.second.bytes(tensor);
  }
  MW_CHECK(false, "{}: no tensor '{}'", path_, tensor);
  return {};
}

void CheckpointReader::require(std::span<const TensorSpec> tensors) const {
  Diagnostics out;
  std::vector<std::string> known;
  for (const auto& [name, hash] : tensor_hashes_) known.push_back(name);
  for (const TensorSpec& wanted : tensors) {
    const TensorSpec* is = find(wanted.name);
    if (!is) {
      out.add("{}: tensor '{}' is missing{}", path_, wanted.name, did_you_mean(wanted.name, known));
    } else if (!(*is == wanted)) {
      out.add("{}: tensor '{}' is {} {}, must be {} {}", path_, wanted.name, dtype_name(is->dtype),
              shape_text(is->shape), dtype_name(wanted.dtype), shape_text(wanted.shape));
    }
  }
  out.throw_if_any();
}

void CheckpointReader::verify_shard(const SafetensorsFile& shard, Diagnostics& out) const {
  bool located = false;
  for (const TensorSpec& tensor : shard.tensors()) {
    const std::string is = xxh3_128(shard.bytes(tensor.name)).hex();
    const std::string& must_be = tensor_hashes_.find(tensor.name)->second;
    if (is == must_be) continue;
    located = true;
    out.add("{}: tensor '{}': checksum is {}, must be {}; its bytes were changed", shard.path(),
            tensor.name, is, must_be);
  }
  if (!located) out.add("{}: the header was changed", shard.path());
}

void CheckpointReader::verify() const {
  Diagnostics out;
  for (const auto& [name, record] : files_) {
    if (!ends_with(name, ".safetensors")) check_hash(name, record, out);
  }
  for (const auto& group : groups_) {
    for (const SafetensorsFile& shard : group.second.shards()) {
      const FileRecord& record = files_.at(base_name(shard.path()));
      if (xxh3_128(shard.file_bytes()).hex() != record.hash) verify_shard(shard, out);
    }
  }
  if (!out.empty() && !before_.empty()) out.add("{}", before_);
  out.throw_if_any();
}

}  // namespace mw::checkpoint
