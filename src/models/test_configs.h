// The configs of models/ for the tests of this room.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"
#include "models/config.h"

namespace mw::models {

inline std::string model_file(const std::string& name) {
  const std::string path = std::string(MW_SOURCE_DIR) + "/models/" + name + ".json";
  std::ifstream in(path);
  MW_CHECK(in.good(), "{} cannot be read", path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline ModelConfig model_config(const std::string& name) {
  return parse_config(model_file(name), "models/" + name + ".json");
}

}  // namespace mw::models
