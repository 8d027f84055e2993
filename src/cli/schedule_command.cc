#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>

#include <fmt/core.h>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/output_file.h"
#include "cli/standard_error.h"
#include "pipeline/schedule_comms.h"
#include "report/schedule_drawing.h"

namespace mw::cli {
namespace {

using pipeline::ScheduleCosts;
using pipeline::ScheduleRequest;

constexpr int64_t kMost = 1 << 20;  // stages x chunks x microbatches x slices

struct ScheduleOptions {
  std::string kind, from, csv, svg, costs, memory, sync = "end";
  std::vector<std::string> compare;  // as given; names of kinds once they are split
  ScheduleRequest request;
  std::optional<int64_t> stages, microbatches;
  std::optional<double> memory_limit;
  bool json = false, comms = false;
};

// A key of "f=1,b=1:2,comm=0".
struct Key {
  std::string name;
  bool each_stage = false;  // it may have a value for each stage
};

// What is no number is said and 1.
std::vector<double> parse_numbers(std::string_view text, const char* option, const Key& key,
                                  Diagnostics& out) {
  std::vector<double> numbers;
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() > 1 && !key.each_stage) {
    out.add("{}: {} is one number, not one a stage", option, key.name);
    return {1};
  }
  for (const std::string_view part : parts) {
    const std::optional<double> number = parse_double(part);
    const bool is_number = number && std::isfinite(*number);
    if (!is_number) {
      out.add("{}: '{}' is no number; it must be as in 1.5{}", option, clipped(part),
              key.each_stage ? ", or 1:1:2:1 with one for each stage" : "");
    }
    numbers.push_back(is_number ? *number : 1);
  }
  return numbers;
}

// Every value goes to `set(key, values)`.
template <typename Set>
void parse_pairs(const std::string& text, const char* option, const std::vector<Key>& keys, Set set,
                 Diagnostics& out) {
  if (text.empty()) return;
  std::vector<std::string> names, seen;
  for (const Key& key : keys) names.push_back(key.name);
  for (const std::string_view part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string name(trim(part.substr(0, equals)));
    const auto key =
        std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return k.name == name; });
    if (key == keys.end()) {
      out.add("{}: '{}' is not of the form key=number; keys are {}{}", option, clipped(part),
              join(names, ", "), did_you_mean(name, names));
      continue;
    }
    if (std::find(seen.begin(), seen.end(), name) != seen.end())
      out.add("{}: {} is there twice", option, name);
    seen.push_back(name);
    const std::string_view value =
        equals == std::string_view::npos ? "" : trim(part.substr(equals + 1));
    if (value.empty()) {
      out.add("{}: {} has no value; give it one, as in {}=1", option, name, name);
    } else {
      set(name, parse_numbers(value, option, *key, out));
    }
  }
}

ScheduleCosts parse_costs(const ScheduleOptions& options, Diagnostics& out) {
  ScheduleCosts costs;
  parse_pairs(
      options.costs, "--costs",
      {{"f", true}, {"b", true}, {"w", true}, {"comm"}, {"pair"}, {"sync"}},
      [&](const std::string& key, const std::vector<double>& values) {
        if (key == "f") costs.f = values;
        if (key == "b") costs.b = values;
        if (key == "w") costs.w = values;
        if (key == "comm") costs.comm = values.front();
        if (key == "pair") {
          costs.pair = values.front();
          if (costs.pair < 0)
            out.add("--costs: pair={} must be at least 0; without it F beside B takes f + b + w",
                    costs.pair);
        }
        if (key == "sync") costs.sync = values.front();
      },
      out);
  std::optional<double> mw;
  parse_pairs(
      options.memory, "--memory", {{"mb"}, {"mw"}},
      [&](const std::string& key, const std::vector<double>& values) {
        if (key == "mb") costs.mb = values.front();
        if (key == "mw") mw = values.front();
      },
      out);
  costs.mw = mw.value_or(costs.mb);
  return costs;
}

