// Files that a command writes at its end.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"

namespace mw::cli {

struct OutputFile {
  std::string option, path;  // no path: nothing is written
};

// By whatever name, links included. What is not there yet is compared by its path.
bool same_file(const std::string& a, const std::string& b);
// Before the work: a path that cannot be written, that the command reads, or that two options write
// is a finding beside all others. What lies there stays as it is. `inputs` may hold what is no
// path.
void check_outputs(FileSystem& fs, const std::vector<OutputFile>& outputs,
                   const std::vector<std::string>& inputs, Diagnostics& diagnostics);
// Throws Error with the path, a full disk included; a plain file that lay there is then as it was,
// and of a new one nothing is left. Standard output takes the text among what is printed.
void write_output(FileSystem& fs, const std::string& path, std::string_view text);
// Of what `write` hands on, part by part.
void write_output(FileSystem& fs, const std::string& path,
                  const std::function<void(const TextSink&)>& write);

}  // namespace mw::cli
