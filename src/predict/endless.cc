#include "predict/endless.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace mw::predict {
namespace {

// Seconds in which a rank is not kept by others, for a whole step.
std::vector<double> busy(const simulate::Result& result) {
  std::vector<double> seconds;
  for (const simulate::RankResult& rank : result.ranks)
    seconds.push_back((rank.compute + rank.total_exposed_comm() + rank.gaps).value);
  return seconds;
}

// The rank that works through the largest part of a step, and how much.
std::pair<int64_t, double> busiest(const simulate::Result& result) {
  const std::vector<double> all = busy(result);
  const auto most = std::max_element(all.begin(), all.end());
  return {most - all.begin(), 100 * *most / result.step.value};
}

// A step among others takes so long: what a rank does not work it waits, for no one that could be
// named.
void set_step(double step, const std::vector<double>& busy, simulate::Result& result) {
  result.step = Seconds(step);
  result.critical_path.clear();
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    result.ranks[r].waits = {};
    result.ranks[r].idle = Seconds(step - busy[r]);
    result.ranks[r].core_wait = Seconds(0);
    result.waits[r].clear();
  }
}

// Those of the third call, whose `commands` are behind those of two others, in place of time in
// which a rank is idle: of no more than it is.
void take_waits(const std::vector<simulate::Wait>& all, size_t commands,
                std::vector<simulate::Wait>& waits, simulate::RankResult& rank) {
  const auto count = static_cast<int32_t>(commands);
  Seconds sum;
  for (simulate::Wait wait : all) {
    if (wait.command < 2 * count) continue;
    wait.command -= 2 * count;
    sum += wait.end - wait.begin;
    waits.push_back(wait);
  }
  if (sum.value <= 0) return;
  const double part = std::min(1.0, rank.idle.value / sum.value);
  for (const simulate::Wait& wait : waits)
    rank.waits[static_cast<size_t>(wait.reason)] += (wait.end - wait.begin) * part;
  rank.idle = std::max(rank.idle - sum, Seconds(0));
}

// The work of the last of several calls: beside another call it hides other communication than by
// itself.
void take_work(const simulate::RankResult& calls, const simulate::RankResult& fewer,
               simulate::RankResult& rank) {
  rank.compute = calls.compute - fewer.compute;
  rank.gaps = calls.gaps - fewer.gaps;
  rank.exposed_comm = calls.exposed_comm;
  for (const auto& [group, exposed] : fewer.exposed_comm) rank.exposed_comm[group] -= exposed;
}

// So many calls of a program, one behind the other.
pipeline::Program calls_of(const pipeline::Program& program, int64_t calls) {
  pipeline::Program all = program;
  std::vector<int64_t> messages(program.channels.size(), 0);
  for (const pipeline::RankProgram& rank : program.ranks) {
    for (const pipeline::Command& command : rank.commands)
      if (command.kind == pipeline::Command::Kind::kPublish)
        ++messages[static_cast<size_t>(command.channel)];
  }
  for (size_t r = 0; r < all.ranks.size(); ++r) {
    std::vector<pipeline::Command>& commands = all.ranks[r].commands;
    for (int64_t call = 1; call < calls; ++call) {
      for (pipeline::Command command : program.ranks[r].commands) {
        if (command.channel >= 0)
          command.sequence += call * messages[static_cast<size_t>(command.channel)];
        commands.push_back(std::move(command));
      }
    }
  }
  return all;
}

simulate::Result of_microbatches(const Request& request, int64_t microbatches) {
  Request longer = flushed(request);
  longer.global_batch = request.global_batch / request.plan.microbatches * microbatches;
  longer.plan.microbatches = microbatches;
  longer.options.trace = false;
  const Step step = compile_step(longer);
  return simulate::simulate(step.program, longer.cluster, longer.options, held_by(longer, step));
}

}  // namespace

bool runs_on(const Request& request) { return request.plan.post_validation; }

