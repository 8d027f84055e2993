// The same step under changed figures of the cluster and changed keys of the plan.
//
// Figures of the cluster are multiplied: link_bandwidth and link_latency (of all levels, or of one:
// link_bandwidth.nvlink), matrix_peak, memory_bandwidth, memory_size, host_time. Keys of the plan
// (dp, microbatches, schedule…), global_batch, seq_len, precision and gpus are set. dp follows
// gpus, and so do microbatches, of as many sequences as before, where they are not varied
// themselves.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "predict/predict.h"

namespace mw::predict {

struct Variation {
  std::string key;
  std::vector<std::string> values;
};

// "microbatches=8,16,32". Throws Error: no key, no values.
Variation parse_variation(const std::string& text);
// What is wrong with the keys and values; REQUIRES: the request has no finding.
std::vector<std::string> findings(const Request& request, const std::vector<Variation>& variations);

using Settings = std::vector<std::pair<std::string, std::string>>;  // key, value

// The request with these settings. Throws Error: a factor that is no positive number, a plan that
// cannot be. REQUIRES: the keys are known.
// `devices`: that the plan must have, so that dp follows where it is not set; 0: any.
Request changed(Request request, const Settings& settings, int64_t devices = 0);

// What of the schedule follows settings that do not name it: "with chunks=2, without group". "":
// nothing. REQUIRES: `after` is the plan of a request that was changed so.
std::string followers(const compile::Plan& before, const compile::Plan& after,
                      const Settings& settings);

struct WhatIf {
  std::vector<std::string> values;  // one a variation, in order
  Request request;                  // with these values, if such a plan can be written
  bool has_request = false;
  std::string followers;                 // what else of the plan is another
  std::optional<Prediction> prediction;  // none where the step cannot be
  std::string reason;                    // why not
};

// Every combination, the last variation's values varying fastest. Values of one variation are
// checked before anything is compiled: Error with all findings. A combination that does not fit the
// model, the batch or the cluster is a row with its reason; where all are, Error with all reasons.
// Steps that differ in the cluster alone are compiled once.
std::vector<WhatIf> what_if(const Request& request, const std::vector<Variation>& variations,
                            int64_t devices = 0);

// The same table for several plans, the first one being the base; with their goodputs, where there
// are any.
std::string comparison_text(const std::vector<const Request*>& requests,
                            const std::vector<const Prediction*>& predictions,
                            const std::vector<Goodput>& goodputs = {});

// A table: a row a combination, with devices where they differ, step, change against the first
// request, tokens/s, MFU, bubble, exposed communication, memory.
std::string to_text(const Prediction& base, const std::vector<Variation>& variations,
                    const std::vector<WhatIf>& rows);
// {"base": {"plan", "step_s", …}, "rows": [{"values": {key: value}, "plan", "step_s", "speedup",
// …}, or {"values", "plan" or null, "reason"}]}
Json to_json(const Request& request, const Prediction& base,
             const std::vector<Variation>& variations, const std::vector<WhatIf>& rows);

}  // namespace mw::predict
