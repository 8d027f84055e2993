#include "base/toml.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/error.h"

// TOML++ 3.3 asserts of some texts that are no TOML, such as "[[[": a text is told, no reason to
// end.
namespace mw {
namespace {
struct NoToml {};
[[noreturn]] void no_toml() { throw NoToml(); }
}  // namespace
}  // namespace mw
#define TOML_ASSERT(expr) (static_cast<bool>(expr) ? void() : ::mw::no_toml())
#include <toml++/toml.h>

namespace mw {
namespace {

// Looks for keys of very many parts, "a.b.c…": each is a table in a table, and TOML++ goes through
// those by recursion, even to free them. Arrays and inline tables in one another it counts itself.
class KeyDepth {
 public:
  explicit KeyDepth(std::string_view text) : text_(text) {}

  // The line of the first key with more than `most` parts, those of the inline tables around it
  // among them; 0: there is none. What is no TOML is the parser's to tell.
  int line_beyond(int most) {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#') at_ = std::min(text_.find('\n', at_), text_.size()) - 1;
      if (c == '"' || c == '\'') skip_string(c);
      if (c == '.' && in_key_ && around_ + ++parts_ > most) return line_;
      if (c == '=') in_key_ = false;
      if (c == '{' || c == '[') open();
      if ((c == '}' || c == ']') && !opened_.empty()) close();
      if (c == ',' || c == '\n') begin_key();
      if (c == '\n') ++line_;
    }
    return 0;
  }

 private:
  void begin_key() {
    parts_ = 1;
    in_key_ = true;
  }
  void open() {
    opened_.push_back(in_key_ ? 0 : parts_);  // no value: a header, or an array's element
    around_ += opened_.back();
    begin_key();
  }
  void close() {
    around_ -= opened_.back();
    opened_.pop_back();
    in_key_ = false;
  }

  bool is_at(std::string_view part) const { return text_.substr(at_).starts_with(part); }

  // To its last quote, or where it has none to the end of its line.
  void skip_string(char quote) {
    const std::string three(3, quote), end = is_at(three) ? three : std::string(1, quote);
    for (at_ += end.size(); at_ < text_.size() && !is_at(end); ++at_) {
      if (is_at("\n") && end != three) break;
      if (is_at("\n")) ++line_;
      if (quote == '"' && (is_at("\\\\") || is_at("\\\""))) ++at_;
    }
    if (!is_at(end)) {
      --at_;
      return;
    }
    at_ += end.size() - 1;
    // A long one may end in up to two quotes of its own.
    for (int i = 0; i < 2 && end == three && text_.substr(at_ + 1).starts_with(quote); ++i) ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1, parts_ = 1, around_ = 0;
  bool in_key_ = true;
  std::vector<int> opened_;  // parts of the keys whose values are open
};

// Where a table begins: TOML++ keeps a table's keys sorted, the file's order is in their positions.
// A table made by "[a.b]" alone has no position of its own, so it stands where its first child
// does.
toml::source_position position(const toml::node& node) {
  toml::source_position first = node.source().begin;
  const auto earlier = [&](const toml::node& child) {
    const toml::source_position at = position(child);
    if (at && (!first || at < first)) first = at;
  };
  if (const auto* table = node.as_table()) {
    for (const auto& entry : *table) earlier(entry.second);
  } else if (const auto* array = node.as_array()) {
    for (const auto& child : *array) earlier(child);
  }
  return first;
}

template <typename Moment>
Json text_of(const Moment& moment) {
  std::ostringstream text;
  text << moment;
  return text.str();
}

Json convert(const toml::node& node, const std::string& path, KeyLines& lines);

Json convert_table(const toml::table& table, const std::string& path, KeyLines& lines) {
  struct Entry {
    std::string key;
    const toml::node* node;
    toml::source_position at;
  };
  std::vector<Entry> entries;
  for (const auto& [key, node] : table) {
    const toml::source_position at = key.source().begin;
    entries.push_back({std::string(key.str()), &node, at ? at : position(node)});
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.at < b.at; });
  JsonObject object;
  for (const Entry& entry : entries) {
    const std::string child = path.empty() ? entry.key : path + "." + entry.key;
    lines[child] = static_cast<int>(entry.at.line);
    object.append(entry.key, convert(*entry.node, child, lines));
  }
  return object;
}

Json convert(const toml::node& node, const std::string& path, KeyLines& lines) {
  switch (node.type()) {
    case toml::node_type::table: return convert_table(*node.as_table(), path, lines);
    case toml::node_type::array: {
      JsonArray array;
      for (const toml::node& element : *node.as_array()) {
        const std::string child = path + "[" + std::to_string(array.size()) + "]";
        lines[child] = static_cast<int>(position(element).line);
        array.push_back(convert(element, child, lines));
      }
      return array;
    }
    case toml::node_type::string: return node.as_string()->get();
    case toml::node_type::integer: return node.as_integer()->get();
    case toml::node_type::floating_point: return node.as_floating_point()->get();
    case toml::node_type::boolean: return node.as_boolean()->get();
    case toml::node_type::date: return text_of(node.as_date()->get());
    case toml::node_type::time: return text_of(node.as_time()->get());
    case toml::node_type::date_time: return text_of(node.as_date_time()->get());
    case toml::node_type::none: break;
  }
  MW_CHECK(false, "TOML node '{}' has no type", path);
  return {};
}

// The line that TOML++ asserts of: without those from it on, the text is read or has another fault.
int line_of_no_toml(std::string_view text) {
  const auto is_no_toml = [&](size_t size) {
    try {
      (void)toml::parse(text.substr(0, size));
    } catch (const NoToml&) {
      return true;
    } catch (const toml::parse_error&) {
    }
    return false;
  };
  std::vector<size_t> ends;  // of lines
  for (size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 1))
    ends.push_back(at);
  ends.push_back(text.size());
  const auto line =
      std::partition_point(ends.begin(), ends.end(), [&](size_t end) { return !is_no_toml(end); });
  return static_cast<int>(line - ends.begin()) + 1;
}

}  // namespace

Toml parse_toml(std::string_view text, std::string_view file) {
  constexpr int kMostParts = 64;
  if (const int line = KeyDepth(text).line_beyond(kMostParts); line > 0)
    throw_error("{}:{}: a key has more than {} parts; use fewer", file, line, kMostParts);
  try {
    const toml::table table = toml::parse(text);
    Toml result;
    result.root = convert_table(table, "", result.lines);
    return result;
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    throw_error("{}:{}:{}: {}", file, at.line, at.column, error.description());
  } catch (const NoToml&) {
    throw_error("{}:{}: a key or value begins with a character that it cannot", file,
                line_of_no_toml(text));
  }
}

}  // namespace mw
