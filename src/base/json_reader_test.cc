#include "base/json_reader.h"

#include <array>
#include <string>
#include <string_view>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "base/toml.h"

using namespace mw;

namespace {

constexpr std::array<std::string_view, 3> kSchedules = {"gpipe", "1f1b", "interleaved-1f1b"};

std::string findings(const Diagnostics& diagnostics) {
  try {
    diagnostics.throw_if_any();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a reader reads what is there and falls back where it may") {
  const Json json = parse_json(
      R"({"n_layer": 12, "eps": 1, "tied": true, "name": "gpt2", "shape": [2, 3], "null": null,
          "inner": {"x": 0.5}, "stages": [{"layers": 4}, {"layers": 8}], "schedule": "1f1b"})",
      "m.json");
  JsonReader reader(json, "m.json");
  CHECK(reader.integer("n_layer", {.min = 1}) == 12);
  CHECK(reader.number("eps") == 1.0);
  CHECK(reader.boolean("tied"));
  CHECK(reader.string("name") == "gpt2");
  CHECK(reader.integers("shape") == std::vector<int64_t>{2, 3});
  CHECK(reader.integer_or("null", 7) == 7);
  CHECK(reader.string_or("absent", "x") == "x");
  CHECK(reader.choice("schedule", kSchedules) == "1f1b");
  CHECK(reader.choice_or("absent2", "gpipe", kSchedules) == "gpipe");
  JsonReader inner = reader.object("inner");
  CHECK(inner.number("x") == 0.5);
  inner.finish();
  int64_t sum = 0;
  for (JsonReader& stage : reader.objects("stages")) sum += stage.integer("layers");
  CHECK(sum == 12);
  CHECK(reader.has("n_layer"));
  CHECK_FALSE(reader.has("null"));
  reader.finish();
}

TEST_CASE("all findings of one object are reported together") {
  const Json json = parse_json(
      R"({"n_heads": 12, "n_layer": "12", "eps": -1, "shape": [1, "x", 0], "schedule": "1f1c",
          "inner": 3, "stages": [{"layer": 4}]})",
      "m.json");
  Diagnostics diagnostics;
  JsonReader reader(json, "models/m.json", &diagnostics);
  reader.integer("n_head");
  reader.integer("n_layer", {.min = 1});
  reader.number("eps", {.min = 0});
  reader.integers("shape", {.min = 1});
  reader.choice("schedule", kSchedules);
  JsonReader inner = reader.object("inner");
  CHECK(inner.integer("y") == 0);  // one finding is enough for what is no object
  inner.finish();
  for (JsonReader& stage : reader.objects("stages")) {
    stage.integer("layers", {.min = 1, .max = 96});
    stage.finish();
  }
  reader.fail("n_layer", "{} does not divide {}", 5, 12);
  reader.finish();
  CHECK(findings(diagnostics) ==
        "models/m.json: n_head: is missing; must be an integer\n"
        "models/m.json: n_layer: must be an integer of at least 1, is \"12\"\n"
        "models/m.json: eps: must be a number of at least 0, is -1\n"
        "models/m.json: shape[1]: must be an integer of at least 1, is \"x\"\n"
        "models/m.json: shape[2]: must be an integer of at least 1, is 0\n"
        "models/m.json: schedule: must be \"gpipe\", \"1f1b\" or \"interleaved-1f1b\", is "
        "\"1f1c\", did "
        "you mean '1f1b'?\n"
        "models/m.json: inner: must be an object, is 3\n"
        "models/m.json: stages[0].layers: is missing; must be an integer from 1 to 96\n"
        "models/m.json: stages[0].layer: unknown key, did you mean 'layers'?\n"
        "models/m.json: n_layer: 5 does not divide 12\n"
        "models/m.json: n_heads: unknown key, did you mean 'n_head'?");
}

TEST_CASE("without diagnostics the first finding is thrown") {
  const Json json = parse_json("{}", "m.json");
  JsonReader reader(json, "m.json");
  CHECK_THROWS_WITH_AS(reader.string("name"), "m.json: name: is missing; must be a string", Error);
  const Json array = parse_json("[]", "m.json");
  CHECK_THROWS_WITH_AS(JsonReader(array, "m.json"), "m.json: must be an object, is an empty array",
                       Error);
}

