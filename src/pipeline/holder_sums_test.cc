// Gradients of a weight that several pipeline ranks hold: what is summed over its holders, and what
// the verifier says of a sum that is another one.
#include "pipeline/holder_sums.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "base/text.h"
#include "pipeline/test_pipeline.h"
#include "pipeline/verifier.h"

using namespace mw;
using namespace mw::pipeline;

namespace {

Fragment& fragment(Program& program, const std::string& name) {
  for (Fragment& f : program.fragments) {
    if (f.name == name) return f;
  }
  throw CheckFailure("no fragment " + name);
}
ir::Graph& update(Program& program, int32_t rank) {
  return fragment(program, "UPDATE rank " + std::to_string(rank)).graph;
}
ir::Op& first(ir::Graph& graph, ir::OpKind kind) {
  for (ir::Op& op : graph.ops) {
    if (op.kind == kind) return op;
  }
  throw CheckFailure("no such op");
}
ir::CollectiveAttrs over_holders(const std::string& state) {
  ir::CollectiveAttrs attrs;
  attrs.group = ir::Holders{state};
  return attrs;
}
void replace(ir::Op& op, ir::OpKind kind, ir::Attributes attrs, ValueIds operands) {
  op.kind = kind;
  op.attrs = std::move(attrs);
  op.operands = std::move(operands);
}
// Stage 2 adds nothing to the gradient of its second weight, for microbatch 1.
void add_nothing_to_second(Program& program) {
  Fragment f = fragment(program, "B stage 2");
  for (ir::StateUpdate& u : f.graph.updates) {
    const ir::Op& op = f.graph.op(f.graph.value(u.value).producer);
    if (op.as<ir::DotAttrs>().out != "fd") continue;
    const ValueId unchanged = op.operands.back();
    for (Port& port : f.outputs) {
      if (port.value == u.value) port.value = unchanged;
    }
    u.value = unchanged;
  }
  program.fragments.push_back(std::move(f));
  for (Command& command : program.ranks[2].commands) {
    if (command.kind == Command::Kind::kCall && command.action.kind == ActionKind::kB &&
        command.action.first == 1)
      command.fragment = FragmentId(static_cast<int64_t>(program.fragments.size()) - 1);
  }
}
void tell_stage(Program& program, size_t rank, int32_t from, int32_t to) {
  for (Command& command : program.ranks[rank].commands) {
    if (command.action.stage == StageId(from)) command.action.stage = StageId(to);
  }
}

// Stage 0's weights are stage 2's too: pipeline ranks 0 and 2 of 3 hold them. An update begins with
// the sum over them, then that over dp.
const PipelineSpec kEnds{.ranks = 3, .microbatches = 2, .dp = 2, .tied = 1};
// Stages 0 and 2 are on rank 0, 1 and 3 on rank 1; all have the same weights. An update begins with
// the accumulation of both uses, the zeros that the second leaves, and the sum over the holders.
const PipelineSpec kAll{
    .ranks = 2, .chunks = 2, .microbatches = 2, .dp = 2, .schedule = "interleaved-1f1b", .tied = 3};

struct Case {
  const char* name;
  const PipelineSpec& spec;
  std::function<void(Program&)> edit;
  const char* finding;
  bool alone = false;  // no command has another finding
};

const std::vector<Case> kCases = {
    {"no sum over the holders", kEnds,
     [](Program& p) {
       for (const int32_t r : {0, 2}) {
         ir::Op& op = update(p, r).ops[0];
         replace(op, ir::OpKind::kCopy, {}, op.operands);
       }
     },
     "updates 'weight/0', which 2 pipeline ranks hold, with a gradient that is summed over holders "
     "0 times"},
    // Each of the two ranks brings the sum of both to the second sum.
    {"the sum of the sum over the holders", kEnds,
     [](Program& p) {
       for (const int32_t r : {0, 2}) update(p, r).ops[1].attrs = over_holders("weight/0");
     },
     "takes 'grad/2' of pipeline rank 2 2 times"},
    {"the sum over the holders of another state", kEnds,
     [](Program& p) {
       for (const int32_t r : {0, 2}) update(p, r).ops[0].attrs = over_holders("weight/1");
     },
     "updates 'weight/0', which 2 pipeline ranks hold, with a sum over holders that is not of its "
     "gradients alone"},
    {"what is summed is no accumulator", kEnds,
     [](Program& p) {
       ir::Graph& graph = update(p, 2);
       replace(graph.ops[0], ir::OpKind::kScale, ir::ScaleAttrs{2}, graph.ops[0].operands);
       graph.ops[1].attrs = over_holders("weight/0");
     },
     "pipeline rank 2, command 14 (call 'UPDATE rank 2', UPDATE) op 6 (adamw) updates 'weight/0', "
     "which 2 pipeline ranks hold, with a sum over holders that is not of its gradients alone"},
    {"a use that is added behind the sum", kAll,
     [](Program& p) {
       ir::Graph& graph = update(p, 0);
       const ValueIds uses = graph.ops[0].operands;
       replace(graph.ops[0], ir::OpKind::kAllReduce, over_holders("weight/0"), {uses[0]});
       replace(graph.ops[2], ir::OpKind::kAccumulate, {}, {uses[1], graph.ops[0].results[0]});
     },
     "updates 'weight/0', which 2 pipeline ranks hold, with a gradient that is added behind the "
     "sum "
     "over holders"},
    // The first sum is that of stages 0 and 1, the second that of stages 2 and 3.
    {"each holder takes another sum", kAll,
     [](Program& p) {
       for (const int32_t r : {0, 1}) {
         ir::Graph& graph = update(p, r);
         const ValueIds uses = graph.ops[0].operands;
         for (const size_t k : {0, 1})
           replace(graph.ops[2 * k], ir::OpKind::kAllReduce, over_holders("weight/0"), {uses[k]});
         graph.ops[3].operands = graph.ops[r == 0 ? 0 : 2].results;
       }
     },
     "updates 'weight/0' with the sum of other gradients than pipeline rank 0 does"},
    {"a holder that brings its gradient and updates another state", kEnds,
     [](Program& p) {
       ir::Op& adamw = first(update(p, 2), ir::OpKind::kAdamW);
       adamw.operands[0] = adamw.operands[2];
     },
     "adds 'grad/2' to the gradient of 'weight/0' on pipeline rank 2, which does not update it"},
    {"a use without a microbatch", kEnds, add_nothing_to_second,
     "pipeline rank 0, command 16 (call 'UPDATE rank 0', UPDATE) op 6 (adamw) takes 'grad/2' of "
     "pipeline rank 2, whose elements 256 to 384 hold microbatch 1 0 times",
     true},
    // Of one stage on two ranks each microbatch counts on one of them.
    {"replicas that both had all microbatches", kEnds, [](Program& p) { tell_stage(p, 2, 2, 0); },
     "takes 'grad/0' of pipeline rank 0 and 'grad/2' of pipeline rank 2, whose elements 0 to 128 "
     "hold microbatch 0 2 times"},
};

}  // namespace

