// From a model, a cluster and a number of devices to the best plan.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "compile/plan.h"
#include "planner/only.h"
#include "predict/predict.h"

namespace mw::planner {

enum class Method : uint8_t {
  kExhaustive,  // every uniform plan
  kPtdP         // the rules of PTD-P [Narayanan et al. 2021, arXiv 2104.04473]
};

struct Request {
  predict::Request base;  // its plan is not read
  int64_t gpus = 1;
  Only only = {};  // of plans that the exhaustive search looks at
  Method method = Method::kExhaustive;
  int64_t simulated = 50;  // candidates that the event simulation looks at
  int threads = 0;         // 0: as many as cores
};

// A plan as the event simulation found it.
struct Candidate {
  compile::Plan plan;
  Seconds step;
  double tokens_per_s = 0, mfu = 0;
  std::vector<Bytes> peak;  // [pipeline rank] reserved
  Bytes needed;             // the fullest rank's; all, where ranks share one memory
  // Where the step goes, mean over pipeline ranks: "computation", "bubble", "exposed tp", …; their
  // sum is the step.
  std::map<std::string, double> seconds;
};

// What a planner that follows rules chose, and by which.
struct Choice {
  std::string what, rule;
};

struct Found {
  std::vector<Candidate> plans;  // that fit, the fastest first
  std::vector<size_t> front;     // of these: no other is faster and needs less memory
  std::vector<Choice> choices;
  Bytes memory_limit;      // of a device, for tensors
  bool shared = false;     // by the ranks
  int64_t candidates = 0;  // plans of the space, without those that no schedule takes
  int64_t simulated = 0;
  // Of the fastest by their estimates, and of the front, those whose programs are too long for
  // what they promise.
  int64_t not_simulated = 0;
  Seconds search;
};

// Throws Error with all findings: a request that no plan can have; a model that does not fit, with
// the least number of devices on which it would.
Found search(const Request& request);

// What is wrong with the request before any search, as far as its parts are known (0 devices or
// sequences, a model or a cluster without figures are not); empty for a whole request: some plan
// has its devices, whatever it needs of memory.
std::vector<std::string> findings(const Request& request);

// What `other` loses against `best`, and where it loses and gains, which add up to it:
// "+4.1 % (+310 ms): exposed dp +390 ms, bubble -80.0 ms".
std::string loss(const Candidate& best, const Candidate& other);
// What the search leaves out though the model has it: a sentence each.
std::vector<std::string> notes(const Request& request);
// The best plan, the next ones, the front of step time against memory.
std::string to_text(const Request& request, const Found& found, int64_t top);
// plan, step_s, tokens_per_s, mfu, peak_bytes, search_s, candidates, alternatives, and more.
Json to_json(const Request& request, const Found& found, int64_t top);

}  // namespace mw::planner
