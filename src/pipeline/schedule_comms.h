// A schedule with its messages, gathers and reductions, as torch.distributed.pipelining lowers it
// and writes it to CSV. For exchange only: our own programs come from the lowering of room compile.
#pragma once

#include <string>
#include <vector>

#include "pipeline/schedule.h"

namespace mw::pipeline {

enum class StepKind : uint8_t {
  kCompute,
  kSendF,
  kRecvF,
  kSendB,
  kRecvB,
  kUnshard,
  kReshard,
  kReduceGrad
};

struct Step {
  StepKind kind = StepKind::kCompute;
  // Of a message: stage, replica, first and slice of the side that this rank is; of gathers and
  // reductions: stage and replica. Of compute: the action itself.
  Action action;
  int32_t index = -1;  // of compute: the action's place in its rank's order; a pair is two steps
  friend bool operator==(const Step&, const Step&) = default;
};
using Steps = std::vector<std::vector<Step>>;  // [rank]

// Messages between neighbouring stages on different ranks, each received as soon as it was sent; a
// stage's weights gathered before it is among the next three that are used and freed when it no
// longer is; its gradients reduced after its last W or B. REQUIRES: findings(schedule) is empty.
Steps with_communication(const Schedule& schedule);

// What is wrong with the steps of a schedule whose own findings are empty: a message that is
// missing, there twice, sent before it is made or received after it is used; messages of two ranks
// that are received in another order than sent; ranks that wait for each other. Without any message
// they are of whoever adds the messages: gathers and reductions alone are checked.
std::vector<std::string> findings(const Schedule& schedule, const Steps& steps);

std::string to_string(const Step& step);
// torch.distributed.pipelining's compute_comms format.
std::string to_csv(const Schedule& schedule, const Steps& steps);

struct ParsedSchedule {
  Schedule schedule;
  Steps steps;       // empty: the file has compute alone; else all of its cells that are not idle
  std::string note;  // what was taken for granted that the file does not say; "": nothing
};
// Either format; see parse_csv.
ParsedSchedule parse_schedule(const std::string& text, const std::string& file);

}  // namespace mw::pipeline
