// Reads an object key by key and reports everything wrong with it: wrong kinds, missing keys, keys
// that nobody asked for.
//
//   const Json json = parse_json(text, file);
//   Diagnostics diagnostics;
//   JsonReader reader(json, file, &diagnostics);
//   config.n_layer = reader.integer("n_layer", {.min = 1});
//   config.dropout = reader.number_or("dropout", 0.0);
//   reader.finish();
//   diagnostics.throw_if_any();
//
// A finding reads "models/x.json: n_head: must be an integer, is "12""; with key lines
// (base/toml.h) "clusters/x.toml:12: nodes[1].count: …". A value that has a finding is returned as
// 0, "" or empty.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace mw {

// From a key path such as "nodes[1].count" to its line in the file.
using KeyLines = std::map<std::string, int, std::less<>>;

class JsonReader {
 public:
  struct IntegerRange {
    int64_t min = std::numeric_limits<int64_t>::min();
    int64_t max = std::numeric_limits<int64_t>::max();
  };
  struct NumberRange {  // both ends belong to it
    double min = -std::numeric_limits<double>::infinity();
    double max = std::numeric_limits<double>::infinity();
  };

  // Findings go to *out, or without it are thrown at once. REQUIRES: json, *out and *lines outlive
  // the reader.
  JsonReader(const Json& json, std::string file, Diagnostics* out = nullptr,
             const KeyLines* lines = nullptr);
  // A temporary would be gone before the first key is read.
  JsonReader(Json&&, std::string, Diagnostics* = nullptr, const KeyLines* = nullptr) = delete;

  // Is the key there and not null? Does not count as reading it.
  bool has(std::string_view key) const;

  // A required key.
  int64_t integer(std::string_view key, IntegerRange range = no_limits());
  double number(std::string_view key, NumberRange range = no_number_limits());
  bool boolean(std::string_view key);
  std::string string(std::string_view key);
  // A string that must be one of `names`; the first one where it is not.
  std::string choice(std::string_view key, std::span<const std::string_view> names);
  std::vector<int64_t> integers(std::string_view key, IntegerRange range = no_limits());
  std::vector<double> numbers(std::string_view key);
  std::vector<std::string> strings(std::string_view key);
  // Readers of a nested object and of an array of objects; each wants its own finish().
  JsonReader object(std::string_view key);
  std::vector<JsonReader> objects(std::string_view key);

  // The fallback where the key is missing or null.
  int64_t integer_or(std::string_view key, int64_t fallback, IntegerRange range = no_limits());
  double number_or(std::string_view key, double fallback, NumberRange range = no_number_limits());
  bool boolean_or(std::string_view key, bool fallback);
  std::string string_or(std::string_view key, std::string_view fallback);
  std::string choice_or(std::string_view key, std::string_view fallback,
                        std::span<const std::string_view> names);

  // The raw value, nullptr where missing; counts as reading it.
  const Json* raw(std::string_view key);
  // The keys in the file's order.
  std::vector<std::string> keys() const;
  // Counts the key as read and known.
  void ignore(std::string_view key);
  void ignore_all();

  // A finding about a key of this object, or with "" about the object.
  template <typename... Args>
  void fail(std::string_view key, fmt::format_string<Args...> format, Args&&... args) {
    report(key, fmt::format(format, std::forward<Args>(args)...));
  }
  // "models/x.json: n_head", the prefix of a finding.
  std::string where(std::string_view key) const;

  struct UnknownKey {
    std::string key;
    std::vector<std::string> near;  // for which it may have been meant
  };
  // Reports every key that was never asked for: "unknown key, did you mean 'n_head'?".
  std::vector<UnknownKey> finish();

 private:
  static constexpr IntegerRange no_limits() { return {}; }
  static constexpr NumberRange no_number_limits() { return {}; }

  JsonReader(const JsonReader& parent, const Json* json, std::string path);
  std::string path_of(std::string_view key) const;
  void report(std::string_view key, const std::string& message) const;
  // The value of a key that must be there, after a finding nullptr.
  const Json* require(std::string_view key, std::string_view must_be);
  const JsonArray* require_array(std::string_view key, std::string_view must_be);
  std::optional<int64_t> integer_of(const Json& json, std::string_view key,
                                    IntegerRange range) const;
  std::optional<double> number_of(const Json& json, std::string_view key, NumberRange range) const;
  // The finding "must be …, is …".
  void wrong(std::string_view key, std::string_view must_be, const Json& json) const;

  const JsonObject* object_ =
      nullptr;  // nullptr where it was no object: reads nothing, reports nothing
  std::string file_;
  std::string path_;
  Diagnostics* out_;
  const KeyLines* lines_;
  std::vector<std::string> asked_;
};

}  // namespace mw
