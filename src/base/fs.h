// Files behind an interface, so that tests own the disk (base/fake_fs.h).
//
// What the user can repair (no such file, a folder where a file must be, no permission) throws
// Error with the path; what went wrong with the disk (full, I/O error) throws RunError.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace mw {

// A file that is being written. Data outlives a crash of the machine only after sync().
class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes without a report
  virtual void write(std::span<const std::byte> bytes) = 0;
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  virtual void sync() = 0;   // fsync
  virtual void close() = 0;  // reports what the system reports only now
};

// A whole file in memory, mapped where the file system can. Whoever holds it must not let the file
// be shortened meanwhile.
struct MappedFile {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  // keeps the bytes alive
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

enum class PathKind { kNone, kFile, kDirectory };

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual std::string read_file(const std::string& path) = 0;
  virtual MappedFile map_file(const std::string& path) = 0;
  // A new file, or the old one emptied.
  virtual std::unique_ptr<WritableFile> create_file(const std::string& path) = 0;
  // The same, and nobody else has it so until it is closed: Error where somebody has.
  virtual std::unique_ptr<WritableFile> create_file_alone(const std::string& path) = 0;
  // The old file at its end, or a new one.
  virtual std::unique_ptr<WritableFile> append_file(const std::string& path) = 0;
  // Makes the names in the directory (files created, renamed, removed) outlive a crash.
  virtual void sync_directory(const std::string& path) = 0;
  // Replaces a file `to` at once; a directory `to` must be empty.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // A file or an empty directory.
  virtual void remove(const std::string& path) = 0;
  // The parent must be there; the directory itself may be. True if it was not: of several that make
  // it at once, one is told so.
  virtual bool make_directory(const std::string& path) = 0;
  // The names in a directory, sorted.
  virtual std::vector<std::string> list(const std::string& path) = 0;
  // Follows links; a link to nowhere is kNone.
  virtual PathKind kind(const std::string& path) = 0;
  virtual bool is_link(const std::string& path) = 0;
  virtual Bytes file_size(const std::string& path) = 0;
  // What a user without privileges may still write on the disk that holds `path`.
  virtual Bytes free_space(const std::string& path) = 0;

  bool exists(const std::string& path) { return kind(path) != PathKind::kNone; }
  bool is_directory(const std::string& path) { return kind(path) == PathKind::kDirectory; }
  // Create, write, close; no sync.
  void write_file(const std::string& path, std::string_view text);
  // Write under path + ".PID.tmp", sync, rename, sync the directory: after a crash the old text or
  // the new; of several processes that do so the whole text of one.
  void write_file_atomically(const std::string& path, std::string_view text);
  void make_directories(const std::string& path);
  // A file or a directory with all in it, links unfollowed; nothing where there is none.
  void remove_all(const std::string& path);
  // "runs/x.json: does not exist, did you mean 'runs/y.json'?", or the folder that is missing.
  std::string missing_message(const std::string& path);
};

// The operating system's.
FileSystem& posix_fs();

// "a" and "b" are "a/b"; an absolute second path is taken as it is.
std::string join_path(std::string_view directory, std::string_view name);
// "a/b/c" is in "a/b", "c" in ".", "/c" in "/".
std::string parent_path(std::string_view path);
// "c" of "a/b/c".
std::string base_name(std::string_view path);

}  // namespace mw
