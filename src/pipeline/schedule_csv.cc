// torch.distributed.pipelining's CSV (torch 2.13, schedules.py), with tags for what it lacks:
//   cell    := "" | single | "(" single ";" single ")OVERLAP_F_B"
//   single  := stage compute samples [slice] [replica]
//            | stage message microbatch [slice] [replica] | stage weights [replica]
//   compute := "F" | "I" | "W" | "B"
//   message := "SEND_F" | "RECV_F" | "SEND_B" | "RECV_B"
//   weights := "UNSHARD" | "RESHARD" | "REDUCE_GRAD"
//   samples := microbatch | microbatch "-" microbatch      slice := "/" number
//   replica := "^" number
#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "pipeline/schedule_comms.h"

namespace mw::pipeline {

static constexpr std::string_view kOverlap = ")OVERLAP_F_B";

std::string to_csv(const Schedule& schedule) {
  Steps steps(schedule.ranks.size());
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (size_t a = 0; a < schedule.ranks[r].size(); ++a) {
      steps[r].push_back({.kind = StepKind::kCompute,
                          .action = schedule.ranks[r][a],
                          .index = static_cast<int32_t>(a)});
    }
  }
  return to_csv(schedule, steps);
}

namespace {

struct Word {
  std::string_view text;
  StepKind step;
  ActionKind action;
};
// The longer of two words with the same beginning comes first.
constexpr std::array kWords = {
    Word{"SEND_F", StepKind::kSendF, ActionKind::kF},
    Word{"RECV_F", StepKind::kRecvF, ActionKind::kF},
    Word{"SEND_B", StepKind::kSendB, ActionKind::kB},
    Word{"RECV_B", StepKind::kRecvB, ActionKind::kB},
    Word{"UNSHARD", StepKind::kUnshard, ActionKind::kF},
    Word{"RESHARD", StepKind::kReshard, ActionKind::kF},
    Word{"REDUCE_GRAD", StepKind::kReduceGrad, ActionKind::kF},
    Word{"F", StepKind::kCompute, ActionKind::kF},
    Word{"I", StepKind::kCompute, ActionKind::kI},
    Word{"W", StepKind::kCompute, ActionKind::kW},
    Word{"B", StepKind::kCompute, ActionKind::kB},
};

bool is_of_stage(StepKind kind) {
  return kind == StepKind::kUnshard || kind == StepKind::kReshard || kind == StepKind::kReduceGrad;
}

// Numbers in cells are below this.
constexpr int64_t kMostNumber = 1 << 20;

// Reads one cell's text from left to right.
class CellReader {
 public:
  explicit CellReader(std::string_view text) : left_(text) {}

  std::optional<Step> single() {
    Step step;
    const std::optional<int32_t> stage = number();
    if (!stage) return std::nullopt;
    step.action.stage = StageId(*stage);
    const auto word = std::find_if(kWords.begin(), kWords.end(),
                                   [&](const Word& w) { return starts_with(left_, w.text); });
    if (word == kWords.end()) return std::nullopt;
    left_.remove_prefix(word->text.size());
    step.kind = word->step;
    step.action.kind = word->action;
    if (!is_of_stage(step.kind) && !samples(step)) return std::nullopt;
    if (take('^') && !read(step.action.replica)) return std::nullopt;
    return left_.empty() ? std::optional(step) : std::nullopt;
  }
  // The number that ended the reading, as it is too large; "": none did.
  std::string_view too_large() const { return too_large_; }

 private:
  bool samples(Step& step) {
    if (!read(step.action.first)) return false;
    if (step.kind == StepKind::kCompute && take('-')) {
      int32_t last = 0;
      if (!read(last) || last <= step.action.first) return false;
      step.action.count = last - step.action.first + 1;
    }
    return !take('/') || read(step.action.slice);
  }
  bool take(char c) {
    if (left_.empty() || left_.front() != c) return false;
    left_.remove_prefix(1);
    return true;
  }
  bool read(int32_t& value) {
    const std::optional<int32_t> parsed = number();
    if (parsed) value = *parsed;
    return parsed.has_value();
  }
  std::optional<int32_t> number() {
    const size_t count = std::min(left_.find_first_not_of("0123456789"), left_.size());
    if (count == 0) return std::nullopt;
    const std::optional<int64_t> value = parse_int64(left_.substr(0, count));
    if (!value || *value >= kMostNumber) {
      too_large_ = left_.substr(0, count);
      return std::nullopt;
    }
    left_.remove_prefix(count);
    return static_cast<int32_t>(*value);
  }

