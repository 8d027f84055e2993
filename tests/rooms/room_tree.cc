#include "room_law.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

namespace mw::rooms {
namespace {

// The words of a CMake file in order; a parenthesis is a word, a comment is none. Quotes are
// dropped: the files read here quote paths only.
std::vector<std::string> cmake_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      end_word();
      i = std::min(text.find('\n', i), text.size());
    } else if (c == '(' || c == ')') {
      end_word();
      words.emplace_back(1, c);
    } else if (c == '"' || std::isspace(static_cast<unsigned char>(c)) != 0) {
      end_word();
    } else {
      word += c;
    }
  }
  end_word();
  return words;
}

// The arguments of the first call `command(first …)`, after `first`; found tells whether there is
// one.
std::vector<std::string> call_arguments(const std::vector<std::string>& words,
                                        const std::string& command, const std::string& first,
                                        bool& found) {
  found = false;
  for (size_t i = 0; i + 2 < words.size(); ++i) {
    if (words[i] != command || words[i + 1] != "(" || words[i + 2] != first) continue;
    found = true;
    const auto begin = words.begin() + static_cast<std::ptrdiff_t>(i) + 3;
    return {begin, std::find(begin, words.end(), ")")};
  }
  return {};
}

Room parse_room(const std::string& name, const std::string& text, Findings& findings) {
  const std::vector<std::string> words = cmake_words(text);
  bool found = false;
  const std::vector<std::string> arguments = call_arguments(words, "mw_room", name, found);
  if (!found) {
    findings.push_back(fmt::format("src/{0}/CMakeLists.txt: has no mw_room({0} …)", name));
  }
  Room room;
  room.words = {words.begin(), words.end()};
  std::string keyword;
  for (const std::string& word : arguments) {
    if (word == "SOURCES" || word == "DEPS" || word == "LINK" || word == "TESTS") {
      keyword = word;
    } else if (keyword == "DEPS") {
      room.deps.push_back(word);
    }
  }
  return room;
}

}  // namespace

Tree read_tree(const std::filesystem::path& root) {
  Tree tree;
  const auto add = [&](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    tree[path.lexically_relative(root).generic_string()] = {std::istreambuf_iterator<char>(file),
                                                            {}};
  };
  add(root / "CMakeLists.txt");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "src")) {
    if (entry.is_regular_file()) add(entry.path());
  }
  return tree;
}

Rooms parse_rooms(const Tree& tree, Findings& findings) {
  Rooms result;
  bool found = false;
  const auto root = tree.find("CMakeLists.txt");
  if (root != tree.end()) {
    result.order = call_arguments(cmake_words(root->second), "set", "MW_ROOMS", found);
  }
  if (!found) findings.emplace_back("CMakeLists.txt: has no set(MW_ROOMS …)");

  std::set<std::string> folders;
  for (const auto& [path, text] : tree) {
    if (!path.starts_with("src/")) continue;
    const size_t slash = path.find('/', 4);
    if (slash == std::string::npos) {
      findings.push_back(fmt::format("{}: lies in no room; move it into src/<room>/", path));
    } else {
      folders.insert(path.substr(4, slash - 4));
    }
  }
  for (const std::string& folder : folders) {
    if (std::find(result.order.begin(), result.order.end(), folder) == result.order.end()) {
      findings.push_back(fmt::format("src/{}: is not in MW_ROOMS of CMakeLists.txt", folder));
    }
    const auto lists = tree.find(fmt::format("src/{}/CMakeLists.txt", folder));
    if (lists == tree.end()) {
      findings.push_back(fmt::format("src/{0}: has no CMakeLists.txt with mw_room({0} …)", folder));
      continue;
    }
    result.rooms[folder] = parse_room(folder, lists->second, findings);
  }
  return result;
}

}  // namespace mw::rooms
