// Steps that follow one another without a flush. Private to room predict.
//
// PipeDream-2BW [Narayanan 2021]: between steps forwards of the next run beside backwards of this
// one, on weights that are a step old; what a rank does for a step is what it does under 1F1B. So a
// step is compiled as one of 1F1B, and takes what some more microbatches of that take in its
// middle, and the update.
//
// Post-validation [Qi 2024, arXiv:2401.10241, section 4]: a rank that has made its step goes on to
// the next call of the same program. So a step takes what one call more takes of several.
#pragma once

#include "predict/predict.h"

namespace mw::predict {

// Whether the plan's schedule has no flush.
bool is_endless(const Request& request);
// The request whose program is a step of it: the same, but for 1F1B's order where it is endless.
Request flushed(Request request);
// Whether the plan's steps run into one another by post-validation.
bool runs_on(const Request& request);
// The result of one call becomes that of a call among others. Its trace, by itself, stays.
// REQUIRES: runs_on(request); the result is of the step's program.
void let_run_on(const Request& request, const Step& step, simulate::Result& result);
// In words. REQUIRES: let_run_on has been.
std::vector<std::string> explain_run_on(const simulate::Result& result, const Step& step);
// The result of a flushed step becomes that of a step among others. Its trace, by itself, stays.
// REQUIRES: is_endless(request); the result is of flushed(request).
void take_out_flush(const Request& request, simulate::Result& result);
// The second version of the weights, and words of all this. REQUIRES: take_out_flush has been.
void hold_older_weights(const Step& step, Prediction& prediction);

}  // namespace mw::predict
