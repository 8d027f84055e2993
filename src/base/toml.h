// TOML files, read into Json.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/json_reader.h"

namespace mw {

struct Toml {
  Json root;       // an object; keys in the file's order; a date or time is a string
  KeyLines lines;  // the line of every key path, for JsonReader
};

// Throws Error "file:line:column: …".
Toml parse_toml(std::string_view text, std::string_view file);

}  // namespace mw
