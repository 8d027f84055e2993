#include "base/fake_fs.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"

namespace mw {
namespace {

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (const std::string_view part : split(path, '/')) {
    if (part.empty() || part == ".") continue;
    MW_CHECK(part != "..", "{}: the fake file system has no '..'", path);
    parts.emplace_back(part);
  }
  return parts;
}

}  // namespace

class FakeWritableFile : public WritableFile {
 public:
  FakeWritableFile(FakeFileSystem& fs, int node, std::string path)
      : fs_(fs), node_(node), path_(std::move(path)), power_cycle_(fs.power_cycle_) {}

  void write(std::span<const std::byte> bytes) override {
    begin();
    fs_.append(node_, path_, bytes);
  }

  void sync() override {
    begin();
    auto& node = fs_.nodes_[node_];
    node.synced_data = node.data;
  }

  void close() override {
    fs_.require_power();
    closed_ = true;
  }

 private:
  void begin() {
    MW_CHECK(!closed_, "{} is closed", path_);
    MW_CHECK(power_cycle_ == fs_.power_cycle_, "{} was opened before the restart", path_);
    fs_.begin_operation(path_);
  }

  FakeFileSystem& fs_;
  int node_;
  std::string path_;
  int64_t power_cycle_;
  bool closed_ = false;
};

FakeFileSystem::FakeFileSystem() {
  nodes_.emplace_back();
  nodes_[0].directory = true;
}

void FakeFileSystem::require_power() const {
  if (off_) throw SimulatedCrash();
}

void FakeFileSystem::begin_operation(const std::string& path) {
  require_power();
  const int64_t number = operations_++;
  if (number == crash_at_) {
    off_ = true;
    throw SimulatedCrash();
  }
  if (number == fail_at_) throw RunError(fmt::format("{}: cannot write: Input/output error", path));
}

std::optional<int> FakeFileSystem::find(const std::string& path) const {
  require_power();
  int node = 0;
  for (const std::string& part : parts_of(path)) {
    const Entries& entries = nodes_[node].entries;
    const auto entry = entries.find(part);
    if (entry == entries.end()) return std::nullopt;
    node = entry->second;
  }
  return node;
}

int FakeFileSystem::find_file(const std::string& path) {
  const auto node = find(path);
  if (!node) throw Error(missing_message(path));
  if (nodes_[*node].directory) throw_error("{}: cannot read: Is a directory", path);
  return *node;
}

int FakeFileSystem::find_directory(const std::string& path) {
  const auto node = find(path);
  if (!node) throw Error(missing_message(path));
  if (!nodes_[*node].directory) throw_error("{}: cannot list: Not a directory", path);
  return *node;
}

FakeFileSystem::Place FakeFileSystem::place(const std::string& path) {
  const auto parent = find(parent_path(path));
  if (!parent) throw Error(missing_message(path));
  if (!nodes_[*parent].directory) throw_error("{}: cannot write: Not a directory", path);
  return {*parent, base_name(path)};
}

void FakeFileSystem::apply(Entries& entries, const Change& change) {
  for (const auto& [name, node] : change) {
    if (node) {
      entries[name] = *node;
    } else {
      entries.erase(name);
    }
  }
}

void FakeFileSystem::change(int directory, Change change) {
  apply(nodes_[directory].entries, change);
  nodes_[directory].changes.push_back(std::move(change));
}

int64_t FakeFileSystem::used(int directory) const {
  int64_t bytes = 0;
  for (const auto& [name, node] : nodes_[directory].entries) {
    bytes += nodes_[node].directory ? used(node) : static_cast<int64_t>(nodes_[node].data.size());
  }
  return bytes;
}

void FakeFileSystem::append(int node, const std::string& path, std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (capacity_ < 0) {
    nodes_[node].data += text;
    return;
  }
  const size_t room = static_cast<size_t>(std::max<int64_t>(0, capacity_ - used(0)));
  nodes_[node].data += text.substr(0, room);
  if (text.size() > room)
    throw RunError(fmt::format("{}: cannot write: No space left on device", path));
}

void FakeFileSystem::flip_bit(const std::string& path, int64_t bit) {
  Node& node = nodes_[find_file(path)];
  MW_CHECK(bit >= 0 && bit / 8 < static_cast<int64_t>(node.data.size()), "{}: bit {} of {} bytes",
           path, bit, node.data.size());
  node.data[static_cast<size_t>(bit / 8)] ^= static_cast<char>(1 << bit % 8);
  node.synced_data = node.data;
}

