#include "base/fs.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"

namespace mw {

std::string join_path(std::string_view directory, std::string_view name) {
  if (directory.empty() || name.starts_with('/')) return std::string(name);
  if (directory.ends_with('/')) return std::string(directory) + std::string(name);
  return fmt::format("{}/{}", directory, name);
}

std::string parent_path(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

std::string base_name(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));  // npos + 1 is 0
}

void FileSystem::write_file(const std::string& path, std::string_view text) {
  const auto file = create_file(path);
  file->write(text);
  file->close();
}

void FileSystem::write_file_atomically(const std::string& path, std::string_view text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  try {
    const auto file = create_file(temporary);
    file->write(text);
    file->sync();
    file->close();
    rename(temporary, path);
  } catch (...) {
    try {
      remove(temporary);
    } catch (const std::exception&) {  // it is not there
    }
    throw;
  }
  sync_directory(parent_path(path));
}

void FileSystem::make_directories(const std::string& path) {
  if (path.empty() || is_directory(path)) return;
  const std::string parent = parent_path(path);
  if (parent != path) make_directories(parent);
  make_directory(path);
}

void FileSystem::remove_all(const std::string& path) {
  if (!is_link(path)) {
    const PathKind what = kind(path);
    if (what == PathKind::kNone) return;
    if (what == PathKind::kDirectory) {
      for (const std::string& name : list(path)) remove_all(join_path(path, name));
    }
  }
  remove(path);
}

std::string FileSystem::missing_message(const std::string& path) {
  const std::string parent = parent_path(path);
  if (is_link(path)) return fmt::format("{}: is a link to what does not exist", path);
  if (kind(parent) == PathKind::kDirectory) {
    const std::string hint = did_you_mean(base_name(path), list(parent));
    return fmt::format("{}: does not exist{}", path, hint);
  }
  std::string missing = parent;
  while (parent_path(missing) != missing && !exists(parent_path(missing)))
    missing = parent_path(missing);
  return fmt::format("{}: does not exist: there is no folder '{}'", path, missing);
}

namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  // Hands the descriptor out: whoever takes it closes it.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

[[noreturn]] void throw_errno(const std::string& path, std::string_view action, int error) {
  const std::string message = fmt::format("{}: cannot {}: {}", path, action, std::strerror(error));
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENOTDIR:
    case EEXIST:
    case ENOTEMPTY:
    case ENAMETOOLONG:
    case ELOOP:
    case EXDEV:
    case ENOENT:
    case EINVAL:
    case EBUSY: throw Error(message);
    default: throw RunError(message);
  }
}

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_errno(path_, "write", errno);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  void sync() override {
    if (::fsync(fd_.get()) != 0) throw_errno(path_, "sync", errno);
  }

  void close() override {
    const int fd = fd_.release();
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) throw_errno(path_, "close", errno);
  }

  // False where somebody else has locked it; a file system without locks has none.
  bool lock() { return ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }
  // False where it has been given another name meanwhile.
  bool is_at(const std::string& path) {
    struct stat mine, there;
    return ::fstat(fd_.get(), &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
           mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
  }
  void truncate() {
    if (::ftruncate(fd_.get(), 0) != 0) throw_errno(path_, "empty", errno);
  }

 private:
  std::string path_;
  FileDescriptor fd_;
};

// What a pipe, or a device, may give that no size says.
constexpr int64_t kMostOfPipe = int64_t{256} << 20;

class PosixFileSystem : public FileSystem {
 public:
  std::string read_file(const std::string& path) override {
    const FileDescriptor fd(open_for_reading(path));
    const int64_t size = size_of(fd, path);
    std::string text;
    // One byte more than the file says: most files end in a single read, and a pipe works too.
    for (size_t room = static_cast<size_t>(size) + 1;; room = 1 << 16) {
      const size_t had = text.size();
      text.resize(had + room);
      const ssize_t got = ::read(fd.get(), text.data() + had, room);
      if (got < 0 && errno != EINTR) throw_errno(path, "read", errno);
      text.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
      if (got == 0) return text;
      if (text.size() > static_cast<size_t>(size + kMostOfPipe))
        throw_error("{}: gives more than {} without an end; is it a file?", path,
                    format_bytes(kMostOfPipe));
    }
  }

