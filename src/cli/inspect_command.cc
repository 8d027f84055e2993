#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/job_options.h"
#include "partition/partitioner.h"
#include "train/trainer.h"

namespace mw::cli {
namespace {

const std::vector<std::string> kWhat = {"graph", "fragments", "program", "memory"};

struct InspectOptions {
  std::string what;
  int64_t rank = -1;
};

// The global graph, and how each value of it lies and why. The stages are laid out one by one, but
// what crosses between them as here.
void print_graph(const compile::CompiledPlan& plan) {
  ir::Graph graph = *plan.module.find_graph("microbatch");
  fmt::print("{}", ir::to_text(graph, &plan.module));
  graph.outputs.clear();
  ir::drop_dead(graph);
  const cluster::Mesh& mesh = plan.plan.stages.front().mesh;
  const auto strategy = [&](LayerId layer) -> const sharding::Strategy& {
    return plan.plan.strategy(layer);
  };
  const partition::Partitioned laid_out = partition::partition(
      {graph, plan.module, mesh, partition::given_shardings(graph, plan.module, mesh, strategy)});
  fmt::print("\nshardings on {} and their origins\n{}", cluster::to_string(mesh),
             partition::layout_text(laid_out, graph, plan.module));
}

void print_fragment(const pipeline::Fragment& fragment) {
  fmt::print("fragment '{}', workspace {}\n{}", fragment.name,
             format_bytes(fragment.workspace.value), ir::to_text(fragment.graph));
  for (size_t v = 0; v < fragment.graph.values.size(); ++v) {
    const ValueId value(static_cast<int64_t>(v));
    fmt::print("  {} : {} of {}\n", fragment.graph.label(value),
               sharding::to_string(fragment.shardings[v]), ir::to_string(fragment.global_types[v]));
  }
}

void print_memory(const pipeline::RankProgram& rank) {
  fmt::print("states {}, step arena {}\n", format_bytes(rank.state_arena.value),
             format_bytes(rank.arena.value));
  for (const pipeline::Buffer& buffer : rank.buffers) {
    const char* where = buffer.storage.kind == pipeline::Storage::Kind::kState   ? "state"
                        : buffer.storage.kind == pipeline::Storage::Kind::kArena ? "arena"
                        : buffer.storage.kind == pipeline::Storage::Kind::kSlot  ? "slot"
                                                                                 : "view";
    fmt::print("  {:<5} {:>10} +{:<10} {:<12} {} {}\n", where, buffer.storage.offset,
               buffer.bytes().value, pipeline::to_string(buffer.category), buffer.name(),
               sharding::to_string(buffer.sharding()));
  }
}

void inspect(const JobOptions& job_options, const InspectOptions& options,
             const Diagnostics& words) {
  Diagnostics diagnostics = words;
  if (std::string what = options.what; !what.empty()) {
    if (const std::string wrong = one_of(kWhat)(what); !wrong.empty())
      diagnostics.add("what: {}", wrong);
  }
  if (options.rank >= 0 && (options.what == "graph" || options.what == "fragments"))
    diagnostics.add("--rank: is of a program or memory; {} are of all ranks; leave it out",
                    options.what == "graph" ? "graphs" : "fragments");
  require(options.what, "what", "graph, fragments, program or memory", diagnostics);
  const size_t before = diagnostics.findings().size();
  const train::Job job = read_job(posix_fs(), job_options, diagnostics);
  if (diagnostics.findings().size() == before && options.rank >= job.plan.ranks()) {
    diagnostics.add("--rank: is {}, but the plan has {} ranks; use 0 to {}", options.rank,
                    job.plan.ranks(), job.plan.ranks() - 1);
  }
  diagnostics.throw_if_any();
  const train::Prepared prepared = train::prepare(job);
  const compile::CompiledPlan& plan = prepared.plan;
  if (options.what == "graph") {
    print_graph(plan);
    return;
  }
  if (options.what == "fragments") {
    for (const pipeline::Fragment& fragment : plan.train.fragments) print_fragment(fragment);
    return;
  }
  const auto coordinate = [&](int64_t rank) { return plan.plan.mesh.index(RankId(rank), {"pp"}); };
  if (options.what == "program" && options.rank < 0) {
    fmt::print("{}", pipeline::to_text(plan.train));
    return;
  }
  for (int64_t r = 0; r < static_cast<int64_t>(plan.train.ranks.size()); ++r) {
    if (options.rank >= 0 && coordinate(options.rank) != r) continue;
    const pipeline::RankProgram& rank = plan.train.ranks[static_cast<size_t>(r)];
    fmt::print("pipeline rank {}\n", r);
    if (options.what == "memory") {
      print_memory(rank);
      continue;
    }
    for (size_t c = 0; c < rank.commands.size(); ++c) {
      const pipeline::Command& command = rank.commands[c];
      std::string operands;
      for (const BufferId id : command.buffers) operands += " " + rank.buffers[id.index()].name();
      fmt::print("{:>5} {:<8} {:<8} {}{}\n", c, pipeline::to_string(command.kind),
                 pipeline::to_string(command.action),
                 command.fragment.valid()
                     ? plan.train.fragments[command.fragment.index()].name + ":"
                     : command.name.str(),
                 operands);
    }
  }
}

}  // namespace

void add_inspect(CLI::App& app, const Diagnostics& words) {
  CLI::App* command = app.add_subcommand("inspect", "Print what a job compiles to under a plan");
  auto options = std::make_shared<InspectOptions>();
  command->add_option("what", options->what, "graph, fragments, program or memory");
  auto job = add_job_options(*command);
  command->add_option("--rank", options->rank, "Only this rank's program or memory")
      ->check(whole(0));
  command->callback([job, options, &words] { inspect(*job, *options, words); });
}

}  // namespace mw::cli
