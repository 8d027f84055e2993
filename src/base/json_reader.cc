#include "base/json_reader.h"

#include <algorithm>

#include "base/text.h"

namespace mw {
namespace {

std::string range_text(JsonReader::IntegerRange range) {
  const JsonReader::IntegerRange all;
  if (range.min == all.min && range.max == all.max) return "an integer";
  if (range.max == all.max) return fmt::format("an integer of at least {}", range.min);
  if (range.min == all.min) return fmt::format("an integer of at most {}", range.max);
  return fmt::format("an integer from {} to {}", range.min, range.max);
}

std::string range_text(JsonReader::NumberRange range) {
  const JsonReader::NumberRange all;
  if (range.min == all.min && range.max == all.max) return "a number";
  if (range.max == all.max) return fmt::format("a number of at least {}", range.min);
  if (range.min == all.min) return fmt::format("a number of at most {}", range.max);
  return fmt::format("a number from {} to {}", range.min, range.max);
}

std::string quoted_list(std::span<const std::string_view> names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += fmt::format("\"{}\"", names[i]);
  }
  return text;
}

}  // namespace

JsonReader::JsonReader(const Json& json, std::string file, Diagnostics* out, const KeyLines* lines)
    : file_(std::move(file)), out_(out), lines_(lines) {
  if (json.is_object()) {
    object_ = &json.as_object(file_);
  } else {
    wrong("", "an object", json);
  }
}

JsonReader::JsonReader(const JsonReader& parent, const Json* json, std::string path)
    : file_(parent.file_), path_(std::move(path)), out_(parent.out_), lines_(parent.lines_) {
  if (json && json->is_object()) {
    object_ = &json->as_object(path_);
  } else if (json) {
    wrong("", "an object", *json);
  }
}

std::string JsonReader::path_of(std::string_view key) const {
  if (path_.empty() || key.empty()) return path_ + std::string(key);
  return fmt::format("{}.{}", path_, key);
}

std::string JsonReader::where(std::string_view key) const {
  const std::string path = path_of(key);
  std::string where = file_;
  if (lines_) {
    // The nearest enclosing thing that has a line.
    std::string_view known = path;
    while (true) {
      if (const auto line = lines_->find(known); line != lines_->end()) {
        where += fmt::format(":{}", line->second);
        break;
      }
      const size_t cut = known.find_last_of(".[");
      if (cut == std::string_view::npos) break;
      known = known.substr(0, cut);
    }
  }
  return path.empty() ? where : fmt::format("{}: {}", where, clipped(path));
}

void JsonReader::report(std::string_view key, const std::string& message) const {
  if (!out_) throw_error("{}: {}", where(key), message);
  out_->add("{}: {}", where(key), message);
}

void JsonReader::wrong(std::string_view key, std::string_view must_be, const Json& json) const {
  report(key, fmt::format("must be {}, is {}", must_be, json.describe()));
}

bool JsonReader::has(std::string_view key) const {
  const Json* json = object_ ? object_->find(key) : nullptr;
  return json && !json->is_null();
}

const Json* JsonReader::raw(std::string_view key) {
  ignore(key);
  return object_ ? object_->find(key) : nullptr;
}

std::vector<std::string> JsonReader::keys() const {
  std::vector<std::string> keys;
  if (!object_) return keys;
  for (const auto& entry : *object_) keys.push_back(entry.first);
  return keys;
}

void JsonReader::ignore(std::string_view key) {
  if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) asked_.emplace_back(key);
}

void JsonReader::ignore_all() {
  for (const std::string& key : keys()) ignore(key);
}

const Json* JsonReader::require(std::string_view key, std::string_view must_be) {
  const Json* json = raw(key);
  if (!json && object_) report(key, fmt::format("is missing; must be {}", must_be));
  return json;
}

const JsonArray* JsonReader::require_array(std::string_view key, std::string_view must_be) {
  const Json* json = require(key, must_be);
  if (!json) return nullptr;
  if (json->is_array()) return &json->as_array(key);
  wrong(key, must_be, *json);
  return nullptr;
}

std::optional<int64_t> JsonReader::integer_of(const Json& json, std::string_view key,
                                              IntegerRange range) const {
  if (json.is_integer()) {
    const int64_t value = json.as_integer(key);
    if (value >= range.min && value <= range.max) return value;
  }
  wrong(key, range_text(range), json);
  return std::nullopt;
}

std::optional<double> JsonReader::number_of(const Json& json, std::string_view key,
                                            NumberRange range) const {
  if (json.is_number()) {
    const double value = json.as_number(key);
    if (value >= range.min && value <= range.max) return value;  // nan is in no range
  }
  wrong(key, range_text(range), json);
  return std::nullopt;
}

