#include "cli/output_file.h"

namespace mw::cli {

void check_output(FileSystem& fs, const std::string& path, Diagnostics& diagnostics) {
  if (path.empty()) return;
  try {
    const bool is_new = !fs.exists(path);
    fs.append_file(path)->close();
    if (is_new) fs.remove(path);
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
}

void write_output(FileSystem& fs, const std::string& path, std::string_view text) {
  try {
    fs.write_file(path, text);
  } catch (const RunError& error) {
    throw Error(std::string(error.what()));
  }
}

}  // namespace mw::cli
