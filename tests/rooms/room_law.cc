#include "room_law.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mw::rooms {
namespace {

constexpr int kReadmeLines = 25;
constexpr std::array kTorchFolders = {"ATen", "torch", "c10", "caffe2"};
// Names in Hugging Face checkpoints of the GPT-2 and Llama families, without the dots between them.
constexpr std::array<std::string_view, 24> kParameterNames = {
    "wte",       "wpe",          "c_attn",
    "c_proj",    "c_fc",         "ln_1",
    "ln_2",      "ln_f",         "q_proj",
    "k_proj",    "v_proj",       "o_proj",
    "gate_proj", "up_proj",      "down_proj",
    "lm_head",   "embed_tokens", "self_attn",
    "q_attn",    "rotary_emb",   "input_layernorm",
    "q_norm",    "k_norm",       "post_attention_layernorm"};

// The one file that names a kind: the usual one.
constexpr std::string_view kNamingKind = "src/pipeline/schedule_kind.h";

struct Include {
  int line;
  bool quoted;
  std::string path;
};

// "src/<room>/<file>": the room and the file below it.
struct Place {
  std::string room;
  std::string file;
};

std::optional<Place> place_of(const std::string& path) {
  if (!path.starts_with("src/")) return std::nullopt;
  const size_t slash = path.find('/', 4);
  if (slash == std::string::npos) return std::nullopt;
  return Place{path.substr(4, slash - 4), path.substr(slash + 1)};
}

bool is_header(const std::string& path) { return path.ends_with(".h"); }
bool is_source(const std::string& path) { return path.ends_with(".cc") || path.ends_with(".cu"); }

template <typename Visit>
void for_each_line(const std::string& text, Visit visit) {
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    visit(++number, std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
}

std::vector<Include> includes_of(const std::string& text) {
  std::vector<Include> includes;
  for_each_line(text, [&](int number, std::string_view line) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string_view::npos || line[at] != '#') return;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string_view::npos || !line.substr(at).starts_with("include")) return;
    const size_t open = line.find_first_of("\"<", at);
    if (open == std::string_view::npos) return;
    const bool quoted = line[open] == '"';
    const size_t close = line.find(quoted ? '"' : '>', open + 1);
    if (close == std::string_view::npos) return;
    includes.push_back({number, quoted, std::string(line.substr(open + 1, close - open - 1))});
  });
  return includes;
}

// What is wrong with one include of `place`'s file, in the words after "file:line: "; empty if
// nothing.
std::string include_fault(const Tree& tree, const Rooms& rooms, const Place& place,
                          const std::set<std::string>& allowed, const Include& include) {
  const std::string folder = include.path.substr(0, include.path.find('/'));
  const bool names_room = folder != include.path && rooms.rooms.contains(folder);
  if (!include.quoted) {
    if (!names_room || !tree.contains("src/" + include.path)) return "";
    return fmt::format("includes <{0}>; must be \"{0}\"", include.path);
  }
  if (folder == include.path) {
    return fmt::format("includes \"{}\"; must be \"<room>/<file>.h\"", include.path);
  }
  if (!tree.contains("src/" + include.path)) {
    return fmt::format("includes \"{0}\"; there is no src/{0}", include.path);
  }
  if (folder == place.room || allowed.contains(folder)) return "";
  return fmt::format(
      "room {} includes \"{}\" of room {}; its DEPS reach {}; drop the include, or add {} "
      "to DEPS where the design has it",
      place.room, include.path, folder,
      allowed.empty() ? "no room" : fmt::format("{}", fmt::join(allowed, ", ")), folder);
}

// The header that belongs to a source, if there is one: of "a/x.cc" and of "a/x_test.cc", "a/x.h".
std::optional<std::string> own_header(const Tree& tree, const std::string& path) {
  const std::string stem = path.substr(0, path.rfind('.'));
  std::string header = stem + ".h";
  if (tree.contains(header)) return header.substr(4);
  return std::nullopt;
}

// Whether the room's CMakeLists.txt names the file, or all sources of its folder.
bool is_built(const Room& room, const std::string& file) {
  if (room.words.contains(file)) return true;
  const size_t slash = file.rfind('/');
  if (slash == std::string::npos) return false;
  const std::string all = "/" + file.substr(0, slash) + "/*" + file.substr(file.rfind('.'));
  return std::any_of(room.words.begin(), room.words.end(),
                     [&](const std::string& word) { return ("/" + word).ends_with(all); });
}

void check_source(const Tree& tree, const Rooms& rooms, const std::string& path, const Place& place,
                  const std::string& text, Findings& findings) {
  const auto room = rooms.rooms.find(place.room);
  if (room != rooms.rooms.end() && !is_built(room->second, place.file)) {
    findings.push_back(
        fmt::format("{}: is not in src/{}/CMakeLists.txt, so nothing builds it; add it "
                    "to SOURCES or TESTS",
                    path, place.room));
  }
  const std::optional<std::string> header = own_header(tree, path);
  if (!header) return;
  const std::vector<Include> includes = includes_of(text);
  if (includes.empty() || includes.front().path != *header) {
    findings.push_back(fmt::format("{}: the first include is {}; must be its own header \"{}\"",
                                   path, includes.empty() ? "none" : includes.front().path,
                                   *header));
  }
}

void check_readme(const Tree& tree, const std::string& room, Findings& findings) {
  const std::string path = fmt::format("src/{}/README.md", room);
  const auto readme = tree.find(path);
  if (readme == tree.end()) {
    findings.push_back(fmt::format("{}: is missing; say in at most {} lines what the room is for",
                                   path, kReadmeLines));
    return;
  }
  int lines = 0;
  for_each_line(readme->second, [&](int number, std::string_view) { lines = number; });
  if (lines == 0 || lines > kReadmeLines) {
    findings.push_back(
        fmt::format("{}: has {} lines; must have 1 to {}", path, lines, kReadmeLines));
  }
}

}  // namespace

