// Settings of a request that change nothing in its step, because what they are about is not in it.
#pragma once

#include <string>
#include <vector>

#include "predict/predict.h"

namespace mw::predict {

// Those that the plan says otherwise than Plan's default, and the options otherwise than the
// cluster's profile, each with its reason: "zero=3 (dp and cp are 1)".
std::vector<std::string> without_effect(const Request& request);

}  // namespace mw::predict