  MappedFile map_file(const std::string& path) override {
    const FileDescriptor fd(open_for_reading(path));
    const size_t size = static_cast<size_t>(size_of(fd, path));
    if (size == 0) return {};
    void* start = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (start == MAP_FAILED) throw_errno(path, "map", errno);
    std::shared_ptr<const void> owner(
        start, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
    return {{static_cast<const std::byte*>(start), size}, std::move(owner)};
  }

  std::unique_ptr<WritableFile> create_file(const std::string& path) override {
    return open_for_writing(path, O_TRUNC);
  }

  // A lock, which no process leaves behind.
  std::unique_ptr<WritableFile> create_file_alone(const std::string& path) override {
    std::unique_ptr<PosixWritableFile> file = open_for_writing(path, 0);
    if (!file->lock() || !file->is_at(path))
      throw_error("{}: another process writes it; wait until it has ended", path);
    file->truncate();
    return file;
  }

  std::unique_ptr<WritableFile> append_file(const std::string& path) override {
    return open_for_writing(path, O_APPEND);
  }

  void sync_directory(const std::string& path) override {
    const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) fail(path, "open", errno);
    if (::fsync(fd.get()) != 0) throw_errno(path, "sync", errno);
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return;
    const int error = errno;
    if (error == ENOENT && !exists(from)) throw Error(missing_message(from));
    throw_errno(from, fmt::format("be renamed to {}", to), error);
  }

  void remove(const std::string& path) override {
    if (std::remove(path.c_str()) != 0) fail(path, "remove", errno);
  }

  bool make_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) == 0) return true;
    const int error = errno;
    if (error == EEXIST && is_directory(path)) return false;
    if (error == EEXIST && is_link(path) && !exists(path)) throw Error(missing_message(path));
    if (error == EEXIST) throw_error("{}: is a file, must be a folder", path);
    fail(path, "make the directory", error);
  }

  std::vector<std::string> list(const std::string& path) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
    if (!directory) fail(path, "list", errno);
    std::vector<std::string> names;
    while (true) {
      errno = 0;
      const dirent* entry = ::readdir(directory.get());
      if (!entry && errno != 0) throw_errno(path, "list", errno);
      if (!entry) break;
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  PathKind kind(const std::string& path) override {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return PathKind::kNone;
    return S_ISDIR(info.st_mode) ? PathKind::kDirectory : PathKind::kFile;
  }

  bool is_link(const std::string& path) override {
    struct stat info;
    return ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
  }

  Bytes file_size(const std::string& path) override {
    const FileDescriptor fd(open_for_reading(path));
    return Bytes(size_of(fd, path));
  }

  Bytes free_space(const std::string& path) override {
    struct statvfs info;
    if (::statvfs(path.c_str(), &info) != 0) fail(path, "ask for the free space", errno);
    return Bytes(static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize));
  }

 private:
  [[noreturn]] void fail(const std::string& path, std::string_view action, int error) {
    if (error == ENOENT) throw Error(missing_message(path));
    throw_errno(path, action, error);
  }

  int open_for_reading(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(path, "open", errno);
    return fd;
  }

  std::unique_ptr<PosixWritableFile> open_for_writing(const std::string& path, int how) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666);
    if (fd < 0) fail(path, "write", errno);
    return std::make_unique<PosixWritableFile>(path, fd);
  }

  // Throws for a directory, which can be opened but not read.
  int64_t size_of(const FileDescriptor& fd, const std::string& path) {
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) throw_errno(path, "ask for the size", errno);
    if (S_ISDIR(info.st_mode)) throw_errno(path, "read", EISDIR);
    return info.st_size;
  }
};

}  // namespace

FileSystem& posix_fs() {
  static PosixFileSystem fs;
  return fs;
}

}  // namespace mw
