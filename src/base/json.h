// A JSON value, its text form both ways, and a reader that reports everything wrong with an object.
//
// Integers and floats are different kinds: 1 is an integer, 1.0 is not; a number that is asked for
// as a double may be either. Objects keep the order of their keys, so that a file written twice has
// the same bytes. No other JSON type crosses a room's border.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace mw {

class Json;
using JsonArray = std::vector<Json>;

// Keys in the order of insertion; a look-up walks them.
class JsonObject {
 public:
  using Entry = std::pair<std::string, Json>;
  JsonObject() = default;
  JsonObject(std::initializer_list<Entry> entries);  // REQUIRES: no key twice

  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  // The value of `key`, appended as null where it is missing.
  Json& operator[](std::string_view key);
  // Appends without looking for `key`. REQUIRES: it is not there yet.
  void append(std::string key, Json value);
  void erase(std::string_view key);

  size_t size() const;
  bool empty() const { return entries_.empty(); }
  const Entry* begin() const { return entries_.data(); }
  const Entry* end() const;

 private:
  std::vector<Entry> entries_;
};

class Json {
 public:
  Json() = default;
  Json(std::nullptr_t) {}
  Json(std::same_as<bool> auto value) : value_(value) {}
  // REQUIRES: value fits int64_t.
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  Json(T value) : value_(to_int64(value)) {}
  Json(std::floating_point auto value) : value_(static_cast<double>(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(JsonArray value) : value_(std::move(value)) {}
  Json(JsonObject value) : value_(std::move(value)) {}
  // An array of numbers, strings…
  template <typename T>
    requires(!std::same_as<T, Json>)
  static Json list(const std::vector<T>& values) {
    return JsonArray(values.begin(), values.end());
  }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_float() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_integer() || is_float(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<JsonArray>(value_); }
  bool is_object() const { return std::holds_alternative<JsonObject>(value_); }

  // The value as that kind, or an Error "<where>: must be an integer, is "12"". `where` is the file
  // and the key path, as in "models/x.json: n_head".
  bool as_bool(std::string_view where) const;
  int64_t as_integer(std::string_view where) const;
  double as_number(std::string_view where) const;  // of an integer too
  const std::string& as_string(std::string_view where) const;
  const JsonArray& as_array(std::string_view where) const;
  const JsonObject& as_object(std::string_view where) const;
  // The member, or an Error that names where and key, with a near miss.
  const Json& at(std::string_view key, std::string_view where) const;

  // The member, or nullptr where there is none or this is no object.
  const Json* find(std::string_view key) const;
  // For building: null becomes an object / an array first. REQUIRES: null or that kind.
  Json& operator[](std::string_view key);
  void push_back(Json element);

  // What it is, in a few words for a message: `"12"`, `3`, `an array of 2`, `an object`.
  std::string describe() const;

  // On one line, without a space. Floats are the shortest text with the same bits. A float that is
  // not finite is an Error that names its key path, for JSON has no such number.
  std::string dump() const;
  // Two spaces an indent; arrays and objects without arrays or objects inside stay on one line
  // where they fit 100 columns. Ends with '\n'.
  std::string dump_pretty() const;

  friend bool operator==(const Json& a, const Json& b);

 private:
  friend class JsonDumper;
  static int64_t to_int64(std::signed_integral auto value) { return value; }
  static int64_t to_int64(std::unsigned_integral auto value) { return from_unsigned(value); }
  static int64_t from_unsigned(uint64_t value);

  std::variant<std::monostate, bool, int64_t, double, std::string, JsonArray, JsonObject> value_;
};

inline size_t JsonObject::size() const { return entries_.size(); }
inline const JsonObject::Entry* JsonObject::end() const {
  return entries_.data() + entries_.size();
}

// Throws Error "file:line:column: …": strict RFC 8259 in UTF-8, and besides no key twice in an
// object and at most 200 levels. An integer that does not fit int64_t becomes a float.
Json parse_json(std::string_view text, std::string_view file);

}  // namespace mw
