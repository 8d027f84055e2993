// What would make a step shorter, measured: every change is simulated, and compiled anew where it
// changes the program.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "predict/predict.h"
#include "predict/what_if.h"

namespace mw::predict {

// Which changes are tried: of the options, whose program is the same; or also of the plan, with as
// many devices.
enum class Trials : uint8_t { kNone, kOptions, kPlans };

struct Advice {
  std::string change;  // "microbatches=192", "--overlap collectives"
  Seconds step;
  double gain = 0;        // share of the step that it saves
  Bytes peak;             // of the fullest rank
  std::string plan = {};  // in short, where the plan is another one
};

// A figure of the cluster made twice as good, and what that saves: where the step is bound.
struct Bound {
  std::string figure;  // "matrix peak", "nvlink bandwidth", "host time"
  double gain = 0;
};

struct AdviceReport {
  std::vector<Advice> advice;  // that save at least kLeastGain and fit, best first
  std::vector<Bound> bounds;   // all, best first
  int64_t tried = 0;           // changes, those that cannot be or do not fit included
  Trials trials = Trials::kNone;
  bool shared = false;  // peaks are of all ranks, which share a memory
};
inline constexpr double kLeastGain = 0.005;

// What is tried: options that the request does not have, one at a time; neighbours of the plan with
// as many devices, one or two keys, as what-if would set them.
std::vector<std::pair<std::string, simulate::Options>> option_changes(const Request& request);
std::vector<Settings> plan_changes(const Request& request);

AdviceReport advise(const Request& request, const Prediction& prediction, const Step& step,
                    Trials trials);

// "--overlap collectives: 1.02 s, -4.1 %"; then what the step is bound by.
std::vector<std::string> sentences(const AdviceReport& report);
Json to_json(const AdviceReport& report);

}  // namespace mw::predict