// With --compare costs are those of a rank's whole share: a chunk has its part of them. A list has
// a value a rank, as kinds differ in their stages.
ScheduleCosts per_chunk(ScheduleCosts costs, const std::string& kind,
                        const pipeline::Placement& placement, Diagnostics& out) {
  const std::vector<int32_t> shares = placement.shares();
  const bool uneven = std::max({costs.f.size(), costs.b.size(), costs.w.size()}) > 1;
  if (uneven && placement.replicas() > 1) {
    out.add(
        "--costs: {} has every stage on {} ranks, whose values would differ; give one of all ranks "
        "with it",
        kind, placement.replicas());
    return costs;
  }
  const double chunks =
      std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size());
  for (const auto& [name, list] :
       {std::pair("f", &costs.f), std::pair("b", &costs.b), std::pair("w", &costs.w)}) {
    if (list->size() == 1) {
      list->front() /= chunks;
    } else if (list->size() != shares.size()) {
      out.add(
          "{}: costs: {} has {} values; with --compare it must have one, or one for each of "
          "the {} ranks",
          kind, name, list->size(), shares.size());
      *list = {1};
    } else {
      std::vector<double> of_stages;
      for (const int32_t rank : placement.rank_of_stage)
        of_stages.push_back((*list)[static_cast<size_t>(rank)] / shares[static_cast<size_t>(rank)]);
      *list = std::move(of_stages);
    }
  }
  if (costs.pair >= 0) costs.pair /= chunks;
  costs.sync /= chunks;
  return costs;
}

report::ScheduleDrawing drawing_of(pipeline::Schedule schedule, ScheduleCosts costs, bool share) {
  Diagnostics out;
  if (share) costs = per_chunk(costs, schedule.name, schedule.placement, out);
  out.throw_if_any();
  for (const std::string& finding : pipeline::findings(costs, schedule.placement.stages()))
    out.add("{}{}", share ? schedule.name + ": " : "", finding);
  out.throw_if_any();
  pipeline::Timeline times = pipeline::timeline(schedule, costs);
  std::string title = schedule.name;
  return {std::move(title), std::move(schedule), std::move(times)};
}

Json json_of(const report::ScheduleDrawing& drawing) {
  const pipeline::Timeline& times = drawing.times;
  Json json;
  json["schedule"] = drawing.title;
  json["stages"] = drawing.schedule.placement.ranks;
  const pipeline::Placement& placement = drawing.schedule.placement;
  const std::vector<int32_t> shares = placement.shares();
  json["chunks"] = *std::max_element(shares.begin(), shares.end());
  json["microbatches"] = drawing.schedule.microbatches / drawing.schedule.parts;
  json["makespan"] = times.makespan;
  json["bubble"] = times.bubble;
  json["span_bubble"] = times.span_bubble;
  json["period"] = times.period;
  json["period_bubble"] = times.period_bubble;
  json["peak_activations"] = Json::list(times.peak_activations);
  json["weight_copies"] = times.weight_copies;
  json["needs"] = Json::list(pipeline::describe(pipeline::needs(drawing.schedule)));
  return json;
}

