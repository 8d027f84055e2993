#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace mw {

JsonObject::JsonObject(std::initializer_list<Entry> entries) : entries_(entries) {}

const Json* JsonObject::find(std::string_view key) const {
  for (const Entry& entry : entries_) {
    if (entry.first == key) return &entry.second;
  }
  return nullptr;
}

Json* JsonObject::find(std::string_view key) {
  return const_cast<Json*>(std::as_const(*this).find(key));
}

Json& JsonObject::operator[](std::string_view key) {
  if (Json* found = find(key)) return *found;
  return entries_.emplace_back(std::string(key), Json()).second;
}

void JsonObject::append(std::string key, Json value) {
  entries_.emplace_back(std::move(key), std::move(value));
}

void JsonObject::erase(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.first == key; });
}

int64_t Json::from_unsigned(uint64_t value) {
  MW_CHECK(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
           "{} does not fit an int64", value);
  return static_cast<int64_t>(value);
}

namespace {

[[noreturn]] void wrong_kind(std::string_view where, std::string_view must_be, const Json& json) {
  throw_error("{}: must be {}, is {}", where, must_be, json.describe());
}

}  // namespace

bool Json::as_bool(std::string_view where) const {
  if (!is_bool()) wrong_kind(where, "true or false", *this);
  return std::get<bool>(value_);
}

int64_t Json::as_integer(std::string_view where) const {
  if (!is_integer()) wrong_kind(where, "an integer", *this);
  return std::get<int64_t>(value_);
}

double Json::as_number(std::string_view where) const {
  if (is_integer()) return static_cast<double>(std::get<int64_t>(value_));
  if (!is_float()) wrong_kind(where, "a number", *this);
  return std::get<double>(value_);
}

const std::string& Json::as_string(std::string_view where) const {
  if (!is_string()) wrong_kind(where, "a string", *this);
  return std::get<std::string>(value_);
}

const JsonArray& Json::as_array(std::string_view where) const {
  if (!is_array()) wrong_kind(where, "an array", *this);
  return std::get<JsonArray>(value_);
}

const JsonObject& Json::as_object(std::string_view where) const {
  if (!is_object()) wrong_kind(where, "an object", *this);
  return std::get<JsonObject>(value_);
}

const Json& Json::at(std::string_view key, std::string_view where) const {
  const JsonObject& object = as_object(where);
  if (const Json* found = object.find(key)) return *found;
  std::vector<std::string_view> keys;
  for (const auto& entry : object) keys.push_back(entry.first);
  throw_error("{}: '{}' is missing{}", where, key, did_you_mean(key, keys));
}

const Json* Json::find(std::string_view key) const {
  const auto* object = std::get_if<JsonObject>(&value_);
  return object ? object->find(key) : nullptr;
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = JsonObject();
  MW_CHECK(is_object(), "key '{}' in {}", key, describe());
  return std::get<JsonObject>(value_)[key];
}

void Json::push_back(Json element) {
  if (is_null()) value_ = JsonArray();
  MW_CHECK(is_array(), "push_back to {}", describe());
  std::get<JsonArray>(value_).push_back(std::move(element));
}

bool operator==(const Json& a, const Json& b) {
  if (a.value_.index() != b.value_.index()) return false;
  if (const auto* object = std::get_if<JsonObject>(&a.value_)) {
    const auto& other = std::get<JsonObject>(b.value_);
    return std::equal(object->begin(), object->end(), other.begin(), other.end());
  }
  if (const auto* array = std::get_if<JsonArray>(&a.value_)) {
    return *array == std::get<JsonArray>(b.value_);
  }
  if (a.is_null()) return true;
  if (a.is_bool()) return std::get<bool>(a.value_) == std::get<bool>(b.value_);
  if (a.is_integer()) return std::get<int64_t>(a.value_) == std::get<int64_t>(b.value_);
  if (a.is_float()) return std::get<double>(a.value_) == std::get<double>(b.value_);
  return std::get<std::string>(a.value_) == std::get<std::string>(b.value_);
}

std::string Json::describe() const {
  if (const auto* array = std::get_if<JsonArray>(&value_)) {
    return array->empty() ? "an empty array" : fmt::format("an array of {}", array->size());
  }
  if (is_object()) return "an object";
  if (const auto* string = std::get_if<std::string>(&value_)) return quoted(clipped(*string));
  if (is_float()) return format_float(std::get<double>(value_));
  return dump();
}

// Writes one value; knows the path to where it is for the message about a number that is not
// finite.
class JsonDumper {
 public:
  explicit JsonDumper(bool pretty) : pretty_(pretty) {}

  void write(const Json& json) {
    if (const auto* object = std::get_if<JsonObject>(&json.value_)) {
      write_children('{', '}', *object, [&](const JsonObject::Entry& entry, size_t) {
        out_ += quoted(entry.first);
        out_ += pretty_ ? ": " : ":";
        const size_t length = path_.size();
        if (length > 0) path_ += '.';
        path_ += entry.first;
        write(entry.second);
        path_.resize(length);
      });
    } else if (const auto* array = std::get_if<JsonArray>(&json.value_)) {
      write_children('[', ']', *array, [&](const Json& element, size_t index) {
        const size_t length = path_.size();
        path_ += fmt::format("[{}]", index);
        write(element);
        path_.resize(length);
      });
    } else {
      write_scalar(json);
    }
  }

  std::string take() { return std::move(out_); }

 private:
  static const Json& child(const Json& element) { return element; }
  static const Json& child(const JsonObject::Entry& entry) { return entry.second; }

  void write_scalar(const Json& json) {
    if (json.is_null()) {
      out_ += "null";
    } else if (json.is_bool()) {
      out_ += std::get<bool>(json.value_) ? "true" : "false";
    } else if (json.is_integer()) {
      out_ += std::to_string(std::get<int64_t>(json.value_));
    } else if (json.is_float()) {
      const double number = std::get<double>(json.value_);
      if (!std::isfinite(number)) {
        throw_error("{}: {} cannot be written as JSON; it must be finite",
                    path_.empty() ? "value" : path_, format_float(number));
      }
      out_ += format_float(number);
    } else {
      out_ += quoted(std::get<std::string>(json.value_));
    }
  }

  void new_line() {
    out_ += '\n';
    out_.append(2 * depth_, ' ');
  }

  template <typename Children, typename WriteChild>
  void write_children(char open, char close, const Children& children, WriteChild write_child) {
    out_ += open;
    const bool flat = std::all_of(children.begin(), children.end(), [](const auto& c) {
      return !child(c).is_array() && !child(c).is_object();
    });
    const size_t start = out_.size();
    const auto write_all = [&](bool lines) {
      ++depth_;
      size_t index = 0;
      for (const auto& c : children) {
        if (index > 0) out_ += lines || !pretty_ ? "," : ", ";
        if (lines) new_line();
        write_child(c, index++);
      }
      --depth_;
      if (lines && index > 0) new_line();
    };
    write_all(pretty_ && !flat);
    if (pretty_ && flat) {
      const size_t line_start = out_.rfind('\n', start - 1);
      const size_t column = out_.size() - (line_start == std::string::npos ? 0 : line_start + 1);
      if (column > 98) {
        out_.resize(start);
        write_all(true);
      }
    }
    out_ += close;
  }

  bool pretty_;
  size_t depth_ = 0;
  std::string out_;
  std::string path_;
};

std::string Json::dump() const {
  JsonDumper dumper(false);
  dumper.write(*this);
  return dumper.take();
}

std::string Json::dump_pretty() const {
  JsonDumper dumper(true);
  dumper.write(*this);
  return dumper.take() + "\n";
}

}  // namespace mw
