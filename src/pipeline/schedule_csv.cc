// torch.distributed.pipelining's CSV (torch 2.13, schedules.py):
//   cell   := "" | single | "(" single ";" single ")OVERLAP_F_B"
//   single := stage ("F" | "I" | "W" | "B") microbatch
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "pipeline/schedule.h"

namespace mw::pipeline {

static constexpr std::string_view kOverlap = ")OVERLAP_F_B";

static std::string compute_cell(const Action& action, int32_t rank) {
  const bool compute = action.kind == ActionKind::kF || action.kind == ActionKind::kI ||
                       action.kind == ActionKind::kW || action.kind == ActionKind::kB;
  if (!compute || action.replica != 0 || action.count != 1 || action.slice >= 0) {
    throw_error(
        "schedule: {} on rank {} has no form in torch's CSV, which holds F, I, W and B of one "
        "whole microbatch "
        "of one replica",
        to_string(action), rank);
  }
  return to_string(action);
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    const std::vector<Action>& actions = schedule.ranks[r];
    const auto cell = [&](const Action& action) {
      return compute_cell(action, static_cast<int32_t>(r));
    };
    std::vector<std::string> cells;
    for (size_t i = 0; i < actions.size(); ++i) {
      const int32_t pair = actions[i].paired_with;
      if (pair < 0) {
        cells.push_back(cell(actions[i]));
      } else if (pair == static_cast<int32_t>(i) + 1) {
        cells.push_back(fmt::format("({};{}{}", cell(actions[i]), cell(actions[i + 1]), kOverlap));
      } else if (pair + 1 != static_cast<int32_t>(i)) {
        throw_error(
            "schedule: {} on rank {} is paired with action {}, not with its neighbour; torch's CSV "
            "cannot hold "
            "that",
            to_string(actions[i]), r, pair);
      }
    }
    text += join(cells, ",") + "\n";
  }
  return text;
}

// "3F7"; nullopt where the text is nothing like it.
static std::optional<Action> parse_single(std::string_view text) {
  const size_t letter = text.find_first_not_of("0123456789");
  if (letter == 0 || letter == std::string_view::npos || letter + 1 >= text.size())
    return std::nullopt;
  Action action;
  switch (text[letter]) {
    case 'F': action.kind = ActionKind::kF; break;
    case 'I': action.kind = ActionKind::kI; break;
    case 'W': action.kind = ActionKind::kW; break;
    case 'B': action.kind = ActionKind::kB; break;
    default: return std::nullopt;
  }
  const std::optional<int64_t> stage = parse_int64(text.substr(0, letter));
  const std::optional<int64_t> microbatch = parse_int64(text.substr(letter + 1));
  constexpr int64_t kMost = 1 << 20;
  if (!stage || !microbatch || *stage >= kMost || *microbatch < 0 || *microbatch >= kMost)
    return std::nullopt;
  action.stage = StageId(*stage);
  action.first = static_cast<int32_t>(*microbatch);
  return action;
}

// Appends the actions of a cell; false where it is not of the grammar.
static bool parse_cell(std::string_view cell, std::vector<Action>& actions) {
  if (cell.empty()) return true;
  if (!starts_with(cell, "(") || !ends_with(cell, kOverlap)) {
    const std::optional<Action> action = parse_single(cell);
    if (action) actions.push_back(*action);
    return action.has_value();
  }
  const std::vector<std::string_view> parts =
      split(cell.substr(1, cell.size() - 1 - kOverlap.size()), ';');
  if (parts.size() != 2) return false;
  std::optional<Action> first = parse_single(trim(parts[0])), second = parse_single(trim(parts[1]));
  if (!first || !second) return false;
  const auto at = static_cast<int32_t>(actions.size());
  first->paired_with = at + 1;
  second->paired_with = at;
  actions.push_back(*first);
  actions.push_back(*second);
  return true;
}

// Stages and microbatches as the rows have them; a stage that no row has, or two have, is for
// findings() to tell.
static void infer_placement(Schedule& schedule) {
  Placement& placement = schedule.placement;
  placement.ranks = static_cast<int32_t>(schedule.ranks.size());
  schedule.microbatches = 0;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (const Action& action : schedule.ranks[r]) {
      schedule.microbatches = std::max(schedule.microbatches, action.first + 1);
      if (action.stage.value >= placement.stages())
        placement.rank_of_stage.resize(action.stage.index() + 1, -1);
      int32_t& rank = placement.rank_of_stage[action.stage.index()];
      if (rank < 0) rank = static_cast<int32_t>(r);
    }
  }
}

Schedule parse_csv(const std::string& text, const std::string& file) {
  Schedule schedule;
  schedule.name = file;
  Diagnostics diagnostics;
  const std::vector<std::string_view> lines = split_lines(text);
  for (size_t l = 0; l < lines.size(); ++l) {
    std::vector<Action>& actions = schedule.ranks.emplace_back();
    const std::vector<std::string_view> cells = split(lines[l], ',');
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string_view cell = trim(cells[c]);
      if (parse_cell(cell, actions)) continue;
      diagnostics.add(
          "{}:{}: cell {} is '{}'; it must be empty, stage, one of F I W B and microbatch as in "
          "3F7, or "
          "(3F7;4B0)OVERLAP_F_B",
          file, l + 1, c + 1, cell);
    }
  }
  if (lines.empty()) diagnostics.add("{}: is empty; it must have one line a rank", file);
  diagnostics.throw_if_any();

  infer_placement(schedule);
  for (const std::string& finding : findings(schedule)) diagnostics.add("{}: {}", file, finding);
  diagnostics.throw_if_any();
  return schedule;
}

}  // namespace mw::pipeline
