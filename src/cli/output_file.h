// A file that a command writes at its end.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/fs.h"

namespace mw::cli {

// Before the work: a path that cannot be written is a finding beside all others. What lies there
// stays as it is. Nothing for an empty path.
void check_output(FileSystem& fs, const std::string& path, Diagnostics& diagnostics);
// Throws Error with the path, a full disk included.
void write_output(FileSystem& fs, const std::string& path, std::string_view text);

}  // namespace mw::cli
