// The configs of models/ for the tests of this room.
#pragma once

#include <string>

#include "models/config.h"

namespace mw::models {

// "gpt-micro": models/gpt-micro.json.
ModelConfig model_config(const std::string& name);

}  // namespace mw::models
