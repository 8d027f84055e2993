#include <algorithm>

#include <fmt/core.h>

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
    fmt::print("pipeline rank {}: states {}, step arena {}; {} instructions and {} sent a step\n",
               r, format_bytes(figures.state_bytes.value), format_bytes(figures.arena_peak.value),
               figures.instructions, format_bytes(figures.bytes_sent.value));
    for (const auto& [category, bytes] : figures.peak_by_category) {
      fmt::print("  {:<14} {:>12}\n", pipeline::to_string(category), format_bytes(bytes.value));
    }
    for (const auto& [group, bytes] : figures.bytes_by_group) {
      fmt::print("  sent over {:<4} {:>12} in {} operations\n", group, format_bytes(bytes.value),
                 figures.collectives_by_group.contains(group)
                     ? figures.collectives_by_group.at(group)
                     : 0);
    }
  }
}

}  // namespace

void add_verify(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "verify", "Compile a job under a plan, prove its programs, print memory; run nothing");
  auto job = add_job_options(*command);
  command->callback([job] {
    const train::Job read = train::read_job(posix_fs(), job->job, job->overrides);
    const train::Prepared prepared = train::prepare(read);
    fmt::print("plan {}: {} ranks on {}\n", compile::short_form(read.plan), read.plan.ranks(),
               cluster::to_string(prepared.plan.plan.mesh));
    print_verification(prepared.plan, prepared.train);
  });
}

}  // namespace mw::cli