TEST_CASE("the verifier names what is wrong with a sum over the holders of a weight") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    Program program = make_pipeline(c.spec);
    REQUIRE(verify(program).sound());
    c.edit(program);
    const std::vector<std::string> findings = verify(program).findings;
    const std::string all = join(findings, "\n");
    CAPTURE(all);
    CHECK(all.find(c.finding) != std::string::npos);
    const auto of_commands = std::count_if(findings.begin(), findings.end(), [](const auto& f) {
      return f.starts_with("pipeline rank");
    });
    if (c.alone) CHECK(of_commands == 1);
  }
}

TEST_CASE("a group is its ranks, whichever of the states they hold it is named by") {
  Program program = make_pipeline(kEnds);
  for (const int32_t r : {0, 2}) update(program, r).ops[0].attrs = over_holders("m/0");
  CHECK(join(verify(program).findings, "\n") == "");
}

TEST_CASE("two uses of a weight in one stage each have every microbatch") {
  Program program = make_pipeline(kAll);
  tell_stage(program, 0, 2, 0);
  CHECK(join(verify(program).findings, "\n") == "");
}

TEST_CASE("a sum over holders is made of what all of them bring, and of sums before it") {
  Program program = make_pipeline(kEnds);
  for (const int32_t r : {0, 2}) update(program, r).ops[1].attrs = over_holders("weight/0");
  const VerifyOptions options;
  Checked checked{program, options, {}, {}};
  for (const Fragment& f : program.fragments) {
    checked.info.push_back(make_fragment_info(f));
    checked.accumulation.push_back(make_accumulation_info(f, program.mesh));
  }
  const HolderSums sums(checked);
  const auto gradient = [&](int32_t rank) {
    const auto& buffers = program.ranks[static_cast<size_t>(rank)].buffers;
    size_t b = 0;
    while (buffers[b].name() != "grad/" + std::to_string(rank)) ++b;
    return std::pair(rank, BufferId(static_cast<int64_t>(b)));
  };
  using Contributions = HolderSums::Contributions;
  for (const int32_t r : {0, 2}) {
    const size_t last = program.ranks[static_cast<size_t>(r)].commands.size() - 1;
    CHECK(sums.resolve(r, last, {0}) == Contributions{{gradient(0), 1}, {gradient(2), 1}});
    // Both bring the first sum.
    CHECK(sums.resolve(r, last, {1}) == Contributions{{gradient(0), 2}, {gradient(2), 2}});
    CHECK(sums.resolve(r, last, {0, 1}) == Contributions{{gradient(0), 3}, {gradient(2), 3}});
    CHECK(sums.resolve(r, last, {}) == Contributions{});
  }
}
