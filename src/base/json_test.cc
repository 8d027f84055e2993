#include "base/json.h"

#include <cmath>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/test_thrown_by.h"
#include "base/text.h"

using namespace mw;

namespace {

std::string parse_failure(const std::string& text) {
  return mw::test::thrown_by([&] { parse_json(text, "f.json"); });
}

}  // namespace

TEST_CASE("a value keeps its kind, its order and every bit through text") {
  const std::string text =
      R"({"b":1,"a":[true,false,null,-0.0,1e-07,0.1,"x\"\\\n\u0001é"],"o":{},"e":[],"big":9223372036854775807})";
  const Json json = parse_json(text, "f.json");
  CHECK(json.dump() == text);
  CHECK(parse_json(json.dump_pretty(), "f.json") == json);
  CHECK(json.find("b")->is_integer());
  CHECK(parse_json("1.0", "f").is_float());
  CHECK(parse_json("1e3", "f").is_float());
  CHECK(parse_json(" \n\t 1 ", "f").as_integer("f") == 1);
  CHECK(parse_json("1000000000000000019884624838656", "f").as_number("f") == 1e30);
  CHECK(parse_json(R"("\ud83d\ude00\/\b")", "f").as_string("f") == "\xF0\x9F\x98\x80/\b");
}

TEST_CASE("pretty text puts flat values on one line and wraps long ones") {
  Json json;
  json["name"] = "gpt2";
  json["shape"] = JsonArray{1, 2, 3};
  json["layers"].push_back(JsonObject{{"tp", 2}, {"dp", 4}});
  json["none"] = JsonObject();
  CHECK(json.dump_pretty() ==
        "{\n  \"name\": \"gpt2\",\n  \"shape\": [1, 2, 3],\n  \"layers\": [\n    {\"tp\": 2, "
        "\"dp\": 4}\n"
        "  ],\n  \"none\": {}\n}\n");
  Json wide;
  for (int i = 0; i < 40; ++i) wide.push_back(1000 + i);
  CHECK(starts_with(wide.dump_pretty(), "[\n  1000,\n  1001,"));
  CHECK(parse_json(wide.dump_pretty(), "f") == wide);
}

TEST_CASE("a broken file is reported with line and column") {
  CHECK(parse_failure("") == "f.json:1:1: must be a JSON value, is the end of the file");
  CHECK(parse_failure("{\n  \"a\": 1\n  \"b\": 2}") ==
        "f.json:3:3: must be ',' or '}', is \"\\\"\"");
  CHECK(parse_failure("{\"a\": 1,}") == "f.json:1:9: must be a key in double quotes, is \"}\"");
  CHECK(parse_failure("{a: 1}") == "f.json:1:2: must be a key in double quotes or '}', is \"a\"");
  CHECK(parse_failure("{\"a\" 1}") == "f.json:1:6: must be ':' after the key \"a\", is \"1\"");
  CHECK(parse_failure("[1 2]") == "f.json:1:4: must be ',' or ']', is \"2\"");
  CHECK(parse_failure("[NaN]") == "f.json:1:2: must be a JSON value, is \"NaN\"");
  CHECK(parse_failure("truex") == "f.json:1:1: must be a JSON value, is \"truex\"");
  CHECK(parse_failure("1 2") == "f.json:1:3: must be the end of the file, is \"2\"");
  CHECK(parse_failure("\"abc") == "f.json:1:1: the string has no end");
  CHECK(parse_failure("\"a\nb\"") == "f.json:1:3: a control character in a string; escape it");
  CHECK(parse_failure("\"\xff\"") == "f.json:1:2: not UTF-8");
  CHECK(parse_failure(R"("\x")") ==
        "f.json:1:3: must be one of \"\\/bfnrtu after a backslash, is \"x\"");
  CHECK(parse_failure(R"("\u12")") == "f.json:1:4: must be four hex digits after \\u, is \"12\"");
  CHECK(parse_failure(R"("\ud800")") == "f.json:1:2: half a surrogate pair");
  CHECK(parse_failure("01") == "f.json:1:1: no JSON number: 01");
  CHECK(parse_failure("1.") == "f.json:1:3: must be a digit, is the end of the file");
  CHECK(parse_failure("1e999") == "f.json:1:1: 1e999 does not fit a float of 64 bits");
  CHECK(parse_failure("{\"a\": 1, \"a\": 2}") == "f.json:1:10: the key \"a\" stands twice");
  CHECK(parse_failure(std::string(1000, '[')) == "f.json:1:202: more than 200 levels deep");
}

TEST_CASE("no truncation or flipped byte crashes the parser") {
  const std::string text = R"({"a":[1,-2.5e3,"x\u00e9\n",null],"b":{"c":true,"d":[[],{}]}})";
  for (size_t length = 0; length < text.size(); ++length) {
    CHECK_THROWS_AS(parse_json(text.substr(0, length), "f"), Error);
  }
  const RngKey key{1, 0, rng_site("json fuzz")};
  for (uint64_t i = 0; i < 20'000; ++i) {
    std::string broken = text;
    for (uint32_t flips = 0; flips <= i % 3; ++flips) {
      const uint32_t word = random_u32(key, 4 * i + flips);
      broken[word % broken.size()] ^= static_cast<char>(1 << (word >> 28) % 8);
    }
    try {
      const Json json = parse_json(broken, "f");
      CHECK(parse_json(json.dump(), "f") == json);
    } catch (const Error&) {
    }
  }
}

TEST_CASE("accessors name where, what is and what must be") {
  const Json json = parse_json(R"({"n_head": "12", "n_layer": 2.0, "list": [1,2], "o": {}})", "f");
  const std::string where = "models/x.json: n_head";
  CHECK(mw::test::thrown_by([&] { json.find("n_head")->as_integer(where); }) ==
        "models/x.json: n_head: must be an integer, is \"12\"");
  CHECK(mw::test::thrown_by([&] { json.find("n_layer")->as_integer("f"); }) ==
        "f: must be an integer, is 2.0");
  CHECK(mw::test::thrown_by([&] { json.find("list")->as_number("f"); }) ==
        "f: must be a number, is an array of 2");
  CHECK(mw::test::thrown_by([&] { json.find("o")->as_bool("f"); }) ==
        "f: must be true or false, is an object");
  CHECK(mw::test::thrown_by([&] { json.find("list")->as_object("f"); }) ==
        "f: must be an object, is an array of 2");
  CHECK(mw::test::thrown_by([&] { json.find("n_layer")->as_string("f"); }) ==
        "f: must be a string, is 2.0");
  CHECK(mw::test::thrown_by([&] { json.at("n_heads", "f"); }) ==
        "f: 'n_heads' is missing, did you mean 'n_head'?");
  CHECK(json.at("n_layer", "f").as_number("f") == 2.0);
  CHECK(json.find("list")->find("x") == nullptr);
}

TEST_CASE("what is not finite cannot be written and is named") {
  Json json;
  json["a"].push_back(JsonObject{{"loss", std::nan("")}});
  CHECK(mw::test::thrown_by([&] { json.dump(); }) ==
        "a[0].loss: nan cannot be written as JSON; it must be finite");
  CHECK_THROWS_AS(Json(std::numeric_limits<uint64_t>::max()), CheckFailure);
}