int64_t JsonReader::integer(std::string_view key, IntegerRange range) {
  const Json* json = require(key, range_text(range));
  return json ? integer_of(*json, key, range).value_or(0) : 0;
}

double JsonReader::number(std::string_view key, NumberRange range) {
  const Json* json = require(key, range_text(range));
  return json ? number_of(*json, key, range).value_or(0) : 0;
}

bool JsonReader::boolean(std::string_view key) {
  const Json* json = require(key, "true or false");
  if (json && json->is_bool()) return json->as_bool(key);
  if (json) wrong(key, "true or false", *json);
  return false;
}

std::string JsonReader::string(std::string_view key) {
  const Json* json = require(key, "a string");
  if (json && json->is_string()) return json->as_string(key);
  if (json) wrong(key, "a string", *json);
  return "";
}

std::string JsonReader::choice(std::string_view key, std::span<const std::string_view> names) {
  MW_CHECK(!names.empty(), "{}", key);
  const std::string must_be = quoted_list(names);
  const Json* json = require(key, must_be);
  if (!json) return std::string(names[0]);
  if (!json->is_string()) {
    wrong(key, must_be, *json);
    return std::string(names[0]);
  }
  const std::string& name = json->as_string(key);
  if (std::find(names.begin(), names.end(), name) != names.end()) return name;
  report(key,
         fmt::format("must be {}, is {}{}", must_be, json->describe(), did_you_mean(name, names)));
  return std::string(names[0]);
}

std::vector<int64_t> JsonReader::integers(std::string_view key, IntegerRange range) {
  std::vector<int64_t> values;
  const JsonArray* array = require_array(key, "an array of integers");
  if (!array) return values;
  for (size_t i = 0; i < array->size(); ++i) {
    const auto value = integer_of((*array)[i], fmt::format("{}[{}]", key, i), range);
    values.push_back(value.value_or(0));
  }
  return values;
}

std::vector<double> JsonReader::numbers(std::string_view key) {
  std::vector<double> values;
  const JsonArray* array = require_array(key, "an array of numbers");
  if (!array) return values;
  for (size_t i = 0; i < array->size(); ++i) {
    values.push_back(number_of((*array)[i], fmt::format("{}[{}]", key, i), {}).value_or(0));
  }
  return values;
}

std::vector<std::string> JsonReader::strings(std::string_view key) {
  std::vector<std::string> values;
  const JsonArray* array = require_array(key, "an array of strings");
  if (!array) return values;
  for (size_t i = 0; i < array->size(); ++i) {
    const Json& element = (*array)[i];
    if (!element.is_string()) wrong(fmt::format("{}[{}]", key, i), "a string", element);
    values.push_back(element.is_string() ? element.as_string(key) : "");
  }
  return values;
}

JsonReader JsonReader::object(std::string_view key) {
  return JsonReader(*this, require(key, "an object"), path_of(key));
}

std::vector<JsonReader> JsonReader::objects(std::string_view key) {
  std::vector<JsonReader> readers;
  const JsonArray* array = require_array(key, "an array of objects");
  if (!array) return readers;
  for (size_t i = 0; i < array->size(); ++i) {
    readers.push_back(JsonReader(*this, &(*array)[i], fmt::format("{}[{}]", path_of(key), i)));
  }
  return readers;
}

int64_t JsonReader::integer_or(std::string_view key, int64_t fallback, IntegerRange range) {
  ignore(key);
  return has(key) ? integer(key, range) : fallback;
}

double JsonReader::number_or(std::string_view key, double fallback, NumberRange range) {
  ignore(key);
  return has(key) ? number(key, range) : fallback;
}

bool JsonReader::boolean_or(std::string_view key, bool fallback) {
  ignore(key);
  return has(key) ? boolean(key) : fallback;
}

std::string JsonReader::string_or(std::string_view key, std::string_view fallback) {
  ignore(key);
  return has(key) ? string(key) : std::string(fallback);
}

std::string JsonReader::choice_or(std::string_view key, std::string_view fallback,
                                  std::span<const std::string_view> names) {
  ignore(key);
  return has(key) ? choice(key, names) : std::string(fallback);
}

std::vector<JsonReader::UnknownKey> JsonReader::finish() {
  std::vector<UnknownKey> unknown;
  for (const std::string& key : keys()) {
    if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    // What was asked for and is missing is the likelier meaning.
    std::vector<std::string> missing;
    std::copy_if(asked_.begin(), asked_.end(), std::back_inserter(missing),
                 [&](const std::string& asked) { return !object_->find(asked); });
    std::vector<std::string> near = near_misses(key, missing);
    if (near.empty()) near = near_misses(key, asked_);
    report(key, "unknown key" + did_you_mean(near));
    unknown.push_back({key, std::move(near)});
  }
  return unknown;
}

}  // namespace mw
