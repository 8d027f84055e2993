// The checks themselves, on small made-up trees.
#include "room_law.h"

#include <doctest/doctest.h>

namespace mw::rooms {
namespace {

// Two rooms that keep the law: base, and ir that depends on it.
Tree lawful() {
  return {
      {"CMakeLists.txt",
       "project(x)\n# set(MW_ROOMS old)\nset(MW_ROOMS base # first\n  ir runtime)\n"},
      {"src/base/CMakeLists.txt", "mw_room(base\n  SOURCES error.cc\n  TESTS error_test.cc)\n"},
      {"src/base/README.md", "# base\n"},
      {"src/base/error.h", "// Errors.\n#pragma once\n#include <string>\n"},
      {"src/base/error.cc", "#include \"base/error.h\"\n"},
      {"src/base/error_test.cc", "#include \"base/error.h\"\n#include <doctest/doctest.h>\n"},
      {"src/ir/CMakeLists.txt", "mw_room(ir SOURCES graph.cc DEPS base LINK x TESTS)\n"},
      {"src/ir/README.md", "# ir\n"},
      {"src/ir/graph.h", "#pragma once\n  #  include \"base/error.h\"\n"},
      {"src/ir/graph.cc",
       "#include \"ir/graph.h\"\n#include <vector>\n#include \"base/error.h\"\n"},
  };
}

Findings all_findings(const Tree& tree) {
  Findings findings;
  const Rooms rooms = parse_rooms(tree, findings);
  for (const Findings& more :
       {check_deps(rooms), check_includes(tree, rooms), check_torch(tree), check_files(tree, rooms),
        check_parameter_names(tree), check_schedule_names(tree)}) {
    findings.insert(findings.end(), more.begin(), more.end());
  }
  return findings;
}

TEST_CASE("a lawful tree has no finding") { CHECK(all_findings(lawful()) == Findings{}); }

TEST_CASE("DEPS are read from mw_room, and what they reach is followed") {
  Findings findings;
  Tree tree = lawful();
  tree["CMakeLists.txt"] = "set(MW_ROOMS base ir ops)";
  tree["src/ops/CMakeLists.txt"] = "mw_room(ops SOURCES a.cc DEPS ir)";
  const Rooms rooms = parse_rooms(tree, findings);
  CHECK(findings == Findings{});
  CHECK(rooms.order == std::vector<std::string>{"base", "ir", "ops"});
  CHECK(rooms.rooms.at("ir").deps == std::vector<std::string>{"base"});
  CHECK(rooms.rooms.at("base").deps.empty());
  CHECK(reachable_rooms(rooms, "ops") == std::set<std::string>{"base", "ir"});
}

TEST_CASE("a forbidden include is found and named") {
  Tree tree = lawful();
  tree["src/base/error.cc"] += "#include \"ir/graph.h\"\n";
  CHECK(all_findings(tree) ==
        Findings{
            "src/base/error.cc:2: room base includes \"ir/graph.h\" of room ir; its DEPS reach no "
            "room; drop the include, or add ir to DEPS where the design has it"});
}

TEST_CASE(
    "an include of a room's file in angle brackets, without its room, or of no file is found") {
  Tree tree = lawful();
  tree["src/ir/graph.cc"] +=
      "#include <base/error.h>\n#include \"error.h\"\n#include \"base/none.h\"\n";
  CHECK(all_findings(tree) ==
        Findings{"src/ir/graph.cc:4: includes <base/error.h>; must be \"base/error.h\"",
                 "src/ir/graph.cc:5: includes \"error.h\"; must be \"<room>/<file>.h\"",
                 "src/ir/graph.cc:6: includes \"base/none.h\"; there is no src/base/none.h"});
}

TEST_CASE("a cycle of DEPS is found, whatever its length") {
  Tree tree = lawful();
  tree["src/base/CMakeLists.txt"] = "mw_room(base SOURCES error.cc DEPS ir TESTS error_test.cc)";
  CHECK(all_findings(tree) ==
        Findings{
            "src/base/CMakeLists.txt: DEPS ir does not stand before base in MW_ROOMS, so it would "
            "make a cycle; a room depends only on rooms before it"});
  tree = lawful();
  tree["src/ir/CMakeLists.txt"] = "mw_room(ir SOURCES graph.cc DEPS base base ir cluster runtime)";
  const Findings findings = all_findings(tree);
  REQUIRE(findings.size() == 4);
  CHECK(findings[0] == "src/ir/CMakeLists.txt: DEPS base is named twice");
  CHECK(findings[1].starts_with("src/ir/CMakeLists.txt: DEPS ir does not stand before ir"));
  CHECK(findings[2] == "src/ir/CMakeLists.txt: DEPS cluster is no room of MW_ROOMS");
  CHECK(findings[3].starts_with("src/ir/CMakeLists.txt: DEPS runtime does not stand before ir"));
}

TEST_CASE("a room that is not in MW_ROOMS, or has no mw_room, is found") {
  Tree tree = lawful();
  tree["src/utils/CMakeLists.txt"] = "# mw_room(utils)\nmw_room(util SOURCES a.cc)";
  tree["src/utils/README.md"] = "x";
  tree["src/loose.cc"] = "";
  tree["src/runtime/aten.h"] = "#pragma once\n";
  CHECK(all_findings(tree) == Findings{"src/loose.cc: lies in no room; move it into src/<room>/",
                                       "src/runtime: has no CMakeLists.txt with mw_room(runtime …)",
                                       "src/utils: is not in MW_ROOMS of CMakeLists.txt",
                                       "src/utils/CMakeLists.txt: has no mw_room(utils …)"});
}

TEST_CASE("libtorch is seen by runtime alone") {
  Tree tree = lawful();
  tree["src/runtime/CMakeLists.txt"] = "mw_room(runtime SOURCES aten.cc DEPS base)";
  tree["src/runtime/README.md"] = "x\n";
  tree["src/runtime/aten.cc"] = "#include <ATen/ATen.h>\n#include <c10/core/Allocator.h>\n";
  CHECK(all_findings(tree) == Findings{});
  tree["src/ir/graph.cc"] += "#include <torch/torch.h>\n";
  tree["src/base/error.h"] += "#include \"ATen/core/Tensor.h\"\n";
  CHECK(check_torch(tree) ==
        Findings{
            "src/base/error.h:4: room base includes <ATen/core/Tensor.h>; only runtime may see "
            "libtorch",
            "src/ir/graph.cc:4: room ir includes <torch/torch.h>; only runtime may see libtorch"});
}

TEST_CASE("a header without #pragma once and a source that is not built are found") {
  Tree tree = lawful();
  tree["src/base/error.h"] = "// #pragma once\n";
  tree["src/base/text.cc"] = "#include <string>\n";
  CHECK(all_findings(tree) ==
        Findings{
            "src/base/error.h: has no #pragma once",
            "src/base/text.cc: is not in src/base/CMakeLists.txt, so nothing builds it; add it to "
            "SOURCES or TESTS"});
}

TEST_CASE("a folder of which a room builds all sources needs no file named") {
  Tree tree = lawful();
  tree["src/base/kinds/a.cc"] = "#include <string>\n";
  CHECK(all_findings(tree).size() == 1);
  tree["src/base/CMakeLists.txt"] =
      "file(GLOB KINDS \"${CMAKE_CURRENT_SOURCE_DIR}/kinds/*.cc\")\n" +
      tree["src/base/CMakeLists.txt"];
  CHECK(all_findings(tree).empty());
  tree["src/base/other/kinds/a.cc"] = "#include <string>\n";
  CHECK(all_findings(tree).size() == 1);
}

TEST_CASE("a source that includes another header before its own is found") {
  Tree tree = lawful();
  tree["src/ir/graph.cc"] = "#include <vector>\n#include \"ir/graph.h\"\n";
  CHECK(all_findings(tree) ==
        Findings{
            "src/ir/graph.cc: the first include is vector; must be its own header \"ir/graph.h\""});
}

TEST_CASE("a README that is missing or longer than 25 lines is found") {
  Tree tree = lawful();
  tree.erase("src/base/README.md");
  tree["src/ir/README.md"] = std::string(25, '\n');
  CHECK(all_findings(tree) ==
        Findings{"src/base/README.md: is missing; say in at most 25 lines what the room is for"});
  tree["src/ir/README.md"] = std::string(26, '\n');
  CHECK(all_findings(tree).back() == "src/ir/README.md: has 26 lines; must have 1 to 25");
}

TEST_CASE("a parameter's name outside models and checkpoint is found") {
  Tree tree = lawful();
  tree["src/ir/graph.cc"] +=
      "auto a = find(\"transformer.wte.weight\");\nint wte_2, xwte;  // none\n";
  CHECK(
      all_findings(tree) ==
      Findings{
          "src/ir/graph.cc:4: room ir names the parameter 'wte'; only models and checkpoint know a "
          "parameter's name"});
  tree = lawful();
  tree["CMakeLists.txt"] = "set(MW_ROOMS base ir models)";
  tree["src/models/CMakeLists.txt"] = "mw_room(models SOURCES gpt2.cc DEPS ir)";
  tree["src/models/README.md"] = "# models\n";
  tree["src/models/gpt2.cc"] = "const char* kName = \"wte\";\n";
  CHECK(all_findings(tree) == Findings{});
}

TEST_CASE("a schedule's name outside its file is found") {
  Tree tree = lawful();
  tree["src/pipeline/schedules/x.cc"] = "extern const ScheduleKind kX = {.name = \"x-1\"};\n";
  tree["src/ir/graph.cc"] += "bool a = kind == \"x-1\";\nbool b = word == \"x-12\";  // none\n";
  CHECK(check_schedule_names(tree) ==
        Findings{"src/ir/graph.cc:4: names the schedule \"x-1\"; ask for a fact of its "
                 "ScheduleKind"});
  tree["src/ir/graph_test.cc"] = "bool a = kind == \"x-1\";\n";
  CHECK(check_schedule_names(tree).size() == 1);
}

}  // namespace
}  // namespace mw::rooms