  std::string_view left_, too_large_;
};

void add_compute(Step step, std::vector<Action>& actions, std::vector<Step>& steps) {
  step.index = static_cast<int32_t>(actions.size());
  actions.push_back(step.action);
  steps.push_back(step);
}

// What a cell that is not of the grammar must be.
std::string wrong_form(std::string_view too_large = "") {
  if (!too_large.empty()) {
    return fmt::format("{} is too large a number; it must be below {}", clipped(too_large),
                       kMostNumber);
  }
  return "it must be empty, stage, one of F I W B and microbatch as in 3F7, (3F7;4B0)OVERLAP_F_B, "
         "or one of SEND_F RECV_F SEND_B RECV_B as in 3SEND_F7, or of UNSHARD RESHARD REDUCE_GRAD "
         "as in 3UNSHARD";
}

// Appends what a cell holds. Returns what is wrong with it; "": nothing.
std::string parse_cell(std::string_view cell, std::vector<Action>& actions,
                       std::vector<Step>& steps) {
  if (cell.empty()) return "";
  if (!starts_with(cell, "(") || !ends_with(cell, kOverlap)) {
    CellReader reader(cell);
    const std::optional<Step> step = reader.single();
    if (!step) return wrong_form(reader.too_large());
    if (step->kind == StepKind::kCompute) {
      add_compute(*step, actions, steps);
    } else {
      steps.push_back(*step);
    }
    return "";
  }
  const std::vector<std::string_view> parts =
      split(cell.substr(1, cell.size() - 1 - kOverlap.size()), ';');
  if (parts.size() != 2) return wrong_form();
  const auto at = static_cast<int32_t>(actions.size());
  for (int32_t p = 0; p < 2; ++p) {
    CellReader reader(trim(parts[static_cast<size_t>(p)]));
    std::optional<Step> step = reader.single();
    if (!step || step->kind != StepKind::kCompute) return wrong_form(reader.too_large());
    step->action.paired_with = at + 1 - p;
    add_compute(*step, actions, steps);
  }
  return "";
}

// torch has no tag for replicas: where no cell has one and a stage is on several ranks, the
// microbatches that take the same way through the ranks are one replica, in the order of their
// numbers. Ways that are not whole are left to findings(). Whether it has tagged any.
bool tag_replicas(ParsedSchedule& parsed) {
  std::map<int32_t, std::map<int32_t, int32_t>> way_of;  // microbatch -> stage -> rank
  std::map<int32_t, int32_t> host;
  bool several = false, tagged = false;
  for (size_t r = 0; r < parsed.schedule.ranks.size(); ++r) {
    const auto rank = static_cast<int32_t>(r);
    for (const Action& a : parsed.schedule.ranks[r]) {
      tagged |= a.replica != 0;
      several |= host.emplace(a.stage.value, rank).first->second != rank;
      for (int32_t k = 0; k < a.count; ++k) {
        const auto [it, isnew] = way_of[a.first + k].emplace(a.stage.value, rank);
        if (!isnew && it->second != rank) return false;
      }
    }
  }
  if (!several || tagged) return false;
  std::vector<std::map<int32_t, int32_t>> ways;
  std::map<int32_t, int32_t> replica_of;
  for (const auto& [microbatch, way] : way_of) {
    if (way.size() != host.size()) return false;
    auto it = std::find(ways.begin(), ways.end(), way);
    if (it == ways.end()) it = ways.insert(ways.end(), way);
    replica_of[microbatch] = static_cast<int32_t>(it - ways.begin());
  }
  // Replicas are whole pipelines: no two have a stage on the same rank.
  for (size_t i = 0; i < ways.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      for (const auto& [stage, rank] : ways[i]) {
        if (ways[j].at(stage) == rank) return false;
      }
    }
  }
  const auto tag = [&](Action& a) {
    a.replica = replica_of.contains(a.first) ? replica_of[a.first] : 0;
  };
  for (auto& actions : parsed.schedule.ranks) std::for_each(actions.begin(), actions.end(), tag);
  for (size_t r = 0; r < parsed.steps.size(); ++r) {
    for (Step& step : parsed.steps[r]) {
      if (!is_of_stage(step.kind)) {
        tag(step.action);
        continue;
      }
      const auto way = std::find_if(ways.begin(), ways.end(), [&](const auto& w) {
        const auto it = w.find(step.action.stage.value);
        return it != w.end() && it->second == static_cast<int32_t>(r);
      });
      if (way != ways.end()) step.action.replica = static_cast<int32_t>(way - ways.begin());
    }
  }
  return true;
}

