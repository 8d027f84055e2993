// Where a step's time goes and who waits for whom, in sentences.
#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/core.h>

#include "base/count.h"
#include "base/text.h"
#include "simulate/simulate.h"

namespace mw::simulate {
namespace {

using pipeline::ActionKind;
using pipeline::Program;

constexpr size_t kToldWaits = 4;

double part_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

// "stage 63", "pipeline rank 3 (stages 3, 11)", "the rank".
std::string rank_name(const Program& program, int32_t rank) {
  if (program.ranks.size() == 1) return "the rank";
  std::vector<int32_t> stages;
  for (const pipeline::Command& command : program.ranks[static_cast<size_t>(rank)].commands) {
    const StageId stage = command.action.stage;
    if (stage.valid() && std::find(stages.begin(), stages.end(), stage.value) == stages.end())
      stages.push_back(stage.value);
  }
  if (stages.size() == 1) return fmt::format("stage {}", stages[0]);
  std::sort(stages.begin(), stages.end());
  std::vector<std::string> numbers;
  for (const int32_t stage : stages) numbers.push_back(std::to_string(stage));
  return fmt::format("pipeline rank {} (stages {})", rank, join(numbers, ", "));
}

void add_path(const Result& result, const Program& program, std::vector<std::string>& lines) {
  std::vector<double> work(program.ranks.size(), 0);
  double messages = 0, all = 0;
  int64_t hops = 0;
  for (const PathPart& part : result.critical_path) {
    const double took = (part.end - part.begin).value;
    if (part.message) {
      messages += took;
      ++hops;
    } else {
      work[static_cast<size_t>(part.rank)] += took;
      all += took;
    }
  }
  const auto most = static_cast<int32_t>(std::max_element(work.begin(), work.end()) - work.begin());
  const auto passed = std::count_if(work.begin(), work.end(), [](double w) { return w > 0; });
  const Seconds core_wait = result.ranks[0].core_wait;
  constexpr double kTold = 1e-9;
  if (core_wait.value > kTold) {
    lines.push_back(fmt::format(
        "the {} ranks share cores, which their work takes all of the step's {}: each waits {} for "
        "one; with a core for each the step would take {}",
        program.mesh.size(), format_seconds(result.step.value), format_seconds(core_wait.value),
        format_seconds((result.step - core_wait).value)));
  }
  if (program.ranks.size() == 1) {
    if (core_wait.value > kTold) return;
    lines.push_back(fmt::format("the rank works through all of the step's {}",
                                format_seconds(result.step.value)));
    return;
  }
  std::string line = fmt::format(
      "of the step's {}, work takes {} on {} of {} pipeline ranks and {} between them {} {}",
      format_seconds(result.step.value), format_seconds(all), passed, work.size(),
      counted(hops, "message"), hops == 1 ? "takes" : "take", format_seconds(messages));
  const double share = part_of(work[static_cast<size_t>(most)], result.step.value);
  if (share >= 0.1) {
    line += fmt::format("; {} does most, {} ({})", rank_name(program, most),
                        format_seconds(work[static_cast<size_t>(most)]), format_percent(share, 0));
  }
  lines.push_back(std::move(line));
}

// Filling ends with a rank's first backward call, draining begins behind its last forward one.
void add_bubble(const Result& result, const Program& program, std::vector<std::string>& lines) {
  if (program.ranks.size() == 1 || result.step.value <= 0) return;
  double fill = 0, drain = 0, between = 0;
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    const std::vector<pipeline::Command>& commands = program.ranks[r].commands;
    auto first_backward = static_cast<int32_t>(commands.size());
    int32_t last_forward = -1;
    for (size_t c = 0; c < commands.size(); ++c) {
      if (commands[c].kind != pipeline::Command::Kind::kCall) continue;
      const ActionKind kind = commands[c].action.kind;
      if (kind == ActionKind::kF) last_forward = static_cast<int32_t>(c);
      if ((kind == ActionKind::kB || kind == ActionKind::kI) &&
          first_backward == static_cast<int32_t>(commands.size()))
        first_backward = static_cast<int32_t>(c);
    }
    for (const Wait& wait : result.waits[r]) {
      const double took = (wait.end - wait.begin).value;
      (wait.command <= first_backward ? fill
       : wait.command > last_forward  ? drain
                                      : between) += took;
    }
    drain += result.ranks[r].idle.value;
  }
  const double whole = result.step.value * static_cast<double>(program.ranks.size());
  lines.push_back(
      fmt::format("bubble: {} of the step fills the pipeline (up to a rank's first backward), {} "
                  "drains it (behind its last forward), {} lies between",
                  format_percent(part_of(fill, whole)), format_percent(part_of(drain, whole)),
                  format_percent(part_of(between, whole))));
}

void add_imbalance(const Result& result, const Program& program, std::vector<std::string>& lines) {
  double sum = 0;
  size_t most = 0;
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    sum += result.ranks[r].compute.value;
    if (result.ranks[r].compute > result.ranks[most].compute) most = r;
  }
  const double mean = sum / static_cast<double>(result.ranks.size());
  if (result.ranks[most].compute.value < 1.05 * mean) return;
  lines.push_back(
      fmt::format("{} computes {}, {:.0f} % more than the mean of {}: the others wait for it",
                  rank_name(program, static_cast<int32_t>(most)),
                  format_seconds(result.ranks[most].compute.value),
                  100 * (result.ranks[most].compute.value / mean - 1), format_seconds(mean)));
}

