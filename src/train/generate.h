// Text from a trained model: a one-rank forward program over a window of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fs.h"

namespace mw::train {

struct GenerateOptions {
  int64_t tokens = 100;
  double temperature = 0.8;  // 0: the likeliest token
  int64_t seed = 1;
};

// Continues the prompt, whose bytes are tokens. Reads the newest checkpoint of the run folder.
// Throws Error for a model whose vocabulary has no bytes, or an empty prompt.
std::string generate(FileSystem& fs, const std::string& run_dir, const std::string& prompt,
                     const GenerateOptions& options);

}  // namespace mw::train
