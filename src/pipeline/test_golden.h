// What torch.distributed.pipelining and papers say of schedules, as files.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

namespace mw::pipeline::test {

// The text of tests/golden/schedules/NAME.
inline std::string golden(const std::string& name) {
  const std::string path = std::string(MW_SOURCE_DIR "/tests/golden/schedules/") + name;
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace mw::pipeline::test
