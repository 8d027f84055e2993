#include "base/name.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/in_parallel.h"

using namespace mw;

TEST_CASE("names of the same text are the same") {
  const Name dp = "dp", again = std::string("dp"), other = std::string_view("tp");
  CHECK(dp == again);
  CHECK(&dp.str() == &again.str());
  CHECK(dp != other);
  CHECK(dp == "dp");
  CHECK(dp == std::string("dp"));
  CHECK("tp" != dp);
  CHECK(Name().empty());
  CHECK(Name() == "");
  const std::string& text = dp;
  CHECK(text == "dp");
}

TEST_CASE("names are in the order of their texts") {
  // Not in that of their first use.
  CHECK(Name("name_test z") > Name("name_test a"));
  CHECK(Name("name_test a") < Name("name_test b"));
  CHECK(Names{"a", "b"} < Names{"b"});
  CHECK(Names{"a"} < Names{"a", "a"});
  CHECK(Names{} < Names{""});
}

TEST_CASE("lists of names lose names and are written") {
  Names names = {"dp", "tp", "dp", "cp"};
  CHECK(erase(names, "dp") == 2);
  CHECK(names == Names{"tp", "cp"});
  CHECK(erase(names, "pp") == 0);
  erase_if(names, [](Name name) { return name == "tp"; });
  CHECK(names == Names{"cp"});
  CHECK(join(Names{"a", "b", "c"}, ", ") == "a, b, c");
  CHECK(join(Names{}, ", ").empty());
}

TEST_CASE("threads have the same names") {
  constexpr size_t kTexts = 100;  // more than a thread looks through of its own
  std::vector<std::vector<const std::string*>> seen(4, std::vector<const std::string*>(kTexts));
  in_parallel(seen.size(), static_cast<int>(seen.size()), [&](size_t t) {
    for (size_t i = 0; i < kTexts; ++i)
      seen[t][i] = &Name("name_test " + std::to_string((i * (2 * t + 1)) % kTexts)).str();
  });
  for (size_t t = 0; t < seen.size(); ++t) {
    for (size_t i = 0; i < kTexts; ++i) CHECK(seen[t][i] == seen[0][(i * (2 * t + 1)) % kTexts]);
  }
}
