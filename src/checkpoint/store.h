// A run's checkpoints on disk: <folder>/step-000020/ holds, for every group of tensors ("model",
// "optimizer"), safetensors shards and their index, and meshwright.json: step, free-form state of
// the run (data position, RNG seed, plan…), size and XXH3 of every file, XXH3 of every tensor.
//
// A checkpoint is complete or absent. It is written as step-000020.tmp, every file and folder is
// synced, and one rename makes it visible. Tensors are global: nothing here knows under which
// layout they were computed or will be used.
//
// Limitation: one writer for a folder at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"

namespace mw::checkpoint {

// Tensors that share index and shards. A group "model" with Hugging Face's tensor names makes the
// checkpoint a folder that transformers can load, once the model's config.json is beside it.
struct TensorGroup {
  std::string name;
  std::vector<TensorSpec> tensors;
};

struct SaveOptions {
  Bytes max_shard_bytes{5'000'000'000};
  // Checkpoints kept, the new one among them; the oldest go once the new one is safe. 0 keeps all.
  int64_t keep = 0;
};

class CheckpointWriter {
 public:
  // Clears away what an interrupted save left. Throws RunError where the disk has not the room.
  // REQUIRES: no tensor name twice, over all groups.
  CheckpointWriter(FileSystem& fs, std::string folder, int64_t step,
                   std::vector<TensorGroup> groups, SaveOptions options = {});
  // Without finish() (or where it threw) removes what it has written.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The next bytes of `tensor`: row-major, little-endian, in pieces of any size. REQUIRES: the
  // tensors come in the order of the groups, each of them whole.
  void append(std::string_view tensor, std::span<const std::byte> bytes);
  // A file of text beside the shards, such as the model's config.json. REQUIRES: a name of its own.
  void add_file(const std::string& name, std::string_view text);
  // Makes the checkpoint visible and safe, replaces an older one of the same step, then removes
  // those that are not kept. `run_state` comes back as CheckpointReader::run_state(). Returns its
  // path. REQUIRES: every tensor was appended.
  std::string finish(const Json& run_state);

 private:
  struct Shard {
    std::string file;
    Metadata metadata;
    std::vector<TensorSpec> tensors;
  };
  struct FileRecord {
    Bytes size;
    Hash128 hash;
  };

  std::string path_in(const std::string& file) const { return join_path(temporary_, file); }
  void check_room() const;
  void skip_full();  // moves on past tensors and shards that have all their bytes
  void close_shard();
  void publish();
  void prune();

  FileSystem& fs_;
  std::string folder_;
  int64_t step_;
  SaveOptions options_;
  std::string final_;
  std::string temporary_;
  std::vector<Shard> shards_;
  std::vector<std::pair<std::string, std::string>> index_texts_;  // file, text
  std::unique_ptr<SafetensorsWriter> writer_;
  size_t shard_ = 0;    // of the next byte
  size_t tensor_ = 0;   // in that shard
  int64_t filled_ = 0;  // bytes of that tensor
  Hasher128 hasher_;    // of that tensor
  std::vector<std::pair<std::string, Hash128>> tensor_hashes_;
  std::vector<std::pair<std::string, FileRecord>> files_;
  bool finished_ = false;
};

// Writes one checkpoint, one tensor in memory at a time. `fill` gives the tensor's bytes.
using FillTensor = std::function<void(const TensorSpec& tensor, std::span<std::byte> out)>;
std::string save_checkpoint(FileSystem& fs, const std::string& folder, int64_t step,
                            const std::vector<TensorGroup>& groups, const Json& run_state,
                            const FillTensor& fill, const SaveOptions& options = {});

// The steps that have a checkpoint, ascending. A folder that is not there has none.
std::vector<int64_t> list_steps(FileSystem& fs, const std::string& folder);
// The folder of the highest of them; "" where there is none.
std::string newest_step(FileSystem& fs, const std::string& folder);
// Whether a folder is a checkpoint, as far as its names say.
bool is_checkpoint(FileSystem& fs, const std::string& folder);

class CheckpointReader {
 public:
  // A checkpoint's own folder. Checks that every file and tensor is there with the right size, and
  // the checksums of all but the shards; throws Error with all that is wrong. Reads no tensor.
  static CheckpointReader open(FileSystem& fs, const std::string& path);
  // The checkpoint of the highest step. Where it is damaged, the Error names the one before it.
  static CheckpointReader latest(FileSystem& fs, const std::string& folder);
  // A certain step of a run.
  static CheckpointReader at_step(FileSystem& fs, const std::string& folder, int64_t step);

  const std::string& path() const { return path_; }
  int64_t step() const { return step_; }
  const Json& run_state() const { return run_state_; }
  // Names of the groups, in order.
  std::vector<std::string> groups() const;
  std::vector<TensorSpec> tensors(std::string_view group) const;

  // A file beside the tensors, such as config.json; nullopt where there is none.
  std::optional<std::string_view> text(std::string_view file) const;
  // nullptr where there is none.
  const TensorSpec* find(std::string_view tensor) const;
  // The whole global tensor, mapped: a rank reads the spans that are its own. REQUIRES:
  // find(tensor).
  std::span<const std::byte> bytes(std::string_view tensor) const;

  // Throws Error for every tensor that is missing here or has another dtype or shape.
  void require(std::span<const TensorSpec> tensors) const;
  // Reads everything. Throws Error that names every file whose checksum is wrong, and in a shard
  // the tensor.
  void verify() const;

 private:
  struct FileRecord {
    Bytes size;
    std::string hash;
    MappedFile content;  // of what is no shard, as it was when the checkpoint was opened
  };

  void read_manifest();
  // The files that are missing, have the wrong size, or are small and have the wrong checksum.
  std::set<std::string> check_files(Diagnostics& out);
  bool check_hash(const std::string& name, const FileRecord& record, Diagnostics& out) const;
  void check_tensors(Diagnostics& out) const;
  void verify_shard(const SafetensorsFile& shard, Diagnostics& out) const;

  FileSystem* fs_ = nullptr;
  std::string path_;
  std::string before_;  // what else there is, where it is the latest: a finding's text
  int64_t step_ = 0;
  Json run_state_;
  std::map<std::string, FileRecord, std::less<>> files_;
  std::map<std::string, std::string, std::less<>> tensor_hashes_;
  std::vector<std::pair<std::string, TensorFiles>> groups_;
};

}  // namespace mw::checkpoint
