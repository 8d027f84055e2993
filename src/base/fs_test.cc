#include "base/fs.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fake_fs.h"

using namespace mw;
using FileNames = std::vector<std::string>;

namespace {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const char* base = std::getenv("TMPDIR");
    std::string name = join_path(base ? base : "/tmp", "mw_fs_test.XXXXXX");
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() { posix_fs().remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string text_of(const MappedFile& file) { return std::string(file.text()); }

// What both file systems must do alike.
void check_file_system(FileSystem& fs, const std::string& root) {
  const std::string folder = join_path(root, "a/b");
  const std::string file = join_path(folder, "model.json");
  fs.make_directories(folder);
  fs.make_directories(folder);
  fs.write_file(file, "hello");
  CHECK(fs.read_file(file) == "hello");
  CHECK(text_of(fs.map_file(file)) == "hello");
  CHECK(fs.file_size(file) == Bytes(5));
  {
    const auto out = fs.append_file(file);
    out->write(" world");
    out->sync();
    out->close();
  }
  CHECK(fs.read_file(file) == "hello world");
  fs.write_file_atomically(file, "new");
  CHECK(fs.read_file(file) == "new");
  CHECK(fs.list(folder) == FileNames{"model.json"});
  fs.write_file(join_path(folder, "empty"), "");
  CHECK(fs.map_file(join_path(folder, "empty")).bytes.empty());
  CHECK(fs.list(folder) == FileNames{"empty", "model.json"});
  CHECK(fs.is_directory(folder));
  CHECK(fs.exists(file));
  CHECK(fs.kind(join_path(folder, "x")) == PathKind::kNone);
  CHECK(fs.free_space(folder) > Bytes(0));

  const auto error = [&](std::string text) { return root + text; };
  CHECK_THROWS_WITH_AS(fs.read_file(root + "/a/b/modle.json"),
                       error("/a/b/modle.json: does not exist, did you mean 'model.json'?").c_str(),
                       Error);
  CHECK_THROWS_WITH_AS(
      fs.map_file(root + "/a/x/y/z"),
      error("/a/x/y/z: does not exist: there is no folder '" + root + "/a/x'").c_str(), Error);
  CHECK_THROWS_WITH_AS(fs.read_file(root + "/a"), error("/a: cannot read: Is a directory").c_str(),
                       Error);
  CHECK_THROWS_WITH_AS(fs.create_file(root + "/a"),
                       error("/a: cannot write: Is a directory").c_str(), Error);
  CHECK_THROWS_WITH_AS(fs.list(root + "/nowhere"), error("/nowhere: does not exist").c_str(),
                       Error);
  CHECK_THROWS_WITH_AS(fs.remove(root + "/a"),
                       error("/a: cannot remove: Directory not empty").c_str(), Error);
  CHECK_THROWS_AS(fs.create_file(file + "/x"), Error);
  CHECK_THROWS_AS(fs.make_directory(file), Error);
  CHECK_THROWS_AS(fs.rename(root + "/x", root + "/y"), Error);

  fs.make_directories(join_path(root, "full"));
  fs.write_file(join_path(root, "full/x"), "");
  CHECK_THROWS_AS(fs.rename(folder, join_path(root, "full")), Error);
  fs.remove_all(join_path(root, "full"));
  fs.rename(folder, join_path(root, "c"));
  fs.sync_directory(root);
  CHECK(fs.read_file(join_path(root, "c/model.json")) == "new");
  fs.remove_all(join_path(root, "c"));
  fs.remove_all(join_path(root, "c"));
  CHECK(fs.list(root) == FileNames{"a"});
  CHECK(fs.make_directory(join_path(root, "b")));
  CHECK_FALSE(fs.make_directory(join_path(root, "b")));
}

}  // namespace

TEST_CASE("paths are joined and taken apart") {
  CHECK(join_path("a", "b") == "a/b");
  CHECK(join_path("a/", "b") == "a/b");
  CHECK(join_path("", "b") == "b");
  CHECK(join_path("a", "/b") == "/b");
  CHECK(parent_path("a/b/c") == "a/b");
  CHECK(parent_path("a/b/") == "a");
  CHECK(parent_path("c") == ".");
  CHECK(parent_path("/c") == "/");
  CHECK(base_name("a/b/") == "b");
  CHECK(base_name("c") == "c");
}

TEST_CASE("the operating system's files and the fake ones behave alike") {
  const TemporaryDirectory temporary;
  check_file_system(posix_fs(), temporary.path());
  FakeFileSystem fake;
  fake.make_directory("root");
  check_file_system(fake, "root");
}

TEST_CASE("remove_all does not follow a link") {
  const TemporaryDirectory temporary;
  FileSystem& fs = posix_fs();
  fs.make_directories(temporary.path() + "/kept");
  fs.write_file(temporary.path() + "/kept/file", "x");
  fs.make_directories(temporary.path() + "/gone");
  REQUIRE(::symlink((temporary.path() + "/kept").c_str(),
                    (temporary.path() + "/gone/link").c_str()) == 0);
  fs.remove_all(temporary.path() + "/gone");
  CHECK(fs.list(temporary.path()) == FileNames{"kept"});
  CHECK(fs.read_file(temporary.path() + "/kept/file") == "x");
}

TEST_CASE("what does not end is refused") {
  CHECK_THROWS_WITH_AS(posix_fs().read_file("/dev/zero"),
                       "/dev/zero: gives more than 256 MiB without an end; is it a file?", Error);
}

TEST_CASE("a full disk is a RunError and keeps what fitted") {
  FakeFileSystem fs;
  fs.set_capacity(Bytes(8));
  fs.write_file("a", "12345");
  CHECK(fs.free_space(".") == Bytes(3));
  CHECK_THROWS_WITH_AS(fs.write_file("b", "67890"), "b: cannot write: No space left on device",
                       RunError);
  CHECK(fs.read_file("b") == "678");
}

TEST_CASE("a failing operation fails once") {
  FakeFileSystem fs;
  fs.fail_at(1);
  CHECK_THROWS_WITH_AS(fs.write_file("a", "x"), "a: cannot write: Input/output error", RunError);
  fs.write_file("a", "y");
  CHECK(fs.read_file("a") == "y");
}

TEST_CASE("a crash takes what was not synced") {
  FakeFileSystem fs;
  fs.write_file("lost", "data");  // neither its data nor its name is synced
  fs.restart(FakeFileSystem::Loss::kAll);
  CHECK_FALSE(fs.exists("lost"));

  fs.write_file_atomically("kept", "old");
  fs.write_file("kept", "new");
  fs.restart(FakeFileSystem::Loss::kAll);
  CHECK(fs.read_file("kept") == "old");

  fs.write_file("kept", "new");
  fs.rename("kept", "renamed");
  fs.restart(FakeFileSystem::Loss::kNone);
  CHECK(fs.read_file("renamed") == "new");
  CHECK_FALSE(fs.exists("kept"));

  fs.remove("renamed");
  fs.restart(FakeFileSystem::Loss::kAll);
  CHECK(fs.read_file("renamed") == "new");
}

TEST_CASE("a file that cannot be written whole leaves the old one and nothing beside it") {
  FakeFileSystem fs;
  fs.write_file_atomically("f", "old");
  fs.set_capacity(Bytes(8));
  CHECK_THROWS_AS(fs.write_file_atomically("f", "much longer than that"), RunError);
  CHECK(fs.read_file("f") == "old");
  CHECK(fs.list(".") == std::vector<std::string>{"f"});
}

TEST_CASE("after a crash nothing works until the restart") {
  FakeFileSystem fs;
  fs.write_file("a", "x");
  fs.crash_at(fs.operations());
  CHECK_THROWS_AS(fs.write_file("b", "y"), SimulatedCrash);
  CHECK_THROWS_AS(fs.read_file("a"), SimulatedCrash);
  fs.restart(FakeFileSystem::Loss::kNone);
  CHECK(fs.read_file("a") == "x");
}

TEST_CASE("an atomic write is the old text or the new after a crash anywhere") {
  for (int64_t crash = 0;; ++crash) {
    bool finished = true;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      FakeFileSystem fs;
      fs.write_file_atomically("f", "old");
      fs.crash_at(fs.operations() + crash);
      try {
        fs.write_file_atomically("f", "new!");
      } catch (const SimulatedCrash&) {
        finished = false;
      }
      fs.restart(FakeFileSystem::Loss::kRandom, seed);
      const std::string text = fs.read_file("f");
      CHECK((text == "old" || text == "new!"));
      if (finished) CHECK(text == "new!");
    }
    if (finished) {
      CHECK(crash == 5);  // create, write, sync, rename, sync the directory
      break;
    }
  }
}

TEST_CASE("the fake crash does bite: without the sync an atomic write is torn") {
  int torn = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    FakeFileSystem fs;
    fs.write_file_atomically("f", "old");
    fs.write_file("f.tmp", "new!");
    fs.rename("f.tmp", "f");
    fs.sync_directory(".");
    fs.restart(FakeFileSystem::Loss::kRandom, seed);
    torn += fs.read_file("f") != "new!";
  }
  CHECK(torn > 0);
}

TEST_CASE("a flipped bit stays flipped") {
  FakeFileSystem fs;
  fs.write_file("a", "\x01");
  fs.flip_bit("a", 1);
  CHECK(fs.read_file("a") == "\x03");
}
