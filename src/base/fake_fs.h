// A disk in memory that fails on request: full, failing, or losing power at any point.
//
// The model of a crash is that of a journaling file system that promises no more than POSIX: of a
// file's data only what was synced is safe; of a directory's changes (create, rename, remove) those
// before its last sync are safe, of the later ones any prefix may survive, each directory by
// itself. A file that was not synced may come back old, shortened or with zeros at its end.
//
// Every change (create, write, sync, rename, remove, make a directory) counts as one operation. Not
// safe for two threads. Paths: "a/b", "/a/b" and "./a//b" are the same; ".." is not understood.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/fs.h"

namespace mw {

// The machine is off: thrown by every call from the crash to the restart. No Error and no RunError,
// so that nobody handles it by mistake.
class SimulatedCrash : public std::logic_error {
 public:
  SimulatedCrash() : std::logic_error("simulated crash") {}
};

class FakeFileSystem : public FileSystem {
 public:
  FakeFileSystem();

  // --- Faults ---
  int64_t operations() const { return operations_; }
  // Operation number `n` (the first is 0) and all calls after it throw SimulatedCrash.
  void crash_at(int64_t n) { crash_at_ = n; }
  // Operation number `n` alone throws RunError "Input/output error" and does nothing.
  void fail_at(int64_t n) { fail_at_ = n; }
  // All files together hold no more than that; the write that goes beyond throws RunError "No space
  // left on device" after the part that fits.
  void set_capacity(Bytes capacity) { capacity_ = capacity.value; }
  void flip_bit(const std::string& path, int64_t bit);

  // How much of what was not synced a crash takes.
  enum class Loss { kAll, kNone, kRandom };
  // Power off and on again, whether or not crash_at() was reached. Open files are dead afterwards.
  // `seed` chooses what survives under kRandom.
  void restart(Loss loss, uint64_t seed = 0);

  std::string read_file(const std::string& path) override;
  MappedFile map_file(const std::string& path) override;
  std::unique_ptr<WritableFile> create_file(const std::string& path) override;
  std::unique_ptr<WritableFile> create_file_alone(const std::string& path) override {
    return create_file(path);
  }
  std::unique_ptr<WritableFile> append_file(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  bool make_directory(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  PathKind kind(const std::string& path) override;
  bool is_link(const std::string&) override { return false; }
  Bytes file_size(const std::string& path) override;
  Bytes free_space(const std::string& path) override;

 private:
  friend class FakeWritableFile;
  using Entries = std::map<std::string, int>;  // name to node

  // One change of a directory: names and what they stand for afterwards (nothing: gone).
  using Change = std::vector<std::pair<std::string, std::optional<int>>>;

  struct Node {
    bool directory = false;
    std::string data, synced_data;    // a file's
    Entries entries, synced_entries;  // a directory's
    std::vector<Change> changes;      // since synced_entries
  };

  struct Place {
    int directory;
    std::string name;
  };

  void begin_operation(const std::string& path);
  void require_power() const;
  std::optional<int> find(const std::string& path) const;
  int find_file(const std::string& path);
  int find_directory(const std::string& path);
  Place place(const std::string& path);  // throws where the parent is missing
  static void apply(Entries& entries, const Change& change);
  void change(int directory, Change change);
  int64_t used(int directory) const;
  void append(int node, const std::string& path, std::span<const std::byte> bytes);
  std::unique_ptr<WritableFile> open(const std::string& path, bool truncate);

  std::vector<Node> nodes_;  // the first is the root; none is ever freed
  int64_t operations_ = 0;
  int64_t crash_at_ = -1;
  int64_t fail_at_ = -1;
  int64_t capacity_ = -1;
  int64_t power_cycle_ = 0;
  bool off_ = false;
};

}  // namespace mw
