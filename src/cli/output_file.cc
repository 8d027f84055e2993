#include "cli/output_file.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/text.h"

namespace mw::cli {
namespace {

void check_output(FileSystem& fs, const std::string& path, Diagnostics& diagnostics) {
  std::error_code none;
  // Whoever reads a named pipe would take the closed end for the end of the text.
  if (std::filesystem::is_fifo(path, none)) return;
  try {
    const bool is_new = !fs.exists(path);
    fs.append_file(path)->close();
    if (is_new) fs.remove(path);
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
}

// Standard output or error where that is what `path` names (/dev/stdout, or its file by name):
// opened anew the file would be emptied, and both would write over each other.
std::FILE* own_output(const std::string& path) {
  std::error_code none;
  if (std::filesystem::equivalent(path, "/dev/stdout", none)) return stdout;
  if (std::filesystem::equivalent(path, "/dev/stderr", none)) return stderr;
  return nullptr;
}

// Where a text is written until it is whole: what lies there is kept if the disk is full. In place
// where a link leads there or the folder is not writable.
std::string written_first(FileSystem& fs, const std::string& path) {
  std::error_code none;
  const std::filesystem::file_status there = std::filesystem::symlink_status(path, none);
  const bool is_plain = there.type() == std::filesystem::file_type::regular &&
                        std::filesystem::hard_link_count(path, none) == 1;
  const std::string part = path + ".part";
  if (!is_plain || fs.exists(part)) return path;
  try {
    fs.create_file(part)->close();
  } catch (const Error&) {
    return path;
  }
  std::filesystem::permissions(part, there.permissions(), none);
  return part;
}

}  // namespace

bool same_file(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return false;
  std::error_code none;
  if (std::filesystem::exists(b, none) && !std::filesystem::is_regular_file(b, none))
    return false;  // /dev/null
  if (std::filesystem::equivalent(a, b, none)) return true;
  const auto place = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, none), none);
  };
  return place(a) == place(b);
}

void check_outputs(FileSystem& fs, const std::vector<OutputFile>& outputs,
                   const std::vector<std::string>& inputs, Diagnostics& diagnostics) {
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    if (output->path.empty()) continue;
    const auto other = std::find_if(outputs.begin(), output, [&](const OutputFile& before) {
      return same_file(before.path, output->path);
    });
    const auto input = std::find_if(inputs.begin(), inputs.end(), [&](const std::string& path) {
      return same_file(path, output->path);
    });
    if (input != inputs.end()) {
      diagnostics.add("{}: {} is read by the command, and would be lost; write another file",
                      output->option, output->path);
    } else if (other != output) {
      diagnostics.add("{}: {} is what {} writes, too; write another file", output->option,
                      output->path, other->option);
    } else {
      check_output(fs, output->path, diagnostics);
    }
  }
}

void write_output(FileSystem& fs, const std::string& path, std::string_view text) {
  write_output(fs, path, [&](const TextSink& sink) { sink(text); });
}

void write_output(FileSystem& fs, const std::string& path,
                  const std::function<void(const TextSink&)>& write) {
  if (std::FILE* const own = own_output(path)) {  // whose errors are told at the end
    write([&](std::string_view part) { std::fwrite(part.data(), 1, part.size(), own); });
    return;
  }
  const bool is_new = !fs.exists(path);
  const std::string first = written_first(fs, path);
  try {
    const auto file = fs.create_file(first);
    write([&](std::string_view part) { file->write(part); });
    file->close();
    if (first != path) fs.rename(first, path);
  } catch (const std::exception& error) {
    if ((is_new || first != path) && fs.exists(first)) fs.remove(first);
    if (dynamic_cast<const RunError*>(&error) == nullptr) throw;
    throw Error(replace_all(error.what(), first, path));
  }
}

}  // namespace mw::cli