// "f.csv: stage 0 is on ranks 0 and 1, …": that they are replicas is for whoever wrote it to know.
std::string note_of_replicas(const Schedule& schedule) {
  constexpr int32_t kMostTold = 8;
  const Placement& placement = schedule.placement;
  std::vector<std::string> stages;
  for (int32_t s = 0; s < std::min(placement.stages(), kMostTold); ++s) {
    std::vector<std::string> ranks;
    for (int32_t j = 0; j + 1 < placement.replicas(); ++j)
      ranks.push_back(std::to_string(placement.rank_of(s, j)));
    stages.push_back(fmt::format("stage {} {}on ranks {} and {}", s, s == 0 ? "is " : "",
                                 join(ranks, ", "),
                                 placement.rank_of(s, placement.replicas() - 1)));
  }
  if (placement.stages() > kMostTold) stages.emplace_back("and so on");
  std::string tagged;
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (tagged.empty() && action.replica == 1) tagged = to_string(action);
    }
  }
  return fmt::format(
      "{}: {}; as no cell has a replica tag, as in {}, they are taken as replicas of the weights",
      schedule.name, join(stages, ", "), tagged);
}

// Of replicas a file has those alone that have work.
void check_replicas(const Schedule& schedule, const std::string& file, Diagnostics& diagnostics) {
  std::vector<bool> works(static_cast<size_t>(schedule.placement.replicas()), false);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (size_t i = 0; i < schedule.ranks[r].size(); ++i) {
      const Action& action = schedule.ranks[r][i];
      if (static_cast<size_t>(action.replica) >= works.size()) {
        diagnostics.add(
            "{}: rank {} action {} is {}, but the replicas are 0 to {}, on as many ranks", file, r,
            i, to_string(action), works.size() - 1);
        return;
      }
      works[static_cast<size_t>(action.replica)] = true;
    }
  }
  for (size_t j = 0; j < works.size(); ++j) {
    if (!works[j]) {
      diagnostics.add("{}: no rank has work of replica {}, but the replicas are 0 to {}", file, j,
                      works.size() - 1);
    }
  }
}

// Stages, replicas, slices and microbatches as the rows have them; a stage that no row has, or two
// have, is for findings() to tell. It is on the rank that has most of its work, the first of those,
// so that what slipped into another row is told there.
void infer_placement(Schedule& schedule) {
  Placement& placement = schedule.placement;
  placement.ranks = static_cast<int32_t>(schedule.ranks.size());
  schedule.microbatches = 0;
  std::map<std::pair<int32_t, int32_t>, std::map<int32_t, int64_t>>
      actions_of;  // (replica, stage), by rank
  int32_t stages = 0, replicas = 1;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (const Action& action : schedule.ranks[r]) {
      schedule.microbatches = std::max(schedule.microbatches, action.first + action.count);
      schedule.slices = std::max(schedule.slices, action.slice + 1);
      stages = std::max(stages, action.stage.value + 1);
      replicas = std::max(replicas, action.replica + 1);
      ++actions_of[{action.replica, action.stage.value}][static_cast<int32_t>(r)];
    }
  }
  replicas = std::min(replicas, std::max(placement.ranks, 1));
  for (int32_t j = 0; j < replicas; ++j) {
    std::vector<int32_t> row(static_cast<size_t>(stages), -1);
    for (int32_t s = 0; s < stages; ++s) {
      const auto it = actions_of.find({j, s});
      if (it == actions_of.end()) continue;
      const auto most =
          std::max_element(it->second.begin(), it->second.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      row[static_cast<size_t>(s)] = most->first;
    }
    if (j == 0) {
      placement.rank_of_stage = std::move(row);
    } else {
      placement.rank_of_replica.push_back(std::move(row));
    }
  }
}

// Cells may name ranges: what they come to is bounded before anything is made of it.
void check_ranges(const Schedule& schedule, const std::string& file, Diagnostics& diagnostics) {
  constexpr int64_t kMostUnits = 1 << 22;
  int64_t units = 0;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (size_t i = 0; i < schedule.ranks[r].size(); ++i) {
      units += schedule.ranks[r][i].count;
      if (units <= kMostUnits) continue;
      diagnostics.add("{}: rank {} action {} ({}) makes it more than {} pieces of work", file, r, i,
                      to_string(schedule.ranks[r][i]), kMostUnits);
      return;
    }
  }
}