report::TextStyle terminal_style() {
  report::TextStyle style;
  style.color = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  winsize size{};
  if (isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    style.columns = size.ws_col;
  return style;
}

void print_text(const std::vector<report::ScheduleDrawing>& drawings) {
  const report::TextStyle style = report::with_one_scale(terminal_style(), drawings);
  for (const report::ScheduleDrawing& drawing : drawings) {
    const int32_t ranks = drawing.schedule.placement.ranks;
    const int32_t microbatches = drawing.schedule.microbatches / drawing.schedule.parts;
    fmt::print("{}: {} {}, {} {}\n{}{}\n", drawing.title, ranks, ranks == 1 ? "rank" : "ranks",
               microbatches, microbatches == 1 ? "microbatch" : "microbatches",
               report::draw_text(drawing, style), report::figures_line(drawing));
  }
  fmt::print("{}\n", report::legend_line(drawings, style.color));
}

// Of one of the kinds that are drawn at the most.
int32_t most_chunks(const ScheduleOptions& options) {
  int32_t most = std::max(1, options.request.chunks);
  std::vector<std::string> kinds = options.compare;
  kinds.push_back(options.kind);
  for (const std::string& name : kinds) {
    const pipeline::ScheduleKind* kind = pipeline::find_kind(name);
    if (kind != nullptr && options.request.chunks == 0) most = std::max(most, kind->chunks.usual);
  }
  return most;
}

// Pieces of work, where stages and microbatches are given.
double drawn(const ScheduleOptions& options) {
  return static_cast<double>(*options.stages) * static_cast<double>(*options.microbatches) *
         most_chunks(options) * std::max(1, options.request.slices);
}

void check_options(const ScheduleOptions& options, Diagnostics& out) {
  if (options.from.empty()) {
    if (options.kind.empty())
      out.add("a schedule is missing; name a kind ({}), or a file with --from",
              join(pipeline::all_schedule_kinds(), ", "));
    if (!options.stages) out.add("--stages: is missing; it is the number of pipeline ranks");
    if (!options.microbatches) out.add("--microbatches: is missing");
    if (options.stages && options.microbatches && drawn(options) > static_cast<double>(kMost)) {
      std::vector<std::string> names = {"--stages", "--microbatches"};
      std::string factors = fmt::format("{} x {}", *options.stages, *options.microbatches);
      const auto add = [&](const char* name, int32_t factor) {
        if (factor <= 1) return;
        names.emplace_back(name);
        factors += fmt::format(" x {}", factor);
      };
      add("--chunks", most_chunks(options));
      add("--slices", options.request.slices);
      out.add("{}: {} is more than the {} that are drawn", join(names, ", "), factors, kMost);
    }
    return;
  }
  if (!options.kind.empty())
    out.add("--from: the schedule comes from a file, and '{}' names another; leave one out",
            options.kind);
  if (options.stages || options.microbatches || options.request.chunks != 0)
    out.add("--from: stages, microbatches and chunks are those of the file; leave the options out");
}

// Whether the schedule of a file takes the option: when its stages' replicas are summed.
bool file_takes(const pipeline::RequestOption& option,
                const std::vector<pipeline::Schedule>& of_file) {
  return option.has == &pipeline::KindOptions::sync && !of_file.empty() &&
         of_file.front().placement.replicas() > 1;
}

// What each of the kinds is asked for: what it has options for. What neither they nor the file have
// is the first one's to refuse.
std::vector<ScheduleRequest> requests_of(const ScheduleRequest& request,
                                         const std::vector<std::string>& kinds,
                                         const std::vector<pipeline::Schedule>& of_file) {
  std::vector<ScheduleRequest> requests;
  for (const std::string& kind : kinds) {
    ScheduleRequest own = request;
    own.kind = kind;
    requests.push_back(pipeline::own_options(own));
  }
  const auto none = [&](auto given) {
    return std::none_of(requests.begin(), requests.end(), given);
  };
  for (const pipeline::RequestOption& option : pipeline::request_options()) {
    if (none(option.given) && !file_takes(option, of_file)) option.copy(requests.front(), request);
  }
  if (none([](const ScheduleRequest& own) { return own.chunks != 0; }))
    requests.front().chunks = request.chunks;
  return requests;
}

// Options of kinds where there is the file alone.
void refuse_beside_file(const ScheduleRequest& given,
                        const std::vector<pipeline::Schedule>& of_file, Diagnostics& out) {
  for (const pipeline::RequestOption& option : pipeline::request_options()) {
    if (!option.given(given) || file_takes(option, of_file)) continue;
    std::string name = option.key;
    std::replace(name.begin(), name.end(), '_', '-');
    out.add("--{}: {}; leave it out", name,
            option.has == &pipeline::KindOptions::sync
                ? "the file has no gradient synchronisation to choose, as every stage is on one "
                  "rank"
                : "the order is that of the file");
  }
}

// Costs that are of something that no schedule has.
void refuse_idle_costs(const ScheduleCosts& costs, const std::vector<pipeline::Schedule>& schedules,
                       Diagnostics& out) {
  bool pairs = false, replicas = false;
  for (const pipeline::Schedule& schedule : schedules) {
    pairs = pairs || pipeline::needs(schedule).pairs;
    replicas = replicas || schedule.placement.replicas() > 1;
  }
  if (schedules.empty()) return;
  if (costs.pair >= 0 && !pairs)
    out.add("--costs: pair is of F and B at the same time, which {} has not; leave it out",
            schedules.front().name);
  if (costs.sync > 0 && !replicas)
    out.add("--costs: sync is of stages on several ranks, which {} has not; leave it out",
            schedules.front().name);
}

// `note`: what a file does not say and was taken for granted.
std::vector<pipeline::Schedule> schedules_of(const ScheduleOptions& options,
                                             const ScheduleCosts& costs, std::string& note,
                                             Diagnostics& out) {
  std::vector<pipeline::Schedule> schedules;
  const auto attempt = [&](auto make) {
    try {
      schedules.push_back(make());
    } catch (const Error& error) {
      out.absorb(error);
    }
  };
  ScheduleRequest request = options.request;
  request.costs = costs;
  request.sync = options.sync == "eager"       ? pipeline::GradientSync::kEager
                 : options.sync == "eager-opt" ? pipeline::GradientSync::kEagerOpt
                                               : pipeline::GradientSync::kEnd;
  request.ranks = static_cast<int32_t>(options.stages.value_or(1));
  request.microbatches = static_cast<int32_t>(options.microbatches.value_or(1));
  if (options.memory_limit) request.memory_limit = *options.memory_limit;
  std::vector<std::string> kinds = options.compare;
  if (options.from.empty()) {
    kinds.insert(kinds.begin(), options.kind);
  } else {
    attempt([&] {
      const std::string text = posix_fs().read_file(options.from);
      pipeline::ParsedSchedule parsed = pipeline::parse_schedule(text, options.from);
      note = std::move(parsed.note);
      return std::move(parsed.schedule);
    });
    if (schedules.empty()) return schedules;
    schedules.front().post_validation = request.post_validation;
    schedules.front().sync = request.sync;
    request.ranks = schedules.front().placement.ranks;
    request.microbatches = schedules.front().microbatches;
  }
  if (kinds.empty()) {
    refuse_beside_file(request, schedules, out);
  } else {
    for (const ScheduleRequest& own : requests_of(request, kinds, schedules))
      attempt([&] { return pipeline::make_schedule(own); });
  }
  refuse_idle_costs(costs, schedules, out);
  return schedules;
}

// Gives a line that lacks --microbatches a number that every kind takes, to find out what else is
// wrong with it. Whether there is one.
bool takes_any_microbatches(ScheduleOptions& options) {
  constexpr int64_t kOfRanks = 24;
  if (options.microbatches || !options.stages || !options.from.empty()) return false;
  options.microbatches = kOfRanks * *options.stages;
  return drawn(options) <= static_cast<double>(kMost);
}

// What the format has no word for, so that --from reads another schedule.
std::string lost_in_csv(const pipeline::Schedule& schedule) {
  std::vector<std::string> lost;
  if (schedule.parts > 1) lost.emplace_back("parts of microbatches are microbatches there");
  if (schedule.weight_versions > 1)
    lost.emplace_back("older weights, without which the order ends in a flush");
  const pipeline::Schedule read = pipeline::parse_csv(pipeline::to_csv(schedule), schedule.name);
  if (read.placement.replicas() != schedule.placement.replicas())
    lost.emplace_back("replicas that have no work");
  return join(lost, "; ");
}

// "zb-h1,zb-v", once or more, as names.
std::vector<std::string> names_in(const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const std::string& word : words) {
    for (const std::string_view name : split(word, ',')) names.emplace_back(trim(name));
  }
  return names;
}

