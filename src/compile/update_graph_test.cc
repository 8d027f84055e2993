#include "compile/update_graph.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/core.h>

#include "base/round.h"
#include "base/text.h"
#include "compile/compile.h"
#include "partition/test_nets.h"
#include "pipeline/verifier.h"

namespace mw::compile {
namespace {

// Elements that the update's collectives of a kind take at once, in the order of the program.
std::vector<std::vector<int64_t>> collectives(const std::string& plan, ir::OpKind kind,
                                              const partition::test::NetSizes& sizes = {
                                                  .blocks = 3}) {
  const ir::Module model = partition::test::gpt_net(sizes);
  ModelShape shape;
  shape.global_batch = 64;
  const CompiledPlan compiled = compile({model, &model, parse_plan(plan), shape, {}});
  std::vector<std::vector<int64_t>> found;
  for (const pipeline::Fragment& fragment : compiled.train.fragments) {
    if (fragment.kind != pipeline::ActionKind::kUpdate) continue;
    for (const ir::Op& op : fragment.graph.ops) {
      if (op.kind != kind) continue;
      std::vector<int64_t> elements;
      const bool gathers = kind == ir::OpKind::kAllGather;
      for (const ValueId v : gathers ? op.results : op.operands)
        elements.push_back(fragment.graph.type(v).elements());
      found.push_back(std::move(elements));
    }
  }
  return found;
}

TEST_CASE("a bucket of no size is a layer: gradients last layer first, weights first layer first") {
  const auto reduced = collectives("dp=2,zero=1,bucket_mb=0", ir::OpKind::kReduceScatter);
  auto gathered = collectives("dp=2,zero=1,bucket_mb=0", ir::OpKind::kAllGather);
  REQUIRE(reduced.size() > 3);
  for (const auto& bucket : reduced) CHECK(bucket.size() == 1);
  gathered.erase(gathered.begin());  // of the norm's sums
  CHECK(gathered == std::vector(reduced.rbegin(), reduced.rend()));
}

TEST_CASE("small layers share a bucket, in the order of the layers") {
  const auto apart = collectives("dp=2,zero=1,bucket_mb=0", ir::OpKind::kReduceScatter);
  const auto together = collectives("dp=2,zero=1", ir::OpKind::kReduceScatter);
  REQUIRE(together.size() == 1);
  REQUIRE(together[0].size() == apart.size());
  for (size_t g = 0; g < apart.size(); ++g) CHECK(together[0][g] == apart[apart.size() - 1 - g][0]);
}

TEST_CASE("a bucket is full with as many bytes of f32") {
  // A block has some 64 D elements, 4 MiB and a little.
  const partition::test::NetSizes wide{.D = 16384, .blocks = 3};
  for (const auto& [mebibytes, blocks] : {std::pair{4, 1}, {5, 2}, {9, 3}}) {
    CAPTURE(mebibytes);
    const auto reduced = collectives(fmt::format("dp=2,zero=1,bucket_mb={}", mebibytes),
                                     ir::OpKind::kReduceScatter, wide);
    REQUIRE(!reduced.empty());
    int most = 0;
    for (const auto& bucket : reduced) {
      const auto block = [](int64_t elements) { return elements > 60 * 16384; };
      most = std::max(most, static_cast<int>(std::count_if(bucket.begin(), bucket.end(), block)));
    }
    CHECK(most == blocks);
  }
}

TEST_CASE(
    "what tensor parallelism left pending comes in buckets of its own, last unless it is more") {
  // Of narrow models norms and biases are more than matrices, as the program aligns them.
  for (const int64_t width : {8, 512}) {
    CAPTURE(width);
    const partition::test::NetSizes sizes{.D = width, .blocks = 3};
    const auto reduced = collectives("dp=2,tp=2,sp", ir::OpKind::kAllReduce, sizes);
    const auto apart = collectives("dp=2,tp=2,sp,bucket_mb=0", ir::OpKind::kAllReduce, sizes);
    // Of matrices over dp; of norms and biases over tp, then over dp; the norm's and the loss's
    // sums.
    REQUIRE(reduced.size() >= 3);
    const size_t over_tp = width == 8 ? 0 : 1, of_matrices = width == 8 ? 2 : 0;
    CHECK(reduced[over_tp] == reduced[over_tp + 1]);
    CHECK(reduced[of_matrices] != reduced[over_tp]);
    const size_t matrices = reduced[of_matrices].size(), pending = reduced[over_tp].size();
    REQUIRE(apart.size() == reduced.size() - 3 + matrices + 2 * pending);
    const size_t first = width == 8 ? 0 : matrices;
    for (size_t i = 0; i < pending; ++i) CHECK(apart[first + i] == apart[first + pending + i]);
  }
}

TEST_CASE("the step takes the optimizer's numbers, and decay from each weight") {
  ir::Module model = partition::test::gpt_net({.blocks = 3});
  model.states[1].decay = false;
  ModelShape shape;
  shape.global_batch = 64;
  OptimizerSpec optimizer;
  optimizer.beta1 = 0.5;
  optimizer.beta2 = 0.25;
  optimizer.epsilon = 0.125;
  optimizer.weight_decay = 0.75;
  optimizer.max_norm = 3;
  const CompiledPlan compiled =
      compile({model, nullptr, parse_plan("dp=2,zero=1"), shape, optimizer});
  int steps = 0, without_decay = 0;
  for (const pipeline::Fragment& fragment : compiled.train.fragments) {
    for (const ir::Op& op : fragment.graph.ops) {
      const auto* attrs = std::get_if<ir::FlatAttrs>(&op.attrs);
      if (attrs == nullptr) continue;
      CHECK(attrs->max_norm == 3);
      if (op.kind != ir::OpKind::kAdamW) continue;
      ++steps;
      CHECK(attrs->beta1 == 0.5);
      CHECK(attrs->beta2 == 0.25);
      CHECK(attrs->epsilon == 0.125);
      CHECK(attrs->weight_decay == 0.75);
      for (const ir::Segment& segment : attrs->groups.at(0)) {
        CHECK(segment.decay == (segment.parameter != 1));
        without_decay += segment.decay ? 0 : 1;
      }
    }
  }
  CHECK(steps > 0);
  CHECK(without_decay == 1);
}

// Of every rank's update.
std::vector<ir::Op> update_ops(const CompiledPlan& plan) {
  std::vector<ir::Op> ops;
  for (const pipeline::Fragment& fragment : plan.train.fragments) {
    if (fragment.kind == pipeline::ActionKind::kUpdate)
      ops.insert(ops.end(), fragment.graph.ops.begin(), fragment.graph.ops.end());
  }
  return ops;
}

CompiledPlan compiled(const ir::Module& model, const std::string& plan) {
  ModelShape shape;
  shape.global_batch = 64;
  return compile({model, nullptr, parse_plan(plan), shape, {}});
}

TEST_CASE("what the step took is cleared, in the memory of the sum") {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  for (const std::string plan :
       {"dp=2", "tp=2,sp", "dp=2,tp=2,sp", "pp=2,microbatches=4,schedule=chimera,tp=2,sp",
        "pp=2,microbatches=4,schedule=chimera,dp=2,tp=2,sp"}) {
    CAPTURE(plan);
    for (const pipeline::Fragment& fragment : compiled(model, plan).train.fragments) {
      if (fragment.kind != pipeline::ActionKind::kUpdate) continue;
      std::set<ValueId> taken, cleared;
      for (const ir::Op& op : fragment.graph.ops) {
        if (op.kind == ir::OpKind::kAdamW) taken.insert(op.operands[1]);
        if (op.kind == ir::OpKind::kZero) cleared.insert(op.operands[0]);
      }
      CHECK(!taken.empty());
      CHECK(std::includes(cleared.begin(), cleared.end(), taken.begin(), taken.end()));
    }
  }
}

TEST_CASE("an axis of one device is in no group") {
  const ir::Module model = partition::test::gpt_net({.blocks = 3});
  for (const std::string axis : {"dp", "tp"}) {
    CAPTURE(axis);
    int groups = 0;
    for (const ir::Op& op : update_ops(compiled(model, axis + "=2"))) {
      const auto* attrs = std::get_if<ir::CollectiveAttrs>(&op.attrs);
      if (attrs == nullptr) continue;
      ++groups;
      CHECK(std::get<ir::AxisGroup>(attrs->group).axes == ir::Axes{axis});
    }
    CHECK(groups > 0);
  }
}

TEST_CASE("for the norm a parameter that tp does not divide counts on its first rank alone") {
  const ir::Module model = partition::test::gpt_net({.blocks = 3});
  int divided = 0, whole = 0;
  for (const ir::Op& op : update_ops(compiled(model, "dp=2,tp=2,pp=2,sp,microbatches=4"))) {
    if (op.kind != ir::OpKind::kNormBlocks) continue;
    for (const std::vector<ir::Segment>& group : op.as<ir::FlatAttrs>().groups) {
      for (const ir::Segment& segment : group) {
        const ir::LogicalAxes& logical =
            model.states[static_cast<size_t>(segment.parameter)].logical;
        const bool is_divided = std::any_of(logical.begin(), logical.end(), [](const auto& axis) {
          return axis == "heads" || axis == "ffn" || axis == "vocab";
        });
        CHECK(segment.counted_at_origin_of == (is_divided ? ir::Axes{} : ir::Axes{"tp"}));
        ++(is_divided ? divided : whole);
      }
    }
  }
  // Of a block four matrices and two biases are divided; so is the table, which both ranks have.
  CHECK(divided == 3 * 6 + 2);
  CHECK(whole == 3 * 6 + 3);
}

TEST_CASE("the axes over which a value pends are in order of their names") {
  const partition::test::NetSizes sizes{.S = 16};
  const ir::Module model = partition::test::gpt_net(sizes);
  ModelShape shape;
  shape.global_batch = 64;
  shape.seq_len = sizes.S;
  int over_both = 0;
  for (const std::string plan : {"dp=2,cp=2", "dp=2,cp=2,zero=2", "dp=2,cp=2,tp=2,sp"}) {
    const CompiledPlan compiled = compile({model, &model, parse_plan(plan), shape, {}});
    for (const pipeline::Program* program : {&compiled.train, &*compiled.eval}) {
      for (const pipeline::Fragment& fragment : program->fragments) {
        for (const sharding::Sharding& sharding : fragment.shardings) {
          CHECK(std::is_sorted(sharding.partial.begin(), sharding.partial.end()));
          over_both += sharding.partial == sharding::Axes{"cp", "dp"} ? 1 : 0;
        }
      }
    }
  }
  CHECK(over_both > 0);
}

TEST_CASE("replicas sum what tensor parallelism left pending last") {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  for (const pipeline::Fragment& fragment :
       compiled(model, "pp=2,microbatches=4,schedule=chimera,tp=2,sp").train.fragments) {
    if (fragment.kind != pipeline::ActionKind::kUpdate) continue;
    std::string order;
    for (const ir::Op& op : fragment.graph.ops) {
      const auto* attrs = std::get_if<ir::CollectiveAttrs>(&op.attrs);
      if (attrs == nullptr || !std::holds_alternative<ir::Holders>(attrs->group)) continue;
      order += std::get<ir::Holders>(attrs->group).state.ends_with("/tp") ? 'p' : 'w';
    }
    CHECK(order == "wwwpp");
  }
}

TEST_CASE("gradients that are reduced in every microbatch lie in a buffer in order") {
  const ir::Module model = partition::test::gpt_net({.blocks = 3});
  for (const std::string plan : {"dp=2,zero=3", "tp=2,sp,grad_reduce=microbatch"}) {
    CAPTURE(plan);
    int buffers = 0, named = 0;
    for (const pipeline::Fragment& fragment : compiled(model, plan).train.fragments) {
      for (const ir::Input& input : fragment.graph.inputs)
        named += fragment.graph.value(input.value).logical.size() == 3 ? 1 : 0;
      if (fragment.kind == pipeline::ActionKind::kUpdate) continue;
      for (const ir::Op& op : fragment.graph.ops) {
        const auto* attrs = std::get_if<ir::CollectiveAttrs>(&op.attrs);
        if (attrs != nullptr && !plan.starts_with("dp"))
          CHECK(std::get<ir::AxisGroup>(attrs->group).axes == ir::Axes{"tp"});
        if (op.kind != ir::OpKind::kAssemble) continue;
        ++buffers;
        const std::vector<int64_t>& offsets = op.as<ir::AssembleAttrs>().offsets;
        CHECK(std::is_sorted(offsets.begin(), offsets.end()));
      }
    }
    CHECK(buffers > 0);
    CHECK(named > 0);
  }
}

TEST_CASE("weights and moments that are not what adamw made of them are found") {
  const ir::Module model = partition::test::gpt_net({.blocks = 3});
  ModelShape shape;
  shape.global_batch = 64;
  const CompiledPlan sound =
      compile({model, nullptr, parse_plan("dp=2,zero=1,bucket_mb=0,microbatches=2"), shape, {}});
  const auto update = [](pipeline::Program& program) -> ir::Graph& {
    const auto it = std::find_if(
        program.fragments.begin(), program.fragments.end(),
        [](const pipeline::Fragment& f) { return f.kind == pipeline::ActionKind::kUpdate; });
    return it->graph;
  };
  // All-gathers of weights of as many elements, which lie apart.
  const auto gathers = [](ir::Graph& graph) {
    std::vector<ir::Op*> found;
    for (ir::Op& op : graph.ops) {
      if (op.kind == ir::OpKind::kAllGather && graph.type(op.operands[0]).dtype == DType::kF32)
        found.push_back(&op);
    }
    return found;
  };
  struct Case {
    const char *name, *finding;
    std::function<void(ir::Graph&)> edit;
  };
  for (const Case& c : std::vector<Case>{
           {"weights gathered in each other's place", "what adamw makes of 'weight/",
            [&](ir::Graph& graph) {
              const std::vector<ir::Op*> all = gathers(graph);
              for (ir::Op* a : all) {
                for (ir::Op* b : all) {
                  if (a == b || !(graph.type(a->operands[0]) == graph.type(b->operands[0])))
                    continue;
                  return std::swap(a->operands, b->operands);
                }
              }
              FAIL("no two gathers of one size");
            }},
           {"weights gathered as they were", "what adamw makes of nothing",
            [&](ir::Graph& graph) {
              ir::Op& gather = *gathers(graph)[0];
              const OpId by = graph.value(gather.operands[0]).producer;
              gather.operands[0] = graph.op(by).operands[0];
            }},
           {"moments in each other's place", "what adamw makes of 'v/", [](ir::Graph& graph) {
              const auto step =
                  std::find_if(graph.ops.begin(), graph.ops.end(),
                               [](const ir::Op& op) { return op.kind == ir::OpKind::kAdamW; });
              REQUIRE(step != graph.ops.end());
              std::swap(step->operands[2], step->operands[3]);
            }}}) {
    CAPTURE(std::string(c.name));
    pipeline::Program program = sound.train;
    REQUIRE(pipeline::verify(program, {.module = &sound.module}).sound());
    c.edit(update(program));
    const std::string found =
        join(pipeline::verify(program, {.module = &sound.module}).findings, "\n");
    CAPTURE(found);
    CHECK(found.find(c.finding) != std::string::npos);
  }
}

// A value like another one, in memory of its own.
static ValueId add_like(pipeline::Fragment& fragment, ValueId v, const sharding::Axes& partial) {
  const ValueId made = fragment.graph.add_value(fragment.graph.type(v));
  fragment.shardings.push_back(fragment.shardings[v.index()]);
  fragment.shardings.back().partial = partial;
  fragment.global_types.push_back(fragment.global_types[v.index()]);
  fragment.alias_of.emplace_back();
  fragment.alias_offset.push_back(0);
  const int64_t place = round_up(fragment.workspace.value, 64);
  fragment.workspace_offset.push_back(place);
  fragment.workspace = Bytes(place) + fragment.graph.type(v).bytes();
  return made;
}

static void sum_again(pipeline::Fragment& fragment) {
  ir::Graph& graph = fragment.graph;
  const auto sum = std::find_if(graph.ops.begin(), graph.ops.end(), [&](const ir::Op& op) {
    if (op.kind != ir::OpKind::kAllReduce || graph.type(op.results[0]).rank() != 1) return false;
    const auto* group = std::get_if<ir::AxisGroup>(&op.as<ir::CollectiveAttrs>().group);
    return group != nullptr &&
           std::find(group->axes.begin(), group->axes.end(), "pp") != group->axes.end();
  });
  REQUIRE(sum != graph.ops.end());
  const auto at = static_cast<size_t>(sum - graph.ops.begin()) + 1;
  const ValueId once = sum->results[0];
  const ValueId term = add_like(fragment, once, {"pp"}), again = add_like(fragment, once, {});
  for (size_t o = at; o < graph.ops.size(); ++o)
    std::replace(graph.ops[o].operands.begin(), graph.ops[o].operands.end(), once, again);
  ir::Op copy = graph.ops[at - 1], reduce = copy;
  copy.kind = ir::OpKind::kCopy;
  copy.attrs = ir::NoAttrs{};
  copy.operands = {once};
  copy.results = {term};
  std::get<ir::CollectiveAttrs>(reduce.attrs).group = ir::AxisGroup{{"pp"}};
  reduce.operands = {term};
  reduce.results = {again};
  graph.ops.insert(graph.ops.begin() + static_cast<std::ptrdiff_t>(at), {copy, reduce});
  fragment.launches.assign(graph.ops.size(), pipeline::Launch());  // one after the other
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    for (const ValueId v : graph.ops[o].results)
      graph.value(v).producer = OpId(static_cast<int32_t>(o));
  }
}

TEST_CASE("a norm that counts on too few or too many ranks is found") {
  const ir::Module model = partition::test::gpt_net({.blocks = 3});
  ModelShape shape;
  shape.global_batch = 64;
  const CompiledPlan sound =
      compile({model, nullptr, parse_plan("dp=2,tp=2,pp=2,microbatches=2"), shape, {}});
  REQUIRE(pipeline::verify(sound.train, {.module = &sound.module}).sound());
  // The segments of what tp does not divide, or of what it divides, count anew along it.
  const auto recount = [](pipeline::Program& program, bool divided, bool in_adamw) {
    int edits = 0;
    for (pipeline::Fragment& fragment : program.fragments) {
      for (ir::Op& op : fragment.graph.ops) {
        const bool is_step = op.kind == ir::OpKind::kAdamW;
        if (!is_step && op.kind != ir::OpKind::kNormBlocks &&
            op.kind != ir::OpKind::kNormParameters)
          continue;
        if (is_step && !in_adamw) continue;
        for (auto& group : std::get<ir::FlatAttrs>(op.attrs).groups) {
          for (ir::Segment& segment : group) {
            if (segment.counted_at_origin_of.empty() != divided) continue;
            segment.counted_at_origin_of = divided ? ir::Axes{"tp"} : ir::Axes{};
            ++edits;
          }
        }
      }
    }
    REQUIRE(edits > 0);
  };
  // The norms' sum over pipeline ranks is a term of one more such sum.
  const auto twice = [](pipeline::Program& program) {
    for (pipeline::Fragment& fragment : program.fragments) {
      if (fragment.kind == pipeline::ActionKind::kUpdate) sum_again(fragment);
    }
    for (pipeline::RankProgram& rank : program.ranks) {  // the workspace behind all else
      pipeline::Command& update = rank.commands.back();
      REQUIRE(update.action.kind == pipeline::ActionKind::kUpdate);
      update.workspace_offset = round_up(rank.arena.value, 64);
      rank.arena =
          Bytes(update.workspace_offset) + program.fragments[update.fragment.index()].workspace;
    }
  };
  struct Case {
    const char *name, *finding;
    std::function<void(pipeline::Program&)> edit;
  };
  for (const Case& c :
       std::vector<Case>{{"what tp does not divide, on every rank",
                          "on the first rank alone along {}, must along {tp}",
                          [&](pipeline::Program& program) { recount(program, false, true); }},
                         {"what tp divides, on the first rank alone",
                          "on the first rank alone along {tp}, must along {}",
                          [&](pipeline::Program& program) { recount(program, true, true); }},
                         {"otherwise than the optimizer knows",
                          "takes a gradient for other parameters than the norm counts in it",
                          [&](pipeline::Program& program) { recount(program, true, false); }},
                         {"every pipeline rank's twice", "which is no sum of norms", twice}}) {
    CAPTURE(std::string(c.name));
    pipeline::Program program = sound.train;
    c.edit(program);
    const std::string found =
        join(pipeline::verify(program, {.module = &sound.module}).findings, "\n");
    CAPTURE(found);
    CHECK(found.find(c.finding) != std::string::npos);
  }
}

TEST_CASE("what stages take for one parameter is one for the optimizer") {
  const ir::Module model = partition::test::gpt_net({.blocks = 2});
  ModelShape shape;
  shape.global_batch = 64;
  pipeline::Program program =
      compile({model, nullptr, parse_plan("dp=2,zero=3,microbatches=2"), shape, {}}).train;
  REQUIRE(pipeline::verify(program).sound());
  for (pipeline::Fragment& fragment : program.fragments) {
    for (ir::Op& op : fragment.graph.ops) {
      auto* attrs = std::get_if<ir::FlatAttrs>(&op.attrs);
      if (attrs == nullptr) continue;
      for (auto& group : attrs->groups)
        for (ir::Segment& segment : group) --segment.end;
    }
  }
  const std::string found = join(pipeline::verify(program).findings, "\n");
  CAPTURE(found);
  CHECK(found.find("(adamw) knows no parameter in the elements ") != std::string::npos);
  CHECK(found.find(" takes for one") != std::string::npos);
}

TEST_CASE("a loss that several pipeline ranks add to is summed over them") {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  ModelShape shape;
  shape.global_batch = 64;
  pipeline::Program program =
      compile({model, nullptr, parse_plan("pp=2,schedule=chimera,microbatches=4"), shape, {}})
          .train;
  REQUIRE(pipeline::verify(program).sound());
  int edits = 0;
  for (pipeline::Fragment& fragment : program.fragments) {
    for (ir::Op& op : fragment.graph.ops) {
      if (op.kind != ir::OpKind::kAllReduce || fragment.graph.type(op.results[0]).rank() > 0)
        continue;
      op.kind = ir::OpKind::kCopy;
      op.attrs = ir::NoAttrs{};
      ++edits;
    }
  }
  REQUIRE(edits > 0);
  const std::string found = join(pipeline::verify(program).findings, "\n");
  CAPTURE(found);
  CHECK(found.find("', to which 2 pipeline ranks add, without the sum over them") !=
        std::string::npos);
}

TEST_CASE("a scattered sum that is laid over what other ranks still read is found") {
  const ir::Module model = partition::test::gpt_net({.blocks = 3});
  ModelShape shape;
  shape.global_batch = 64;
  pipeline::Program program =
      compile(
          {model, nullptr, parse_plan("pp=3,microbatches=4,dp=2,zero=3,schedule=zb-h1"), shape, {}})
          .train;
  int edits = 0;
  for (pipeline::Fragment& fragment : program.fragments) {
    for (const ir::Op& op : fragment.graph.ops) {
      if (op.kind != ir::OpKind::kReduceScatter || edits > 0) continue;
      const size_t from = op.operands[0].index(), to = op.results[0].index();
      const ValueId root = fragment.alias_of[from];
      const size_t whole = root.valid() ? root.index() : from;
      if (fragment.workspace_offset[whole] < 0) continue;
      fragment.alias_of[to] = ValueId();
      fragment.workspace_offset[to] =
          fragment.workspace_offset[whole] + (root.valid() ? fragment.alias_offset[from] : 0);
      ++edits;
    }
  }
  REQUIRE(edits == 1);
  const std::string found = join(pipeline::verify(program).findings, "\n");
  CAPTURE(found);
  CHECK(found.find("which it cannot do in place") != std::string::npos);
}

}  // namespace
}  // namespace mw::compile
