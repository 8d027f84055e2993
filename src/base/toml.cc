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

}  // namespace

Toml parse_toml(std::string_view text, std::string_view file) {
  try {
    const toml::table table = toml::parse(text);
    Toml result;
    result.root = convert_table(table, "", result.lines);
    return result;
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    throw_error("{}:{}:{}: {}", file, at.line, at.column, error.description());
  } catch (const NoToml&) {
    throw_error("{}: is no TOML: a key or value begins with a character that it cannot", file);
  }
}

}  // namespace mw