void let_run_on(const Request& request, const Step& step, simulate::Result& result) {
  simulate::Options options = request.options;
  options.trace = options.figures = false;
  const std::vector<simulate::Held> held;
  const auto result_of = [&](int64_t calls) {
    options.calls = static_cast<int32_t>(calls);
    return simulate::simulate(calls_of(step.program, calls), request.cluster, options, held);
  };
  // The first call begins with all ranks at once; from the second on each is like the one before.
  const simulate::Result two = result_of(2), three = result_of(3);
  for (size_t r = 0; r < result.ranks.size(); ++r)
    take_work(three.ranks[r], two.ranks[r], result.ranks[r]);
  const std::vector<double> all = busy(result);
  set_step(std::max((three.step - two.step).value, *std::max_element(all.begin(), all.end())), all,
           result);
  for (size_t r = 0; r < result.ranks.size(); ++r)
    take_waits(three.waits[r], step.program.ranks[r].commands.size(), result.waits[r],
               result.ranks[r]);
}

std::vector<std::string> explain_run_on(const simulate::Result& result, const Step& step) {
  const auto [rank, share] = busiest(result);
  std::vector<std::string> lines = {fmt::format(
      "a step runs into the next, whose first forwards run before the norm of this one is known; "
      "pipeline rank {} works through {:.1f} % of it (the time line is of one step by itself)",
      rank, share)};
  for (std::string& line : simulate::explain_waits(result, step.program))
    lines.push_back(std::move(line));
  return lines;
}

bool is_endless(const Request& request) {
  return pipeline::kind_of(request.plan.schedule).variant.flushed != nullptr;
}

Request flushed(Request request) {
  if (is_endless(request))
    request.plan.schedule = pipeline::kind_of(request.plan.schedule).variant.flushed;
  return request;
}

void take_out_flush(const Request& request, simulate::Result& result) {
  const int64_t p = request.plan.pp, m = request.plan.microbatches;
  // Long enough to be full of microbatches in its middle.
  const int64_t few = m * std::max<int64_t>(1, (2 * p + m - 1) / m);
  // Where the ranks wait for messages, as many microbatches as there are ranks go round together:
  // what is measured is whole rounds, of which a step has its part.
  const int64_t rounds = p * ((m + p - 1) / p);
  const double part = static_cast<double>(m) / static_cast<double>(rounds);
  const simulate::Result fewer = of_microbatches(request, few),
                         more = of_microbatches(request, few + rounds);
  const std::vector<double> all = busy(result), less = busy(fewer), longer = busy(more);
  // What the update takes is in all three once.
  size_t most = 0;
  for (size_t r = 0; r < all.size(); ++r) {
    if (longer[r] - less[r] > longer[most] - less[most]) most = r;
  }
  const double update = all[most] - part * (longer[most] - less[most]);
  const double step = std::max(part * (more.step - fewer.step).value + update,
                               *std::max_element(all.begin(), all.end()));
  set_step(step, all, result);
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    // Microbatches of several steps are under way where a step has fewer than the pipeline ranks.
    result.ranks[r].reserved = fewer.ranks[r].reserved;
    result.ranks[r].peak = fewer.ranks[r].peak;
    result.ranks[r].peak.time = Seconds(std::fmod(result.ranks[r].peak.time.value, step));
  }
}

void hold_older_weights(const Step& step, Prediction& prediction) {
  const auto [most, share] = busiest(prediction.result);
  for (size_t r = 0; r < prediction.memory.size(); ++r) {
    simulate::MemoryPeak& peak = prediction.result.ranks[r].peak;
    Bytes weights;
    for (const pipeline::Buffer& buffer : step.program.ranks[r].buffers) {
      if (buffer.category == pipeline::Category::kWeights &&
          buffer.storage.kind == pipeline::Storage::Kind::kState)
        weights += buffer.bytes();
    }
    prediction.result.ranks[r].reserved += weights;
    prediction.memory[r].peak += weights;
    prediction.memory[r].alive += weights;
    peak.bytes += weights;
    peak.by_category[pipeline::Category::kWeights] += weights;
    for (trace::MemorySample& sample : prediction.result.trace.memory) {
      if (sample.rank == prediction.result.ranks[r].rank &&
          sample.category == trace::MemoryCategory::kWeight)
        sample.bytes += weights;
    }
  }
  prediction.path = {fmt::format(
      "a step follows another without a flush, on weights one step old, of which every rank holds "
      "two versions; pipeline rank {} works through {:.1f} % of it (the time line is of one step "
      "by itself)",
      most, share)};
}

}  // namespace mw::predict
