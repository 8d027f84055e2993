#include "checkpoint/index.h"

#include <map>
#include <optional>

#include "base/json.h"
#include "base/text.h"

namespace mw::checkpoint {

std::string shard_name(std::string_view name, size_t shard, size_t num_shards) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", name, shard + 1, num_shards);
}

std::string index_name(std::string_view name) {
  return fmt::format("{}.safetensors.index.json", name);
}

ShardPlan plan_shards(std::span<const TensorSpec> tensors, Bytes max_shard_bytes) {
  ShardPlan plan;
  Bytes filled;
  for (const TensorSpec& tensor : tensors) {
    if (plan.shards.empty() || (filled.value > 0 && filled + tensor.bytes() > max_shard_bytes)) {
      plan.shards.emplace_back();
      filled = Bytes(0);
    }
    plan.shards.back().push_back(tensor);
    filled += tensor.bytes();
  }
  return plan;
}

std::string index_text(std::string_view name, const ShardPlan& plan) {
  JsonObject weight_map;
  Bytes total;
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    for (const TensorSpec& tensor : plan.shards[i]) {
      weight_map.append(tensor.name, shard_name(name, i, plan.shards.size()));
      total += tensor.bytes();
    }
  }
  return Json(JsonObject{{"metadata", JsonObject{{"total_size", total.value}}},
                         {"weight_map", std::move(weight_map)}})
      .dump_pretty();
}

namespace {

struct Index {
  std::map<std::string, std::vector<std::string>> tensors_of;  // by shard file
  std::optional<double> total_size;                            // other writers give a float
};

Index read_index(FileSystem& fs, const std::string& path) {
  const Json json = parse_json(fs.read_file(path), path);
  Index index;
  const std::string where = path + ": weight_map";
  for (const auto& [tensor, shard] : json.at("weight_map", path).as_object(where)) {
    const std::string& file = shard.as_string(where + "." + tensor);
    if (file.find('/') != std::string::npos) {
      throw_error("{}.{}: must be a file of the same folder, is {}", where, tensor, quoted(file));
    }
    index.tensors_of[file].push_back(tensor);
  }
  if (const Json* metadata = json.find("metadata")) {
    if (const Json* size = metadata->find("total_size")) {
      index.total_size = size->as_number(path + ": metadata.total_size");
    }
  }
  return index;
}

// Index and shard must name the same tensors.
void compare(const std::string& index_path, const std::vector<std::string>& listed,
             const SafetensorsFile& shard, Diagnostics& out) {
  std::set<std::string> names(listed.begin(), listed.end());
  for (const std::string& name : listed) {
    if (!shard.find(name)) {
      out.add("{}: tensor '{}' is missing, which {} places there", shard.path(), name, index_path);
    }
  }
  for (const TensorSpec& tensor : shard.tensors()) {
    if (!names.contains(tensor.name)) {
      out.add("{}: tensor '{}' is not in {}", shard.path(), tensor.name, index_path);
    }
  }
}

}  // namespace

void TensorFiles::open_shard(FileSystem& fs, const std::string& path, Diagnostics& out) {
  try {
    SafetensorsFile file = SafetensorsFile::open(fs, path);
    for (const TensorSpec& tensor : file.tensors()) shard_of_.emplace(tensor.name, shards_.size());
    shards_.push_back(std::move(file));
  } catch (const Error& error) {
    out.absorb(error);
  }
}

TensorFiles TensorFiles::open(FileSystem& fs, const std::string& folder, std::string_view name,
                              Diagnostics& out, const std::set<std::string>& skip) {
  TensorFiles files;
  const std::string index_path = join_path(folder, index_name(name));
  const std::string single = fmt::format("{}.safetensors", name);
  if (skip.contains(index_name(name)) || skip.contains(single)) return files;
  if (!fs.exists(index_path) && fs.exists(join_path(folder, single))) {
    files.open_shard(fs, join_path(folder, single), out);
    return files;
  }
  try {
    const Index index = read_index(fs, index_path);
    Bytes total;
    bool complete = true;
    for (const auto& [file, tensors] : index.tensors_of) {
      const size_t before = files.shards_.size();
      const std::string path = join_path(folder, file);
      if (!skip.contains(file) && !fs.exists(path)) {
        out.add("{}: is missing; {} places tensors there, '{}' the first of {}", path, index_path,
                tensors[0], tensors.size());
      } else if (!skip.contains(file)) {
        files.open_shard(fs, path, out);
      }
      if (files.shards_.size() == before) {
        complete = false;
        continue;
      }
      compare(index_path, tensors, files.shards_.back(), out);
      for (const TensorSpec& tensor : files.shards_.back().tensors()) total += tensor.bytes();
    }
    if (complete && index.total_size && *index.total_size != static_cast<double>(total.value)) {
      out.add("{}: metadata.total_size is {:.0f}, the shards hold {} bytes", index_path,
              *index.total_size, total.value);
    }
  } catch (const Error& error) {
    out.absorb(error);
  }
  return files;
}

TensorFiles TensorFiles::open_path(FileSystem& fs, const std::string& path, Diagnostics& out) {
  if (fs.is_directory(path)) return open(fs, path, "model", out);
  const std::string name = base_name(path), ending = index_name("");
  if (ends_with(name, ending))
    return open(fs, parent_path(path), name.substr(0, name.size() - ending.size()), out);
  TensorFiles files;
  files.open_shard(fs, path, out);
  return files;
}

const TensorSpec* TensorFiles::find(std::string_view tensor) const {
  const auto shard = shard_of_.find(std::string(tensor));
  return shard == shard_of_.end() ? nullptr : shards_[shard->second].find(tensor);
}

std::span<const std::byte> TensorFiles::bytes(std::string_view tensor) const {
  const auto shard = shard_of_.find(std::string(tensor));
  MW_CHECK(shard != shard_of_.end(), "no tensor '{}'", tensor);
  return shards_[shard->second].bytes(tensor);
}

}  // namespace mw::checkpoint
