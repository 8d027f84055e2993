// A set of named tensors spread over safetensors shards in one folder, as Hugging Face lays them
// out: NAME-00001-of-00003.safetensors … and NAME.safetensors.index.json with {"metadata":
// {"total_size": …}, "weight_map": {tensor: shard}}; or NAME.safetensors alone.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace mw::checkpoint {

// "model-00001-of-00003.safetensors"
std::string shard_name(std::string_view name, size_t shard, size_t num_shards);
// "model.safetensors.index.json"
std::string index_name(std::string_view name);

// Which tensors go to which shard: in order, a new shard where the next tensor would make it larger
// than max_shard_bytes (a larger tensor has a shard of its own).
struct ShardPlan {
  std::vector<std::vector<TensorSpec>> shards;
};
ShardPlan plan_shards(std::span<const TensorSpec> tensors, Bytes max_shard_bytes);

// The text of the index file.
std::string index_text(std::string_view name, const ShardPlan& plan);

class TensorFiles {
 public:
  // Opens every shard. What is wrong (a missing or broken shard, a tensor that index and shard do
  // not agree about, a wrong total size) becomes findings, all of them. Files in `skip` are left
  // alone together with their tensors: their findings are known already.
  static TensorFiles open(FileSystem& fs, const std::string& folder, std::string_view name,
                          Diagnostics& out, const std::set<std::string>& skip = {});

  // What `path` names: a safetensors file, an index file, or a folder with "model" files.
  static TensorFiles open_path(FileSystem& fs, const std::string& path, Diagnostics& out);

  const std::vector<SafetensorsFile>& shards() const { return shards_; }
  const TensorSpec* find(std::string_view tensor) const;
  // REQUIRES: find(tensor).
  std::span<const std::byte> bytes(std::string_view tensor) const;

 private:
  void open_shard(FileSystem& fs, const std::string& path, Diagnostics& out);
  std::vector<SafetensorsFile> shards_;
  std::unordered_map<std::string, size_t> shard_of_;
};

}  // namespace mw::checkpoint
