// Settings of a request that change nothing in its step, because what they are about is not in it.
#pragma once

#include <string>
#include <vector>

#include "predict/predict.h"

namespace mw::predict {

// Those that the plan says otherwise than Plan's default, words of --overlap and --slowdown, and
// scatter/gather otherwise than the cluster's profile, each with its reason: "zero=3 (dp and cp are
// 1)".
std::vector<std::string> without_effect(const Request& request);
// Adds to those of the prediction the words without which the step is as long though they might
// have an effect, each found by one more simulation: "slowdown grad_reduce=2 (the step is as long
// without it)". REQUIRES: the prediction is of this request and step.
void add_without_effect(const Request& request, const Step& step, Prediction& prediction);

}  // namespace mw::predict