CLI::Validator no_empty_name() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        for (const std::string& name : names_in({text})) {
          if (name.empty()) return "a name is empty; names are as in zb-h1,zb-v";
        }
        return {};
      },
      "");
}

void show(ScheduleOptions options, const Diagnostics& words) {
  options.compare = names_in(options.compare);
  const bool compares = !options.compare.empty();
  if (compares && options.kind.empty() && options.from.empty()) {
    options.kind = options.compare.front();
    options.compare.erase(options.compare.begin());
  }
  Diagnostics out = words;
  check_options(options, out);
  const bool complete = out.findings().size() == words.findings().size();
  if (options.comms && options.csv.empty())
    out.add("--comms: says how --csv writes; give --csv a file, or leave it out");
  const size_t before = out.findings().size();
  ScheduleCosts costs = parse_costs(options, out);
  for (const std::string& finding : pipeline::findings(costs, 0)) out.add("{}", finding);
  if (out.findings().size() > before) costs = ScheduleCosts();
  std::vector<pipeline::Schedule> schedules;
  std::string note;
  if (complete) {
    schedules = schedules_of(options, costs, note, out);
  } else if (!options.kind.empty()) {
    if (const std::string wrong = pipeline::kind_finding(options.kind); !wrong.empty()) {
      out.add("{}", wrong);
    } else if (ScheduleOptions other = options; takes_any_microbatches(other)) {
      schedules_of(other, costs, note, out);
    }
  }
  check_outputs(posix_fs(), {{"--csv", options.csv}, {"--svg", options.svg}}, {options.from}, out);
  out.throw_if_any();
  if (!note.empty()) tell("meshwright: " + note);

  std::vector<report::ScheduleDrawing> drawings;
  for (const pipeline::Schedule& schedule : schedules)
    drawings.push_back(drawing_of(schedule, costs, compares));
  if (!options.csv.empty()) {
    const pipeline::Schedule& first = schedules.front();
    write_output(posix_fs(), options.csv,
                 options.comms ? pipeline::to_csv(first, pipeline::with_communication(first))
                               : pipeline::to_csv(first));
    if (const std::string lost = lost_in_csv(first); !lost.empty())
      tell(fmt::format("meshwright: {}: --from reads another schedule than {}: {}", options.csv,
                       first.name, lost));
  }
  if (!options.svg.empty()) write_output(posix_fs(), options.svg, report::draw_svg(drawings));
  if (!options.json) {
    print_text(drawings);
  } else if (drawings.size() == 1) {
    fmt::print("{}", json_of(drawings.front()).dump_pretty());
  } else {
    Json list;
    for (const report::ScheduleDrawing& drawing : drawings) list.push_back(json_of(drawing));
    fmt::print("{}", list.dump_pretty());
  }
}

