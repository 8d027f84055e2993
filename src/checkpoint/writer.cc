#include "checkpoint/store.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/layout.h"

namespace mw::checkpoint {
namespace {

// make_directories whose every new folder outlives a crash.
void make_durable_directories(FileSystem& fs, const std::string& path) {
  if (fs.is_directory(path)) return;
  const std::string parent = parent_path(path);
  if (parent != path) make_durable_directories(fs, parent);
  fs.make_directory(path);
  fs.sync_directory(parent);
}

void write_synced(FileSystem& fs, const std::string& path, std::string_view text) {
  const auto file = fs.create_file(path);
  file->write(text);
  file->sync();
  file->close();
}

// What interrupted saves left in the folder. A replaced checkpoint whose successor never came is
// put back.
void clear_leftovers(FileSystem& fs, const std::string& folder) {
  bool restored = false;
  for (const std::string& name : fs.list(folder)) {
    const std::string path = join_path(folder, name);
    if (const auto step = parse_step_name(name, kReplaced)) {
      const std::string plain = join_path(folder, step_name(*step));
      if (!fs.exists(plain)) {
        fs.rename(path, plain);
        restored = true;
      }
    }
  }
  if (restored) fs.sync_directory(folder);
  for (const std::string& name : fs.list(folder)) {
    for (const std::string_view suffix : {kTemporary, kDeleted, kReplaced}) {
      if (parse_step_name(name, suffix)) fs.remove_all(join_path(folder, name));
    }
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(FileSystem& fs, std::string folder, int64_t step,
                                   std::vector<TensorGroup> groups, SaveOptions options)
    : fs_(fs), folder_(std::move(folder)), step_(step), options_(options) {
  MW_CHECK(step >= 0, "step {}", step);
  final_ = join_path(folder_, step_name(step));
  temporary_ = final_ + std::string(kTemporary);
  std::set<std::string> names;
  for (const TensorGroup& group : groups) {
    for (const TensorSpec& tensor : group.tensors) {
      MW_CHECK(names.insert(tensor.name).second, "tensor '{}' twice", tensor.name);
    }
    ShardPlan plan = plan_shards(group.tensors, options_.max_shard_bytes);
    index_texts_.emplace_back(index_name(group.name), index_text(group.name, plan));
    for (size_t i = 0; i < plan.shards.size(); ++i) {
      // transformers refuses a shard that does not say "pt".
      shards_.push_back({shard_name(group.name, i, plan.shards.size()),
                         {{"format", "pt"}},
                         std::move(plan.shards[i])});
    }
  }
  make_durable_directories(fs_, folder_);
  clear_leftovers(fs_, folder_);
  check_room();
  try {
    fs_.make_directory(temporary_);
    skip_full();
  } catch (...) {
    fs_.remove_all(temporary_);
    throw;
  }
}

CheckpointWriter::~CheckpointWriter() {
  if (finished_) return;
  try {
    writer_.reset();
    fs_.remove_all(temporary_);
  } catch (const std::exception&) {
    // The disk fails; the next save clears it.
  }
}

void CheckpointWriter::check_room() const {
  Bytes needed;
  for (const Shard& shard : shards_) {
    needed += Bytes(static_cast<int64_t>(safetensors_header(shard.tensors, shard.metadata).size()));
    for (const TensorSpec& tensor : shard.tensors) needed += tensor.bytes();
  }
  const Bytes free = fs_.free_space(folder_);
  if (needed > free) {
    throw RunError(fmt::format("{}: a checkpoint takes {}, the disk has {} left", final_,
                               format_bytes(needed.value), format_bytes(free.value)));
  }
}

void CheckpointWriter::skip_full() {
  while (shard_ < shards_.size()) {
    const Shard& shard = shards_[shard_];
    if (!writer_) {
      writer_ = std::make_unique<SafetensorsWriter>(fs_, path_in(shard.file), shard.tensors,
                                                    shard.metadata);
    }
    for (; tensor_ < shard.tensors.size(); ++tensor_, filled_ = 0, hasher_ = Hasher128()) {
      if (filled_ < shard.tensors[tensor_].bytes().value) return;
      tensor_hashes_.emplace_back(shard.tensors[tensor_].name, hasher_.digest());
    }
    close_shard();
  }
}

void CheckpointWriter::close_shard() {
  writer_->finish();
  files_.push_back({shards_[shard_].file, {writer_->size(), writer_->hash()}});
  writer_.reset();
  ++shard_;
  tensor_ = 0;
}

void CheckpointWriter::append(std::string_view tensor, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  MW_CHECK(shard_ < shards_.size(), "'{}' after the last tensor", tensor);
  const TensorSpec& expected = shards_[shard_].tensors[tensor_];
  MW_CHECK(tensor == expected.name, "'{}' comes where '{}' must come", tensor, expected.name);
  MW_CHECK(filled_ + static_cast<int64_t>(bytes.size()) <= expected.bytes().value,
           "{} bytes after {} of {} of '{}'", bytes.size(), filled_, expected.bytes().value,
           tensor);
  writer_->append(bytes);
  hasher_.update(bytes);
  filled_ += static_cast<int64_t>(bytes.size());
  skip_full();
}

void CheckpointWriter::add_file(const std::string& name, std::string_view text) {
  const auto same = [&](const auto& file) { return file.first == name; };
  MW_CHECK(name != kManifest && std::none_of(files_.begin(), files_.end(), same), "file '{}' twice",
           name);
  write_synced(fs_, path_in(name), text);
  files_.push_back({name, {Bytes(static_cast<int64_t>(text.size())), xxh3_128(text)}});
}

std::string CheckpointWriter::finish(const Json& run_state) {
  MW_CHECK(shard_ == shards_.size(), "tensor '{}' is not complete",
           shards_[shard_].tensors[tensor_].name);
  MW_CHECK(!finished_, "{} is finished", final_);
  for (const auto& [name, text] : index_texts_) add_file(name, text);
  JsonObject files, tensors;
  for (const auto& [name, record] : files_) {
    files.append(name, JsonObject{{"bytes", record.size.value}, {"xxh3", record.hash.hex()}});
  }
  for (const auto& [name, hash] : tensor_hashes_) tensors.append(name, hash.hex());
  JsonArray groups;
  for (const auto& [name, text] : index_texts_) groups.push_back(name.substr(0, name.find('.')));
  const std::string manifest = seal_manifest(JsonObject{{"version", kManifestVersion},
                                                        {"step", step_},
                                                        {"run_state", run_state},
                                                        {"groups", std::move(groups)},
                                                        {"files", std::move(files)},
                                                        {"tensors", std::move(tensors)}});
  write_synced(fs_, path_in(std::string(kManifest)), manifest);
  fs_.sync_directory(temporary_);
  publish();
  finished_ = true;
  if (options_.keep > 0) prune();
  return final_;
}

void CheckpointWriter::publish() {
  const std::string replaced = final_ + std::string(kReplaced);
  const bool replaces = fs_.exists(final_);
  if (replaces) fs_.rename(final_, replaced);
  fs_.rename(temporary_, final_);
  fs_.sync_directory(folder_);
  if (replaces) fs_.remove_all(replaced);
}

void CheckpointWriter::prune() {
  std::vector<int64_t> steps = list_steps(fs_, folder_);
  std::erase(steps, step_);  // the new one stays, even among higher steps of an earlier run
  const int64_t surplus = static_cast<int64_t>(steps.size()) + 1 - options_.keep;
  if (surplus <= 0) return;
  std::vector<std::string> deleted;
  for (int64_t i = 0; i < surplus; ++i) {
    const std::string path = join_path(folder_, step_name(steps[static_cast<size_t>(i)]));
    deleted.push_back(path + std::string(kDeleted));
    fs_.rename(path, deleted.back());
  }
  // Only now may their files go: a crash must not bring back a name whose files are gone.
  fs_.sync_directory(folder_);
  for (const std::string& path : deleted) fs_.remove_all(path);
}

std::string save_checkpoint(FileSystem& fs, const std::string& folder, int64_t step,
                            const std::vector<TensorGroup>& groups, const Json& run_state,
                            const FillTensor& fill, const SaveOptions& options) {
  CheckpointWriter writer(fs, folder, step, groups, options);
  std::vector<std::byte> buffer;
  for (const TensorGroup& group : groups) {
    for (const TensorSpec& tensor : group.tensors) {
      buffer.resize(static_cast<size_t>(tensor.bytes().value));
      fill(tensor, buffer);
      writer.append(tensor.name, buffer);
    }
  }
  return writer.finish(run_state);
}

}  // namespace mw::checkpoint