// Every stage has all microbatches, in all slices: numbers far beyond what the rows hold are said
// before tables are made by them.
void check_size(const Schedule& schedule, const std::string& file, Diagnostics& diagnostics) {
  int64_t units = 0;
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) units += action.kind == ActionKind::kF ? action.count : 0;
  }
  const int64_t stages = schedule.placement.stages();
  // Up to 2^60: no product of three such numbers overflows.
  const int64_t needed = stages * schedule.microbatches * schedule.slices;
  constexpr int64_t kFew = 1 << 20;
  // Tables have a place for every replica, too.
  const auto replicas = static_cast<double>(schedule.placement.replicas());
  const double places = static_cast<double>(needed) * replicas;
  const double rows = 2 * static_cast<double>(units) * replicas;
  if (places <= std::max(static_cast<double>(kFew), rows)) return;
  // The place that is told is the first with the number that is largest.
  const int64_t largest = std::max<int64_t>({stages, schedule.microbatches, schedule.slices});
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (size_t i = 0; i < schedule.ranks[r].size(); ++i) {
      const Action& a = schedule.ranks[r][i];
      if (a.stage.value + 1 < largest && a.first + a.count < largest && a.slice + 1 < largest)
        continue;
      diagnostics.add(
          "{}: rank {} action {} ({}) makes it {} stages, {} microbatches and {} slices{}, {} "
          "forwards, but the rows have {}",
          file, r, i, to_string(a), stages, schedule.microbatches, schedule.slices,
          replicas > 1 ? fmt::format(" in {} replicas", replicas) : "", needed, units);
      return;
    }
  }
}

}  // namespace

ParsedSchedule parse_schedule(const std::string& text, const std::string& file) {
  ParsedSchedule parsed;
  parsed.schedule.name = file;
  Diagnostics diagnostics;
  std::vector<std::string_view> lines = split_lines(without_bom(text));
  while (!lines.empty() && trim(lines.back()).empty()) lines.pop_back();
  constexpr int64_t kMostTold = 16;  // one slip is often in every cell
  int64_t wrong_cells = 0;
  for (size_t l = 0; l < lines.size(); ++l) {
    std::vector<Action>& actions = parsed.schedule.ranks.emplace_back();
    std::vector<Step>& steps = parsed.steps.emplace_back();
    const std::vector<std::string_view> cells = split(lines[l], ',');
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string_view cell = trim(cells[c]);
      const std::string wrong = parse_cell(cell, actions, steps);
      if (wrong.empty() || ++wrong_cells > kMostTold) continue;
      diagnostics.add("{}:{}: cell {} is '{}'; {}", file, l + 1, c + 1, printable(clipped(cell)),
                      wrong);
    }
    if (actions.empty() && diagnostics.empty())
      diagnostics.add("{}:{}: rank {} has no F, I, W or B; leave the line out", file, l + 1, l);
  }
  if (wrong_cells > kMostTold)
    diagnostics.add("{}: {} more cells are of no such form", file, wrong_cells - kMostTold);
  if (lines.empty()) diagnostics.add("{}: is empty; it must have one line a rank", file);
  diagnostics.throw_if_any();

  const bool compute_only =
      std::all_of(parsed.steps.begin(), parsed.steps.end(), [](const std::vector<Step>& steps) {
        return std::all_of(steps.begin(), steps.end(),
                           [](const Step& s) { return s.kind == StepKind::kCompute; });
      });
  if (compute_only) parsed.steps.clear();
  check_ranges(parsed.schedule, file, diagnostics);
  diagnostics.throw_if_any();
  const bool untagged = tag_replicas(parsed);
  infer_placement(parsed.schedule);
  check_size(parsed.schedule, file, diagnostics);
  check_replicas(parsed.schedule, file, diagnostics);
  diagnostics.throw_if_any();
  for (const std::string& finding : findings(parsed.schedule))
    diagnostics.add("{}: {}", file, finding);
  if (diagnostics.empty() && !compute_only) {
    for (const std::string& finding : findings(parsed.schedule, parsed.steps))
      diagnostics.add("{}: {}", file, finding);
  }
  diagnostics.throw_if_any();
  if (untagged) parsed.note = note_of_replicas(parsed.schedule);
  return parsed;
}

Schedule parse_csv(const std::string& text, const std::string& file) {
  return parse_schedule(text, file).schedule;
}

}  // namespace mw::pipeline
