#include "predict/state_programs.h"

#include <algorithm>
#include <utility>

#include "compile/compile.h"
#include "predict/precision.h"
#include "predict/sample.h"

namespace mw::predict {
namespace {

using pipeline::ActionKind;
using pipeline::Category;
using pipeline::Command;

// Of experts, which ep divides: all other gradients are summed over it at the step's end.
bool is_of_experts(const pipeline::Buffer& gradient, const compile::Plan& plan) {
  const sharding::Axes& summed = gradient.sharding().partial;
  return plan.ep > 1 && plan.effective_grad_reduce() == compile::GradReduce::kStep &&
         std::find(summed.begin(), summed.end(), "ep") == summed.end();
}

// ZeRO's states are divided by `dp` where the small program divides them by its own: as
// compile/flat_groups.h has it.
void add_states(const pipeline::RankProgram& rank, const compile::Plan& plan, int64_t dp,
                Facts& facts) {
  const double again = static_cast<double>(plan.dp) / static_cast<double>(dp);
  const bool scattered =
      plan.zero >= 1 && plan.effective_grad_reduce() == compile::GradReduce::kMicrobatch;
  for (const pipeline::Buffer& buffer : rank.buffers) {
    if (buffer.storage.kind != pipeline::Storage::Kind::kState) continue;
    const auto bytes = static_cast<double>(buffer.bytes().value);
    switch (buffer.category) {
      case Category::kWeights: facts[kWeights] += bytes * (plan.zero >= 3 ? again : 1); break;
      case Category::kGradients:
        facts[kGradients] += bytes * (scattered ? again : 1);
        if (is_of_experts(buffer, plan)) facts[kExpertGradients] += bytes;
        break;
      case Category::kOptimizer: facts[kOptimizer] += bytes * (plan.zero >= 1 ? again : 1); break;
      default: break;
    }
  }
}

void add_update(const pipeline::Program& program, const pipeline::RankProgram& rank,
                const std::vector<simulate::CallTime>& times, Facts& facts) {
  for (const Command& command : rank.commands) {
    const simulate::CallTime& time = times[command.fragment.index()];
    facts[kUpdate] = time.whole.value;
    facts[kUpdateBefore] = time.before.value;
    facts[kUpdateSums] = time.sums.value;
    facts[kUpdateGathers] = time.gathers.value;
    facts[kUpdateWorkspace] =
        static_cast<double>(program.fragments[command.fragment.index()].workspace.value);
  }
}

}  // namespace

StatePrograms::StatePrograms(const Request& request, bool folded)
    : request_(request), folded_(folded) {
  if (folded) {
    compile({1, 1, 1, 2, 1, 1});
  } else if (request_.plan.pp == 1) {
    compile({2});
    compile({4});
  } else {
    compile({1, 1, 2, 1});
  }
}

void StatePrograms::compile(const std::vector<int64_t>& blocks) {
  constexpr int64_t kMicrobatch = 1;
  constexpr bool kArenas = false;
  compile::Plan plan = request_.plan;
  plan.zero = 0;
  plan.recompute = compile::Recompute::kNone;
  plan.schedule = compile::Plan().schedule;
  plan.chunks = folded_ ? 2 : 1;
  plan.pp = static_cast<int64_t>(blocks.size()) / plan.chunks;
  plan.dp = request_.plan.dp > plan.ep ? 2 * plan.ep : plan.ep;
  plan.layers = blocks;
  const pipeline::Schedule schedule = sample_schedule(plan.pp, folded_);
  plan.microbatches = schedule.microbatches;
  const std::vector<int64_t> zero_stages =
      plan.dp > 1 ? std::vector<int64_t>{0, 1, 2, 3} : std::vector<int64_t>{0};
  const ir::Module model = sample_model(request_, plan, kMicrobatch);
  std::vector<compile::CompiledPlan> compiled =
      compile::compile_updates({.model = model,
                                .plan = plan,
                                .shape = sample_shape(request_, plan, kMicrobatch),
                                .optimizer = {},
                                .schedule = &schedule,
                                .offsets = false},
                               zero_stages);
  for (compile::CompiledPlan& one : compiled) {
    plan.zero = one.plan.plan.zero;
    pipeline::Program program =
        in_precision(std::move(one.train), request_.precision,
                     stack_memory(request_.cluster, plan, request_.options.fp8), kArenas);
    strip(program);
    samples_[plan.zero].push_back({std::move(program), plan});
  }
}

std::vector<Facts> StatePrograms::facts_of(const Sample& sample, int64_t dp, int64_t pp) const {
  pipeline::Program program = sample.program;
  program.mesh = resized(program.mesh, dp / sample.plan.ep, pp);
  for (size_t f = 0; f < program.fragments.size(); ++f)
    place_on(program.mesh, nullptr, 1, f, program.fragments[f]);
  const std::vector<simulate::CallTime> times = times_on(program, request_, pp, folded_);
  std::vector<Facts> facts;
  for (const pipeline::RankProgram& rank : program.ranks) {
    facts.emplace_back();
    add_update(program, rank, times, facts.back());
    add_states(rank, sample.plan, dp, facts.back());
  }
  return facts;
}

StageFacts StatePrograms::on(int64_t dp, int64_t pp, int64_t zero) const {
  const std::vector<Sample>& samples = samples_.at(zero);
  const std::vector<Facts> ranks = facts_of(samples[0], dp, pp);
  if (folded_) {  // Rank 0 has both ends and two blocks, the next as many blocks, the last one
                  // more.
    StageFacts facts = StageFacts::of_two(ranks[1], 2, ranks[2], 1);
    for (size_t f = 0; f < kFacts; ++f) facts.first[f] = ranks[0][f] - ranks[1][f];
    return facts;
  }
  if (samples.size() == 2)
    return StageFacts::of_two(ranks[0], 2, facts_of(samples[1], dp, pp)[0], 2);
  return StageFacts::of_four(ranks, samples[0].plan.layers);
}

}  // namespace mw::predict