std::string kinds_help() {
  std::string text = "Kinds:\n";
  for (const pipeline::ScheduleKind* kind : pipeline::listed_kinds())
    text += fmt::format("  {:<18} {} ({})\n", kind->name, kind->summary, kind->year());
  return text;
}

// "zb-auto: the most …": an option of the kinds that have it.
std::string of_kinds(bool pipeline::KindOptions::* option, const char* text) {
  return fmt::format("{}: {}", join(pipeline::kinds_with(option), ", "), text);
}

// What a schedule is asked for beside its kind.
void add_request_options(CLI::App* command, ScheduleOptions& options) {
  ScheduleRequest& request = options.request;
  command->add_option("--chunks", request.chunks, "Stages a rank, for kinds that have several")
      ->check(whole(1, kMostWhole32));
  command
      ->add_option("--group", request.group,
                   of_kinds(&pipeline::KindOptions::group,
                            "microbatches a round (usually as many as ranks)"))
      ->check(whole(1, kMostWhole32));
  command
      ->add_option(
          "--slices", request.slices,
          of_kinds(
              &pipeline::KindOptions::slices,
              fmt::format("slices of a sequence (usually {})", pipeline::kUsualSlices).c_str()))
      ->check(whole(1, kMostWhole32));
  command
      ->add_option("--pairs", request.pairs,
                   of_kinds(&pipeline::KindOptions::pairs,
                            "pairs of pipelines, a divisor of half of the ranks (usually 1)"))
      ->check(whole(1, kMostWhole32));
  command
      ->add_option(
          "--costs", options.costs,
          "Time of a microbatch on a stage: f=1,b=1,w=1,comm=0; f, b and w may have a "
          "value for each stage, f=1:1:2:1; pair=2.5 is F beside B, sync the sum of a stage's "
          "gradients over its replicas. With --compare they are those of a rank's whole share, and "
          "several values may be one a rank")
      ->check(not_empty());
  command
      ->add_option("--memory", options.memory,
                   "What a microbatch holds: mb=1 from F to the end of I, mw=1 to the end of W")
      ->check(not_empty());
  command
      ->add_option("--memory-limit", options.memory_limit,
                   of_kinds(&pipeline::KindOptions::memory_limit,
                            "the most a rank may hold, in units of mb (usually as many as ranks)"))
      ->check(number_above(0));
  command
      ->add_option("--sync", options.sync,
                   "Kinds with replicas: when they add up their gradients: end (usual), eager "
                   "(behind a stage's last backward), eager-opt (so where the rank then waits)")
      ->check(one_of({"end", "eager", "eager-opt"}));
  command->add_flag(
      "--post-validation", request.post_validation,
      "No rank waits for the norm of all stages before its optimizer step: prints how "
      "often a step ends when they follow each other");
  command->add_flag(
      "--exact", request.exact,
      of_kinds(&pipeline::KindOptions::exact, "the order of an integer program, for small cases"));
}

// What is printed, written and read.
void add_io_options(CLI::App* command, ScheduleOptions& options) {
  command->add_flag("--json", options.json, "Print one object in place of the drawing");
  command
      ->add_option("--csv", options.csv,
                   "Write the order in torch.distributed.pipelining's format; of several the first")
      ->check(written_file());
  command->add_flag("--comms", options.comms,
                    "--csv: with messages, gathers and reductions (compute_comms)");
  command->add_option("--from", options.from, "Read the order from such a file and check it");
  command->add_option("--svg", options.svg, "Write the drawing as SVG")->check(written_file());
}

}  // namespace

void add_schedule(CLI::App& app, const Diagnostics& words) {
  CLI::App* command = app.add_subcommand(
      "schedule", "Draw a pipeline schedule with its makespan, bubble and memory; run nothing");
  auto options = std::make_shared<ScheduleOptions>();
  command->add_option("kind", options->kind, "One of the kinds below");
  command->add_option("--stages", options->stages, "Pipeline ranks")->check(whole(1, kMost));
  command->add_option("--microbatches", options->microbatches, "Microbatches of a step")
      ->check(whole(1, kMost));
  add_request_options(command, *options);
  add_io_options(command, *options);
  command
      ->add_option("--compare", options->compare,
                   "Other kinds, at the same time scale: zb-h1,zb-v; without a schedule before "
                   "them, these alone. Each takes the options that it has")
      ->check(no_empty_name());
  command->footer(kinds_help());
  command->callback([options, &words] { show(*options, words); });
}

}  // namespace mw::cli
