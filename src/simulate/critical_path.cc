#include "simulate/critical_path.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/text.h"

namespace mw::simulate {
namespace {

// The last wait of a rank that had ended by then, at this command or before; nullptr: none.
const Wait* last_wait(const std::vector<Wait>& waits, int32_t command, double time) {
  const auto behind =
      std::upper_bound(waits.begin(), waits.end(), command,
                       [](int32_t c, const Wait& wait) { return c < wait.command; });
  for (auto it = behind; it != waits.begin();) {
    --it;
    if (it->end.value <= time) return &*it;
  }
  return nullptr;
}

std::string rank_text(const pipeline::Program& program, int32_t rank) {
  return program.ranks.size() == 1 ? "the rank" : fmt::format("pipeline rank {}", rank);
}

// "B stage 3 of microbatch 7", "UPDATE".
std::string command_text(const pipeline::Program& program, int32_t rank, int32_t command) {
  const pipeline::Command& c =
      program.ranks[static_cast<size_t>(rank)].commands[static_cast<size_t>(command)];
  const std::string kind = pipeline::to_string(c.action.kind);
  if (!c.action.stage.valid()) return kind;
  return fmt::format("{} of stage {}, microbatch {}", kind, c.action.stage.value, c.action.first);
}

std::string wait_text(const pipeline::Program& program, int32_t rank, const Wait& wait) {
  const std::string took = format_seconds((wait.end - wait.begin).value);
  const std::string what = command_text(program, rank, wait.command);
  switch (wait.reason) {
    case WaitReason::kReceive:
      return fmt::format("{} waits {} for the input of {} from rank {}", rank_text(program, rank),
                         took, what, wait.peer);
    case WaitReason::kSlot:
      return fmt::format("{} waits {} before {}, until rank {} gives a slot back",
                         rank_text(program, rank), took, what, wait.peer);
    case WaitReason::kCollective:
      return fmt::format("{} waits {} in {} for rank {}, the last in a collective",
                         rank_text(program, rank), took, what, wait.peer);
    case WaitReason::kSend:
      return fmt::format("{} waits {} until its result of {} has arrived", rank_text(program, rank),
                         took, what);
    case WaitReason::kGather:
      return fmt::format("{} waits {} for its weights before {}", rank_text(program, rank), took,
                         what);
  }
  return "";
}

void add_path(const Result& result, const pipeline::Program& program,
              std::vector<std::string>& lines) {
  std::vector<double> work(program.ranks.size(), 0);
  double messages = 0;
  int64_t hops = 0;
  for (const PathPart& part : result.critical_path) {
    const double took = (part.end - part.begin).value;
    if (part.message) {
      messages += took;
      ++hops;
    } else {
      work[static_cast<size_t>(part.rank)] += took;
    }
  }
  const auto most = static_cast<int32_t>(std::max_element(work.begin(), work.end()) - work.begin());
  double all = 0;
  for (const double w : work) all += w;
  lines.push_back(fmt::format(
      "of the critical path's {}, ranks work {} and messages take {} ({} hops); {} does most, {}",
      format_seconds(result.step.value), format_seconds(all), format_seconds(messages), hops,
      rank_text(program, most), format_seconds(work[static_cast<size_t>(most)])));
}

}  // namespace

std::vector<PathPart> critical_path(const std::vector<std::vector<Wait>>& waits,
                                    const std::vector<double>& ends,
                                    const std::vector<int32_t>& commands) {
  std::vector<PathPart> path;
  auto rank = static_cast<int32_t>(std::max_element(ends.begin(), ends.end()) - ends.begin());
  double time = ends[static_cast<size_t>(rank)];
  int32_t command = commands[static_cast<size_t>(rank)] - 1;
  size_t left = 1;  // every wait is passed at most once
  for (const auto& of_rank : waits) left += of_rank.size();
  for (; left > 0; --left) {
    const Wait* wait = last_wait(waits[static_cast<size_t>(rank)], command, time);
    const double begin = wait == nullptr ? 0 : wait->end.value;
    if (time > begin) {
      path.push_back({rank, Seconds(begin), Seconds(time), false,
                      wait == nullptr ? 0 : wait->command, command});
    }
    if (wait == nullptr) break;
    if (wait->peer_time < wait->end) {
      path.push_back(
          {wait->peer, wait->peer_time, wait->end, true, wait->peer_command, wait->peer_command});
    }
    rank = wait->peer;
    command = wait->peer_command;
    time = wait->peer_time.value;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<std::string> explain(const Result& result, const pipeline::Program& program) {
  std::vector<std::string> lines;
  add_path(result, program, lines);
  struct Found {
    int32_t rank;
    const Wait* wait;
  };
  constexpr size_t kTold = 3;
  std::vector<Found> longest;
  for (size_t r = 0; r < result.waits.size(); ++r) {
    for (const Wait& wait : result.waits[r]) longest.push_back({static_cast<int32_t>(r), &wait});
  }
  const size_t told = std::min(kTold, longest.size());
  std::partial_sort(longest.begin(), longest.begin() + static_cast<std::ptrdiff_t>(told),
                    longest.end(), [](const Found& a, const Found& b) {
                      const double ta = (a.wait->end - a.wait->begin).value;
                      const double tb = (b.wait->end - b.wait->begin).value;
                      return ta != tb ? ta > tb : a.rank < b.rank;
                    });
  for (size_t i = 0; i < told; ++i)
    lines.push_back(wait_text(program, longest[i].rank, *longest[i].wait));
  return lines;
}

}  // namespace mw::simulate
