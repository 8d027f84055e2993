#include <algorithm>

#include <fmt/core.h>

#include "base/count.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/job_options.h"
#include "train/trainer.h"

namespace mw::cli {
namespace {

void print_verification(const compile::CompiledPlan& plan, const pipeline::Verification& proved) {
  fmt::print("program {} ({} fragments, {} channels): sound\n", pipeline::program_hash(plan.train),
             plan.train.fragments.size(), plan.train.channels.size());
  for (size_t r = 0; r < proved.ranks.size(); ++r) {
    const pipeline::RankFigures& figures = proved.ranks[r];
    const Bytes peak = train::peak_bytes(plan.train, proved, static_cast<int64_t>(r));
    const Bytes slots = peak - figures.state_bytes - figures.arena_peak;
    fmt::print(
        "pipeline rank {}: {}: states {}, step arena {}, slots {}; {} instructions and {} sent a "
        "step\n",
        r, format_bytes(peak.value), format_bytes(figures.state_bytes.value),
        format_bytes(figures.arena_peak.value), format_bytes(slots.value), figures.instructions,
        format_bytes(figures.bytes_sent.value));
    for (const auto& [category, bytes] : figures.peak_by_category) {
      fmt::print("  {:<21} {:>12}\n", pipeline::to_string(category), format_bytes(bytes.value));
    }
    for (const auto& [group, bytes] : figures.bytes_by_group) {
      std::vector<std::string> how;
      const auto collectives = figures.collectives_by_group.find(group);
      if (collectives != figures.collectives_by_group.end())
        how.push_back(counted(collectives->second, "collective"));
      if (group == "pp" && !plan.train.channels.empty()) how.emplace_back("messages");
      fmt::print("  sent over {:<4} {:>12} in {}\n", group, format_bytes(bytes.value),
                 join(how, " and "));
    }
  }
}

Json figures_json(int64_t rank, int64_t pipeline_rank, const train::Prepared& prepared) {
  const pipeline::RankFigures& figures = prepared.train.ranks[static_cast<size_t>(pipeline_rank)];
  const Bytes peak = train::peak_bytes(prepared.plan.train, prepared.train, pipeline_rank);
  Json json{JsonObject{}};
  json["rank"] = rank;
  json["pipeline_rank"] = pipeline_rank;
  json["state_bytes"] = figures.state_bytes.value;
  json["step_arena_bytes"] = figures.arena_peak.value;
  json["slot_bytes"] = (peak - figures.state_bytes - figures.arena_peak).value;
  json["peak_bytes"] = peak.value;
  Json by_category{JsonObject{}}, sent_over{JsonObject{}}, operations{JsonObject{}};
  for (const auto& [category, bytes] : figures.peak_by_category)
    by_category[pipeline::to_string(category)] = bytes.value;
  for (const auto& [group, bytes] : figures.bytes_by_group) sent_over[group] = bytes.value;
  for (const auto& [group, count] : figures.collectives_by_group) operations[group] = count;
  json["peak_bytes_by_category"] = std::move(by_category);
  json["bytes_sent"] = figures.bytes_sent.value;
  json["bytes_sent_by_group"] = std::move(sent_over);
  json["collectives_by_group"] = std::move(operations);
  json["instructions"] = figures.instructions;
  json["order_hash"] = fmt::format("{:016x}", figures.order_hash);
  return json;
}

// One entry a rank; the ranks of one pipeline rank differ in their coordinates alone.
Json verification_json(const train::Job& job, const train::Prepared& prepared) {
  const cluster::Mesh& mesh = prepared.plan.plan.mesh;
  Json json{JsonObject{}};
  json["plan"] = compile::short_form(job.plan);
  json["mesh"] = cluster::to_string(mesh);
  json["program"] = pipeline::program_hash(prepared.plan.train);
  json["fragments"] = prepared.plan.train.fragments.size();
  json["channels"] = prepared.plan.train.channels.size();
  JsonArray ranks;
  for (int64_t r = 0; r < mesh.size(); ++r) {
    const int64_t pipeline_rank = mesh.index(RankId(r), {"pp"});
    ranks.push_back(figures_json(r, pipeline_rank, prepared));
  }
  json["ranks"] = std::move(ranks);
  return json;
}

}  // namespace

void add_verify(CLI::App& app, const Diagnostics& words) {
  CLI::App* command = app.add_subcommand(
      "verify", "Compile a job under a plan, prove its programs, print memory; run nothing");
  auto job = add_job_options(*command);
  auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "One object with exact bytes, a list entry a rank");
  command->callback([job, as_json, &words] {
    Diagnostics diagnostics = words;
    const train::Job read = read_job(posix_fs(), *job, diagnostics);
    diagnostics.throw_if_any();
    const train::Prepared prepared = train::prepare(read);
    if (*as_json) {
      fmt::print("{}\n", verification_json(read, prepared).dump());
      return;
    }
    fmt::print("plan {}: {} on {}\n", compile::short_form(read.plan),
               counted(read.plan.ranks(), "rank"), cluster::to_string(prepared.plan.plan.mesh));
    print_verification(prepared.plan, prepared.train);
  });
}

}  // namespace mw::cli