TEST_CASE("TOML keeps the file's order and findings name the line") {
  const std::string text =
      "name = \"dgx\"\n"
      "peak = 312e12 # FLOP/s\n"
      "\n"
      "[link.inner]\n"
      "GBps = 300\n"
      "[link.outer]\n"
      "GBps = \"25\"\n"
      "[[node]]\n"
      "count = 4\n"
      "[[node]]\n"
      "counts = 5\n"
      "when = 2026-01-02\n";
  const Toml toml = parse_toml(text, "c.toml");
  CHECK(toml.root.dump() ==
        R"({"name":"dgx","peak":3.12e+14,"link":{"inner":{"GBps":300},"outer":{"GBps":"25"}},)"
        R"("node":[{"count":4},{"counts":5,"when":"2026-01-02"}]})");
  Diagnostics diagnostics;
  JsonReader reader(toml.root, "c.toml", &diagnostics, &toml.lines);
  reader.ignore("name");
  reader.ignore("peak");
  JsonReader link = reader.object("link");
  link.object("inner").number("GBps");
  link.object("outer").number("GBps");
  for (JsonReader& node : reader.objects("node")) {
    node.integer("count");
    node.finish();
  }
  reader.finish();
  CHECK(findings(diagnostics) ==
        "c.toml:7: link.outer.GBps: must be a number, is \"25\"\n"
        "c.toml:10: node[1].count: is missing; must be an integer\n"
        "c.toml:11: node[1].counts: unknown key, did you mean 'count'?\n"
        "c.toml:12: node[1].when: unknown key");
}

TEST_CASE("a byte order mark before TOML or JSON is no part of it") {
  CHECK(parse_toml("\xEF\xBB\xBF"
                   "a = 1\n",
                   "x.toml")
            .root.at("a", "x.toml")
            .as_integer("a") == 1);
  CHECK(parse_json("\xEF\xBB\xBF{\"a\": 1}", "x.json").at("a", "x.json").as_integer("a") == 1);
}

TEST_CASE("a TOML key of very many parts is refused before it is read") {
  const auto key = [](int parts) {
    std::string text = "a";
    for (int i = 1; i < parts; ++i) text += ".a";
    return text;
  };
  struct Form {
    const char* text;
    int most;  // parts, where the key stands in another's value
  };
  for (const Form& form :
       {Form{"b = 1\n{} = 1.5\n", 64}, Form{"#\n[{}]\n", 64}, Form{"#\n[[{}]]\n", 64},
        Form{"# '\nb = {{ {} = 1 }}\n", 63}, Form{"#\nb = [1.5, {{ {} = 1 }}]\n", 63}}) {
    CAPTURE(form.text);
    const auto parse = [&](int parts) {
      parse_toml(fmt::format(fmt::runtime(form.text), key(parts)), "x.toml");
    };
    CHECK_NOTHROW(parse(form.most));
    for (const int parts : {form.most + 1, 12'000, 300'000}) {
      CHECK_THROWS_WITH_AS(parse(parts), "x.toml:2: a key has more than 64 parts; use fewer",
                           Error);
    }
  }
  // Dots of texts and numbers are no key's, nor do keys of one table add up.
  const std::string dots(200, '.');
  std::string many;
  for (int i = 0; i < 100; ++i) many += fmt::format("k{}.b = [[1.5, {{ c.d = 2.5 }}], []]\n", i);
  CHECK_NOTHROW(
      parse_toml(fmt::format("a = \"{0}\\\" {0}\" # {0}\nb = '{0}\\'\nc = \"\"\"{0}\n\"{0}\\\n"
                             "  {0}\"\"\"\"\nd = '''{0}\\'''\n\"{0}\".'{0}' = 1\n{1}",
                             dots, many),
                 "x.toml"));
}

TEST_CASE("broken TOML is reported with line and column") {
  CHECK_THROWS_AS(parse_toml("a = \n", "c.toml"), Error);
  try {
    parse_toml("a = 1\nb == 2\n", "c.toml");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).rfind("c.toml:2:4: ", 0) == 0);
  }
}

TEST_CASE("what TOML++ asserts of is an error like any other") {
  CHECK_THROWS_WITH_AS(parse_toml("a = 1\n[[[b]]]\n", "f.toml"),
                       "f.toml:2: a key or value begins with a character that it cannot", Error);
  for (const auto& [text, line] :
       {std::pair{"[[[", 1}, {"a = 1\n\n[[[\nb = 2\n", 3}, {"a = [\n1,\n2]\nb = 3\n\n[[[", 6}}) {
    CAPTURE(std::string(text));
    CHECK_THROWS_WITH_AS(
        parse_toml(text, "f.toml"),
        fmt::format("f.toml:{}: a key or value begins with a character that it cannot", line)
            .c_str(),
        Error);
  }
}