void FakeFileSystem::restart(Loss loss, uint64_t seed) {
  uint64_t draws = 0;
  const RngKey key{seed, 0, rng_site("fake_fs.restart")};
  // From 0 to n.
  const auto draw = [&](size_t n) { return random_u32(key, draws++) % (n + 1); };
  for (Node& node : nodes_) {
    if (loss == Loss::kAll) {
      node.data = node.synced_data;
      node.entries = node.synced_entries;
    } else if (loss == Loss::kRandom && node.directory) {
      const size_t survive = draw(node.changes.size());
      node.entries = node.synced_entries;
      for (size_t i = 0; i < survive; ++i) apply(node.entries, node.changes[i]);
    } else if (loss == Loss::kRandom && node.data != node.synced_data) {
      // What was synced and only appended to since stays.
      const size_t safe = node.data.starts_with(node.synced_data) ? node.synced_data.size() : 0;
      const size_t survive = safe + draw(node.data.size() - safe);
      switch (draw(3)) {
        case 0: node.data = node.synced_data; break;
        case 1: node.data.resize(survive); break;
        case 2:
          std::fill(node.data.begin() + static_cast<int64_t>(survive), node.data.end(), '\0');
          break;
        default: break;
      }
    }
    node.synced_data = node.data;
    node.synced_entries = node.entries;
    node.changes.clear();
  }
  off_ = false;
  crash_at_ = fail_at_ = -1;
  ++power_cycle_;
}

std::string FakeFileSystem::read_file(const std::string& path) {
  return nodes_[find_file(path)].data;
}

MappedFile FakeFileSystem::map_file(const std::string& path) {
  const auto copy = std::make_shared<const std::string>(read_file(path));
  return {std::as_bytes(std::span(*copy)), copy};
}

std::unique_ptr<WritableFile> FakeFileSystem::open(const std::string& path, bool truncate) {
  const Place at = place(path);
  const auto old = find(path);
  if (old && nodes_[*old].directory) throw_error("{}: cannot write: Is a directory", path);
  begin_operation(path);
  if (old && truncate) nodes_[*old].data.clear();
  if (old) return std::make_unique<FakeWritableFile>(*this, *old, path);
  const int node = static_cast<int>(nodes_.size());
  nodes_.emplace_back();
  change(at.directory, {{at.name, node}});
  return std::make_unique<FakeWritableFile>(*this, node, path);
}

std::unique_ptr<WritableFile> FakeFileSystem::create_file(const std::string& path) {
  return open(path, true);
}

std::unique_ptr<WritableFile> FakeFileSystem::append_file(const std::string& path) {
  return open(path, false);
}

void FakeFileSystem::sync_directory(const std::string& path) {
  const int directory = find_directory(path);
  begin_operation(path);
  nodes_[directory].synced_entries = nodes_[directory].entries;
  nodes_[directory].changes.clear();
}

void FakeFileSystem::rename(const std::string& from, const std::string& to) {
  const auto node = find(from);
  if (!node) throw Error(missing_message(from));
  const Place source = place(from), target = place(to);
  if (const auto old = find(to)) {
    const Node& replaced = nodes_[*old];
    const std::string action = fmt::format("{}: cannot be renamed to {}", from, to);
    if (replaced.directory && !nodes_[*node].directory) throw_error("{}: Is a directory", action);
    if (!replaced.directory && nodes_[*node].directory) throw_error("{}: Not a directory", action);
    if (!replaced.entries.empty()) throw_error("{}: Directory not empty", action);
  }
  begin_operation(from);
  if (source.directory == target.directory) {
    change(source.directory, {{source.name, std::nullopt}, {target.name, *node}});
  } else {
    change(target.directory, {{target.name, *node}});
    change(source.directory, {{source.name, std::nullopt}});
  }
}

void FakeFileSystem::remove(const std::string& path) {
  const auto node = find(path);
  if (!node) throw Error(missing_message(path));
  if (!nodes_[*node].entries.empty()) throw_error("{}: cannot remove: Directory not empty", path);
  begin_operation(path);
  const Place at = place(path);
  change(at.directory, {{at.name, std::nullopt}});
}

bool FakeFileSystem::make_directory(const std::string& path) {
  if (const auto old = find(path)) {
    if (nodes_[*old].directory) return false;
    throw_error("{}: is a file, must be a folder", path);
  }
  const Place at = place(path);
  begin_operation(path);
  const int node = static_cast<int>(nodes_.size());
  nodes_.emplace_back();
  nodes_[node].directory = true;
  change(at.directory, {{at.name, node}});
  return true;
}

std::vector<std::string> FakeFileSystem::list(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : nodes_[find_directory(path)].entries) names.push_back(entry.first);
  return names;
}

PathKind FakeFileSystem::kind(const std::string& path) {
  const auto node = find(path);
  if (!node) return PathKind::kNone;
  return nodes_[*node].directory ? PathKind::kDirectory : PathKind::kFile;
}

Bytes FakeFileSystem::file_size(const std::string& path) {
  return Bytes(static_cast<int64_t>(nodes_[find_file(path)].data.size()));
}

Bytes FakeFileSystem::free_space(const std::string&) {
  require_power();
  return Bytes(capacity_ < 0 ? int64_t{1} << 60 : std::max<int64_t>(0, capacity_ - used(0)));
}

}  // namespace mw
