// The law of the rooms, held against this repository. MW_SOURCE_DIR is the repository's root.
#include "room_law.h"

#include <doctest/doctest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mw::rooms {
namespace {

struct Repository {
  Tree tree = read_tree(MW_SOURCE_DIR);
  Findings findings;
  Rooms rooms = parse_rooms(tree, findings);
};

// One CHECK for all findings, so that a failure shows each of them once.
void expect_none(const Findings& findings) {
  CHECK_MESSAGE(findings.empty(), fmt::format("\n{}", fmt::join(findings, "\n")));
}

TEST_CASE_FIXTURE(Repository, "every folder of src is a room of MW_ROOMS") {
  CHECK(rooms.rooms.contains("base"));
  expect_none(findings);
}

TEST_CASE_FIXTURE(Repository, "rooms depend only on rooms that stand before them") {
  expect_none(check_deps(rooms));
}

TEST_CASE_FIXTURE(Repository, "every include is covered by the room's DEPS") {
  expect_none(check_includes(tree, rooms));
}

TEST_CASE_FIXTURE(Repository, "only runtime sees libtorch") { expect_none(check_torch(tree)); }

TEST_CASE_FIXTURE(Repository, "headers, sources and READMEs are as the style says") {
  expect_none(check_files(tree, rooms));
}

TEST_CASE_FIXTURE(Repository, "no room but models and checkpoint knows a parameter's name") {
  expect_none(check_parameter_names(tree));
}

TEST_CASE_FIXTURE(Repository, "a kind of schedule is known by its facts, not by its name") {
  expect_none(check_schedule_names(tree));
}

}  // namespace
}  // namespace mw::rooms