// All waits of one rank for one other for one reason.
struct WaitSum {
  int32_t rank = 0;
  double time = 0;
  int64_t count = 0;
  const Wait* longest = nullptr;
};

std::string wait_text(const Program& program, const WaitSum& sum) {
  const Wait& wait = *sum.longest;
  const std::string rank = rank_name(program, sum.rank), peer = rank_name(program, wait.peer);
  std::string what;
  switch (wait.reason) {
    case WaitReason::kReceive: what = fmt::format("for {} to send its input", peer); break;
    case WaitReason::kSlot: what = fmt::format("for {} to give a slot back", peer); break;
    case WaitReason::kCollective:
      what = fmt::format("for {}, the last in a collective", peer);
      break;
    case WaitReason::kSend: what = "until what it sent has arrived"; break;
    case WaitReason::kGather: what = "for its weights to be gathered"; break;
  }
  const std::string longest = fmt::format("{} {} {}", format_seconds((wait.end - wait.begin).value),
                                          wait.reason == WaitReason::kCollective ? "in" : "before",
                                          command_name(program, sum.rank, wait.command));
  if (sum.count == 1) return fmt::format("{} waits {}, {}", rank, longest, what);
  return fmt::format("{} waits {} {} ({} times; the longest is {})", rank, format_seconds(sum.time),
                     what, sum.count, longest);
}

void add_waits(const Result& result, const Program& program, std::vector<std::string>& lines) {
  std::map<std::tuple<int32_t, WaitReason, int32_t>, WaitSum> sums;
  for (size_t r = 0; r < result.waits.size(); ++r) {
    for (const Wait& wait : result.waits[r]) {
      WaitSum& sum = sums[{static_cast<int32_t>(r), wait.reason, wait.peer}];
      sum.rank = static_cast<int32_t>(r);
      sum.time += (wait.end - wait.begin).value;
      ++sum.count;
      if (sum.longest == nullptr || wait.end - wait.begin > sum.longest->end - sum.longest->begin)
        sum.longest = &wait;
    }
  }
  std::vector<WaitSum> ordered;
  for (const auto& [key, sum] : sums) ordered.push_back(sum);
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const WaitSum& a, const WaitSum& b) { return a.time > b.time; });
  // One line a reason and direction says more than the same of every rank.
  std::map<std::pair<WaitReason, int>, int> told;
  size_t left = kToldWaits;
  for (const WaitSum& sum : ordered) {
    const int direction = sum.longest->peer < sum.rank ? -1 : 1;
    if (left == 0 || told[{sum.longest->reason, direction}]++ >= 2) continue;
    lines.push_back(wait_text(program, sum));
    --left;
  }
}

}  // namespace

std::string command_name(const pipeline::Program& program, int32_t rank, int32_t command) {
  const pipeline::Command& c =
      program.ranks[static_cast<size_t>(rank)].commands[static_cast<size_t>(command)];
  const std::string kind = pipeline::to_string(c.action.kind);
  if (!c.action.stage.valid()) return kind;
  return fmt::format("{} of stage {}, microbatch {}", kind, c.action.stage.value, c.action.first);
}

std::vector<std::string> explain(const Result& result, const Program& program) {
  std::vector<std::string> lines;
  add_path(result, program, lines);
  add_bubble(result, program, lines);
  for (std::string& line : explain_waits(result, program)) lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> explain_waits(const Result& result, const Program& program) {
  std::vector<std::string> lines;
  add_imbalance(result, program, lines);
  add_waits(result, program, lines);
  return lines;
}

}  // namespace mw::simulate
