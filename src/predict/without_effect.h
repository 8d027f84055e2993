// Settings of a request that change nothing in its step, because what they are about is not in it.
#pragma once

#include <string>
#include <vector>

#include "predict/predict.h"

namespace mw::predict {

// Those that the plan says otherwise than Plan's default, and scatter/gather otherwise than the
// cluster's profile, each with its reason: "zero=3 (dp and cp are 1)".
std::vector<std::string> without_effect(const Request& request);
// Adds to those of the prediction bucket_mb and the words of --overlap and --slowdown without each
// of which the step is as long and needs as much, found by one more simulation each: "slowdown
// tensor=2 (tp is 1)", "slowdown grad_reduce=2 (the step is as long without it)". REQUIRES: the
// prediction is of this request and step.
void add_without_effect(const Request& request, const Step& step, Prediction& prediction);

}  // namespace mw::predict