std::set<std::string> reachable_rooms(const Rooms& rooms, const std::string& room) {
  std::set<std::string> reached;
  std::vector<std::string> open = {room};
  while (!open.empty()) {
    const auto at = rooms.rooms.find(open.back());
    open.pop_back();
    if (at == rooms.rooms.end()) continue;
    for (const std::string& dep : at->second.deps) {
      if (reached.insert(dep).second) open.push_back(dep);
    }
  }
  return reached;
}

Findings check_deps(const Rooms& rooms) {
  Findings findings;
  const auto& order = rooms.order;
  for (const auto& [name, room] : rooms.rooms) {
    const auto own = std::find(order.begin(), order.end(), name);
    std::set<std::string> seen;
    for (const std::string& dep : room.deps) {
      const auto where = fmt::format("src/{}/CMakeLists.txt: DEPS {}", name, dep);
      const auto at = std::find(order.begin(), order.end(), dep);
      if (!seen.insert(dep).second) {
        findings.push_back(fmt::format("{} is named twice", where));
      } else if (at == order.end()) {
        findings.push_back(fmt::format("{} is no room of MW_ROOMS", where));
      } else if (at >= own) {
        findings.push_back(
            fmt::format("{} does not stand before {} in MW_ROOMS, so it would make a "
                        "cycle; a room depends only on rooms before it",
                        where, name));
      } else if (!rooms.rooms.contains(dep)) {
        findings.push_back(fmt::format("{}: there is no src/{}/CMakeLists.txt", where, dep));
      }
    }
  }
  return findings;
}

Findings check_includes(const Tree& tree, const Rooms& rooms) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    const auto place = place_of(path);
    if (!place || (!is_header(path) && !is_source(path))) continue;
    if (!rooms.rooms.contains(place->room)) continue;  // parse_rooms has said so
    const std::set<std::string> allowed = reachable_rooms(rooms, place->room);
    for (const Include& include : includes_of(text)) {
      const std::string fault = include_fault(tree, rooms, *place, allowed, include);
      if (!fault.empty()) findings.push_back(fmt::format("{}:{}: {}", path, include.line, fault));
    }
  }
  return findings;
}

Findings check_torch(const Tree& tree) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    const auto place = place_of(path);
    if (!place || place->room == "runtime") continue;
    for (const Include& include : includes_of(text)) {
      const std::string folder = include.path.substr(0, include.path.find('/'));
      if (std::find(kTorchFolders.begin(), kTorchFolders.end(), folder) == kTorchFolders.end())
        continue;
      findings.push_back(fmt::format("{}:{}: room {} includes <{}>; only runtime may see libtorch",
                                     path, include.line, place->room, include.path));
    }
  }
  return findings;
}

Findings check_files(const Tree& tree, const Rooms& rooms) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    const auto place = place_of(path);
    if (!place) continue;
    if (is_header(path)) {
      bool once = false;
      for_each_line(text, [&](int, std::string_view line) { once |= line == "#pragma once"; });
      if (!once) findings.push_back(fmt::format("{}: has no #pragma once", path));
    } else if (is_source(path)) {
      check_source(tree, rooms, path, *place, text, findings);
    }
  }
  for (const auto& [name, room] : rooms.rooms) check_readme(tree, name, findings);
  return findings;
}

Findings check_parameter_names(const Tree& tree) {
  Findings findings;
  const auto in_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (const auto& [path, text] : tree) {
    const auto place = place_of(path);
    if (!place || place->room == "models" || place->room == "checkpoint") continue;
    if (!is_header(path) && !is_source(path)) continue;
    for_each_line(text, [&](int number, std::string_view line) {
      for (size_t begin = 0; begin < line.size();) {
        size_t end = begin;
        while (end < line.size() && in_word(line[end])) ++end;
        const std::string_view word = line.substr(begin, end - begin);
        if (std::find(kParameterNames.begin(), kParameterNames.end(), word) !=
            kParameterNames.end()) {
          findings.push_back(
              fmt::format("{}:{}: room {} names the parameter '{}'; only models and "
                          "checkpoint know a parameter's name",
                          path, number, place->room, word));
        }
        begin = end + 1;
      }
    });
  }
  return findings;
}

Findings check_schedule_names(const Tree& tree) {
  constexpr std::string_view kKinds = "src/pipeline/schedules/", kName = ".name = \"";
  std::vector<std::string> names;
  for (const auto& [path, text] : tree) {
    if (!path.starts_with(kKinds)) continue;
    for (size_t at = text.find(kName); at != std::string::npos; at = text.find(kName, at)) {
      at += kName.size();
      names.push_back(text.substr(at - 1, text.find('"', at) - at + 2));  // with its quotes
    }
  }
  Findings findings;
  for (const auto& [path, text] : tree) {
    const std::string file = std::filesystem::path(path).filename().string();
    const bool is_test = file.starts_with("test_") || file.find("_test.") != std::string::npos;
    if (is_test || path.starts_with(kKinds) || !(is_header(path) || is_source(path))) continue;
    if (path == kNamingKind) continue;
    for_each_line(text, [&](int number, std::string_view line) {
      for (const std::string& name : names) {
        if (line.find(name) == std::string_view::npos) continue;
        findings.push_back(
            fmt::format("{}:{}: names the schedule {}; ask for a fact of its ScheduleKind", path,
                        number, name));
      }
    });
  }
  return findings;
}

}  // namespace mw::rooms
