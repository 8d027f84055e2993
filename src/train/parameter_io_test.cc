// Weights and moments go to every rank that holds them and come back, under every way to shard.
#include "train/parameter_io.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/cpu_backend.h"

namespace mw::train {
namespace {

ir::Module tied_gpt(int64_t batch) {
  models::ModelConfig config;
  config.source = "tied gpt";
  config.layers = 2;
  config.hidden_size = 12;  // rows that cross the borders of shards
  config.heads = config.kv_heads = 2;
  config.head_dim = 6;
  config.ffn_size = 20;
  config.vocab_size = 51;  // tp=2 pads it
  config.max_positions = 4;
  return models::build_model(config, {batch, 4});
}

const Part kParts[] = {Part::kWeight, Part::kMoment, Part::kVariance};

std::vector<float> numbers(StateId parameter, Part part, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(),
            static_cast<float>(10000 * parameter.value + 1000 * static_cast<int>(part)));
  return values;
}

constexpr float kBehind = -7;  // what lies behind the numbers, and goes nowhere

// Weights that a rank holds whole, and that nothing else is written beside those it holds in part.
void check_whole(const compile::CompiledPlan& plan, execute::Executor& executor,
                 const ParameterIo& io) {
  for (int64_t r = 0; r < plan.plan.mesh.size(); ++r) {
    const RankId rank(r);
    for (const auto& group : plan.groups[static_cast<size_t>(plan.plan.mesh.index(rank, {"pp"}))]) {
      const int64_t shards = compile::weight_shards(plan.plan.plan, group);
      const auto* flat = static_cast<const float*>(executor.state_data(
          rank, executor.find_state(rank, plan.module.state(group.weight).name)));
      CHECK(std::count(flat, flat + group.elements / shards, kBehind) == 0);
      for (const compile::GroupMember& member : group.members) {
        if (shards > 1 || member.local.dims != member.global.dims) continue;
        const std::vector<float> want =
            numbers(member.parameter, Part::kWeight, io.elements(member.parameter));
        const float* begin = flat + member.offset;
        CHECK(std::vector<float>(begin, begin + want.size()) == want);
      }
    }
  }
}

TEST_CASE(
    "what is written of a parameter is read back, whole and in pieces, from all that hold it") {
  for (const char* text : {"dp=1", "dp=2,zero=1", "dp=2,zero=3", "tp=2", "dp=2,tp=2,zero=2",
                           "pp=2,microbatches=2", "dp=2,pp=2,microbatches=2,zero=1"}) {
    CAPTURE(text);
    const compile::Plan wanted = compile::parse_plan(text);
    compile::ModelShape shape;
    shape.name = "tied gpt";
    shape.must_divide = {{"heads", 2}};
    shape.global_batch = 4;
    const ir::Module model = tied_gpt(4 / wanted.units());
    const compile::CompiledPlan plan = compile::compile({model, &model, wanted, shape, {}});
    runtime::CpuBackend backend;
    execute::Executor executor({&plan.init, &plan.train, &*plan.eval}, backend, {});
    ParameterIo io(plan, executor);
    for (const StateId parameter : plan.module.parameters()) {
      for (const Part part : kParts) {
        std::vector<float> values = numbers(parameter, part, io.elements(parameter));
        const size_t count = values.size();
        values.resize(2 * count, kBehind);
        io.write(parameter, part, std::span(values).first(count));
      }
    }
    for (const StateId parameter : plan.module.parameters()) {
      const int64_t count = io.elements(parameter);
      for (const Part part : kParts) {
        const std::vector<float> want = numbers(parameter, part, count);
        CHECK(io.read(parameter, part) == want);
        for (int64_t begin = 0; begin < count; begin += 7) {
          const int64_t length = std::min<int64_t>(7, count - begin);
          std::vector<float> room(100, kBehind), piece = room;  // with what must stay as it is
          std::copy_n(want.begin() + begin, length, piece.begin() + 50);
          io.read(parameter, part, begin, std::span(room).subspan(50, static_cast<size_t>(length)));
          CHECK(room == piece);
        }
      }
    }
    check_whole(plan, executor, io);
  }
}

}  // namespace
}  // namespace mw::train
