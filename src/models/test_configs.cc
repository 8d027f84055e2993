#include "models/test_configs.h"

#include <fstream>
#include <sstream>

#include "base/error.h"

namespace mw::models {

ModelConfig model_config(const std::string& name) {
  const std::string file = "models/" + name + ".json";
  std::ifstream in(std::string(MW_SOURCE_DIR) + "/" + file);
  MW_CHECK(in.good(), "{} cannot be read", file);
  std::ostringstream text;
  text << in.rdbuf();
  return parse_config(text.str(), file);
}

}  // namespace mw::models
