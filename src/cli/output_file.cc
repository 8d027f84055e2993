#include "cli/output_file.h"

#include <algorithm>
#include <filesystem>

namespace mw::cli {
namespace {

void check_output(FileSystem& fs, const std::string& path, Diagnostics& diagnostics) {
  try {
    const bool is_new = !fs.exists(path);
    fs.append_file(path)->close();
    if (is_new) fs.remove(path);
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
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
  try {
    const auto file = fs.create_file(path);
    write([&](std::string_view part) { file->write(part); });
    file->close();
  } catch (const RunError& error) {
    throw Error(std::string(error.what()));
  }
}

}  // namespace mw::cli
