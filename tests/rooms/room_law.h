// The law of the rooms: what each folder of src/ may include and must contain, checked on text
// alone.
//
// A room is src/<room>/ with one mw_room(<room> SOURCES … DEPS … TESTS …) in its CMakeLists.txt;
// the root CMakeLists.txt orders the rooms in MW_ROOMS. Every check returns its findings, one
// message each, each with file, what is and what must be; no finding means that the law is kept.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace mw::rooms {

using Findings = std::vector<std::string>;
// Text by path relative to the repository ("src/base/error.h").
using Tree = std::map<std::string, std::string>;

struct Room {
  std::vector<std::string> deps;
  // Every word of the room's CMakeLists.txt: a file that is no word of it is not built.
  std::set<std::string> words;
};

struct Rooms {
  std::vector<std::string> order;  // MW_ROOMS
  std::map<std::string, Room> rooms;
};

// The root CMakeLists.txt and all of src/ below `root`.
Tree read_tree(const std::filesystem::path& root);

// Reads MW_ROOMS and each mw_room call. What cannot be read is a finding.
Rooms parse_rooms(const Tree& tree, Findings& findings);

// `room`'s DEPS, theirs, and so on; without `room` unless it depends on itself.
std::set<std::string> reachable_rooms(const Rooms& rooms, const std::string& room);

// DEPS name rooms of MW_ROOMS that stand before the room, each once. Hence there is no cycle.
Findings check_deps(const Rooms& rooms);
// A room includes itself and the rooms that its DEPS reach, as "<room>/<file>.h", and the file
// exists.
Findings check_includes(const Tree& tree, const Rooms& rooms);
// Only `runtime` includes <ATen/…>, <torch/…>, <c10/…>, <caffe2/…>.
Findings check_torch(const Tree& tree);
// Every header has #pragma once, a source includes its own header first (which proves that the
// header stands alone), every source is built, every room has a README.md of at most 25 lines.
Findings check_files(const Tree& tree, const Rooms& rooms);
// No room but `models` and `checkpoint` knows a Hugging Face parameter's name.
Findings check_parameter_names(const Tree& tree);
// Outside src/pipeline/schedules no kind of schedule is asked for by its name, so that a new one is
// one new file: only the usual kind's is known, and those of the programs that predict samples.
Findings check_schedule_names(const Tree& tree);

}  // namespace mw::rooms
