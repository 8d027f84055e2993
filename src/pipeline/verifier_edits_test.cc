// One edit of a sound program, and the finding that names it.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "base/text.h"
#include "pipeline/memory_plan.h"
#include "pipeline/test_pipeline.h"
#include "pipeline/verifier.h"

using namespace mw;
using namespace mw::pipeline;

namespace {

using Kind = Command::Kind;

// The first command of the kind for this microbatch.
size_t index_of(const Program& program, size_t rank, Kind kind, int32_t microbatch,
                ActionKind action = ActionKind::kF) {
  const auto& commands = program.ranks[rank].commands;
  for (size_t c = 0; c < commands.size(); ++c) {
    if (commands[c].kind == kind && commands[c].action.first == microbatch &&
        (kind != Kind::kCall || commands[c].action.kind == action))
      return c;
  }
  throw CheckFailure("no such command");
}
Command& command(Program& program, size_t rank, Kind kind, int32_t microbatch,
                 ActionKind action = ActionKind::kF) {
  return program.ranks[rank].commands[index_of(program, rank, kind, microbatch, action)];
}
// The first call of rank 0 that works behind something.
Command& working(Program& program) {
  for (Command& command : program.ranks[0].commands) {
    if (command.kind == Kind::kCall && command.workspace_offset > 0) return command;
  }
  throw CheckFailure("no call works behind a buffer");
}
Buffer& state(Program& program, size_t rank, Category category) {
  for (Buffer& buffer : program.ranks[rank].buffers) {
    if (buffer.storage.kind == Storage::Kind::kState && buffer.category == category) return buffer;
  }
  throw CheckFailure("no such state");
}

// The rank's update, for an edit.
Fragment& update(Program& program, size_t rank) {
  return program.fragments[program.ranks[rank].commands.back().fragment.index()];
}
ir::Op& op_of(Fragment& fragment, ir::OpKind kind) {
  for (ir::Op& op : fragment.graph.ops) {
    if (op.kind == kind) return op;
  }
  throw CheckFailure("no such op");
}
std::vector<ir::Segment>& segments(Fragment& fragment, ir::OpKind kind, size_t group) {
  return std::get<ir::FlatAttrs>(op_of(fragment, kind).attrs).groups[group];
}

// The call of the microbatch on a fragment of its own.
void call_another(Program& p, size_t rank, int32_t microbatch, ActionKind kind,
                  const std::function<void(Fragment&)>& edit) {
  Command& call = command(p, rank, Kind::kCall, microbatch, kind);
  const FragmentId id(static_cast<int64_t>(p.fragments.size()));
  p.fragments.push_back(Fragment(p.fragments[call.fragment.index()]));
  call.fragment = id;
  edit(p.fragments.back());
}
// An op that adds to a sum clears it instead.
void clear(Fragment& f, size_t o) {
  ir::Op& op = f.graph.ops[o];
  op.kind = ir::OpKind::kZero;
  op.attrs = {};
  op.operands = {op.operands.back()};
  op.accumulates = false;
}
void make_constant(ir::Op& op, double value) {
  op.kind = ir::OpKind::kConstant;
  op.attrs = ir::ConstantAttrs{value};
  op.operands.clear();
}
// Who makes the first operand of the op.
ir::Op& sum_before(Fragment& f, ir::OpKind kind) {
  return f.graph.ops[f.graph.value(op_of(f, kind).operands[0]).producer.index()];
}
void add_to_itself(ir::Op& op) {
  op.kind = ir::OpKind::kAdd;
  op.attrs = {};
  op.operands.push_back(op.operands[0]);
}
void step_by_weight(Program& p) {
  ir::Op& step = op_of(update(p, 0), ir::OpKind::kAdamW);
  step.operands[1] = step.operands[0];
}
// What rank 0's backward gets from its forward goes from slice to slice.
void carry(Program& p) {
  p.fragments[command(p, 0, Kind::kCall, 0, ActionKind::kB).fragment.index()].inputs[1].kind =
      PortKind::kCarried;
}
// Where rank 1 reads the message of microbatch 1.
Buffer& received(Program& p) {
  return p.ranks[1].buffers[command(p, 1, Kind::kReceive, 1).buffers[0].index()];
}

struct Case {
  std::string name;
  std::function<void(Program&)> edit;
  const char* finding;
};

const std::vector<Case> kCases = {
    {"data of a microbatch that is none",
     [](Program& p) { command(p, 0, Kind::kLoad, 2).microbatch = 3; },
     "loads microbatch 3, there are 3"},
    {"data of another microbatch", [](Program& p) { command(p, 0, Kind::kLoad, 2).microbatch = 1; },
     "loads microbatch 1"},
    {"work on microbatches that are none",
     [](Program& p) { command(p, 0, Kind::kCall, 2).action.count = 2; },
     "works on microbatches that do not exist, there are 3"},
    {"a slot that is sent twice over",
     [](Program& p) {
       auto& commands = p.ranks[0].commands;
       const size_t c = index_of(p, 0, Kind::kCall, 1);
       commands.insert(commands.begin() + static_cast<int64_t>(c), Command(commands[c]));
     },
     "writes 'y0#1' a second time"},
    {"a slot that goes back for another message",
     [](Program& p) { command(p, 1, Kind::kRelease, 1).sequence += 3; },
     "gives back a slot that it does not have"},
    {"a message that is read where an earlier one was bound",
     [](Program& p) {
       Command& later = command(p, 1, Kind::kCall, 1);
       later.buffers = command(p, 1, Kind::kCall, 0).buffers;
     },
     "in slot 0 of channel 'y0', which it does not have"},
    {"a state behind the end of the states",
     [](Program& p) { p.ranks[0].state_arena = p.ranks[0].state_arena - Bytes(64); },
     " of the states"},
    {"a call that works over what a later one reads",
     [](Program& p) { working(p).workspace_offset -= 64; }, "but a call worked there"},
    {"a call that works over its own buffer",
     [](Program& p) {
       for (const BufferId id : working(p).buffers) {
         const Storage& storage = p.ranks[0].buffers[id.index()].storage;
         if (storage.kind == Storage::Kind::kArena) working(p).workspace_offset = storage.offset;
       }
     },
     "works over "},
    {"a workspace behind the end of the arena",
     [](Program& p) { p.ranks[0].arena = p.ranks[0].arena - Bytes(64); },
     "does not lie in the arena of "},
    {"a message that its slot no longer holds",
     [](Program& p) {
       const auto received = [&](int32_t m) { return command(p, 1, Kind::kReceive, m).buffers[0]; };
       auto& arguments = command(p, 1, Kind::kCall, 2).buffers;
       std::replace(arguments.begin(), arguments.end(), received(2), received(0));
     },
     "which is of message 0, but its slot has message 2 now"},
    {"a slot that was taken as received",
     [](Program& p) { command(p, 0, Kind::kAcquire, 1).kind = Kind::kReceive; },
     "a slot that it only received"},
    {"a message named after another slot",
     [](Program& p) {
       command(p, 0, Kind::kPublish, 1).buffers = command(p, 0, Kind::kPublish, 2).buffers;
     },
     "names 'y0#2', which does not lie in its slot"},
    {"a message that is not what was written",
     [](Program& p) {
       command(p, 0, Kind::kPublish, 2).buffers = command(p, 0, Kind::kPublish, 0).buffers;
     },
     "sends 'y0#0', but 'y0#2' was written"},
    {"arguments in another order",
     [](Program& p) {
       auto& arguments = command(p, 0, Kind::kCall, 1).buffers;
       std::swap(arguments[0], arguments[1]);
     },
     "gives 'w1.0' of f32[8,8] to port 'x' of f32[4,8]"},
    {"a rank without its update",
     [](Program& p) {
       std::erase_if(p.ranks[0].commands,
                     [](const Command& c) { return c.action.kind == ActionKind::kUpdate; });
     },
     "is updated on no pipeline rank"},
    {"data of a microbatch that is loaded once",
     [](Program& p) { command(p, 0, Kind::kLoad, 2).microbatch = -1; },
     "loads f32[4,8] once a step: only scalars are the same for all microbatches"},
    {"a norm that forgets a parameter",
     [](Program& p) {
       for (const auto kind : {ir::OpKind::kNormBlocks, ir::OpKind::kNormParameters})
         segments(update(p, 0), kind, 0).pop_back();
     },
     "op 5 (adamw) takes a gradient for other parameters than the norm counts in it"},
    {"a norm of blocks that were made of others",
     [](Program& p) { segments(update(p, 0), ir::OpKind::kNormBlocks, 0).pop_back(); },
     "(norm_parameters) takes blocks of other groups than it makes sums of"},
    {"parameters that no rank counts",
     [](Program& p) {
       for (const auto kind : {ir::OpKind::kNormBlocks, ir::OpKind::kNormParameters})
         segments(update(p, 1), kind, 0).front().counts = false;
     },
     "the norm counts parameter 2 0 times"},
    {"a norm of another gradient",
     [](Program& p) {
       ir::Graph& graph = update(p, 0).graph;
       op_of(update(p, 0), ir::OpKind::kNormBlocks).operands[0] = graph.inputs[0].value;
     },
     "(adamw) takes a gradient that the norm counts 0 times"},
    {"a step that is not clipped",
     [](Program& p) {
       ir::Op& step = op_of(update(p, 0), ir::OpKind::kAdamW);
       step.operands[4] = step.operands[5];
     },
     "(adamw) scales its gradient by lr, which is no clipping factor"},
    {"a step that is told another learning rate",
     [](Program& p) {
       ir::Op& step = op_of(update(p, 0), ir::OpKind::kAdamW);
       step.operands[5] = step.operands[4];
     },
     "(adamw) takes %"},
    {"a step of another optimizer",
     [](Program& p) {
       std::get<ir::FlatAttrs>(op_of(update(p, 0), ir::OpKind::kAdamW).attrs).beta1 = 0.5;
     },
     "others have beta1=0.5"},
    {"norm and loss in each other's place",
     [](Program& p) {
       Fragment& f = update(p, 1);
       std::swap(f.graph.outputs[0], f.graph.outputs[1]);
       std::swap(f.outputs[0].value, f.outputs[1].value);
     },
     " as 'grad_norm'"},
    {"a loss that is cleared and was not reported",
     [](Program& p) {
       ir::Op& copy = op_of(update(p, 1), ir::OpKind::kCopy);
       copy.operands[0] = op_of(update(p, 1), ir::OpKind::kAdamW).operands[5];
     },
     "clears 'loss', which it does not report"},
    {"states over each other",
     [](Program& p) {
       state(p, 0, Category::kGradients).storage.offset =
           state(p, 0, Category::kWeights).storage.offset;
     },
     "overlaps state '"},
    {"a port of another type",
     [](Program& p) {
       Fragment& f = p.fragments[command(p, 0, Kind::kCall, 0).fragment.index()];
       f.global_types[f.outputs.back().value.index()] = ir::make_type(DType::kF32, {1, 2});
     },
     ", a shard of f32[1,2]"},
    {"a message at another byte of its slot",
     [](Program& p) {
       for (Buffer& buffer : p.ranks[0].buffers)
         if (buffer.storage.kind == Storage::Kind::kSlot) buffer.storage.offset = 64;
     },
     "at byte 64 of a slot of channel 'y0'"},
    {"a message that comes too early",
     [](Program& p) { command(p, 1, Kind::kReceive, 1).sequence += 3; },
     " comes where message 1 must come"},
    {"a message that was not acquired",
     [](Program& p) {
       auto& commands = p.ranks[0].commands;
       commands.erase(commands.begin() + static_cast<int64_t>(index_of(p, 0, Kind::kAcquire, 2)));
     },
     "channel 'y0' from pipeline rank 0 to 1: 2 slots are acquired, but 3 messages published"},
    {"as many released, but not the same",
     [](Program& p) { command(p, 1, Kind::kRelease, 1).sequence += 3; },
     "3 messages are received, but 3 released, each must be once"},
    {"a slot that is not given back",
     [](Program& p) {
       auto& commands = p.ranks[1].commands;
       commands.erase(commands.begin() + static_cast<int64_t>(index_of(p, 1, Kind::kRelease, 0)));
     },
     "gets slot 0, which it still has for message 0"},
    {"a message named as an earlier one in its slot",
     [](Program& p) {
       command(p, 0, Kind::kPublish, 2).buffers = command(p, 0, Kind::kPublish, 0).buffers;
     },
     "names 'y0#0', which is of message 0"},
    {"a channel to its own rank", [](Program& p) { p.channels[0].to = 0; },
     "channel 0 'y0' leads from pipeline rank 0 to 0, of 2"},
    {"a channel without a slot", [](Program& p) { p.channels[0].slots = 0; },
     "channel 0 'y0' has 0 slots"},
    {"a buffer before its arena", [](Program& p) { p.ranks[0].buffers[0].storage.offset = -64; },
     " lies at byte -64"},
    {"a state that is none", [](Program& p) { --p.ranks[0].states; },
     " is a state behind the states"},
    {"data that is loaded into a state",
     [](Program& p) { command(p, 0, Kind::kLoad, 2).buffers[0] = BufferId(0); },
     ", which is not in the step arena"},
    {"a parameter that two ranks count",
     [](Program& p) {
       for (const auto kind : {ir::OpKind::kNormBlocks, ir::OpKind::kNormParameters})
         segments(update(p, 0), kind, 0).front().parameter = 2;
     },
     "the norm counts parameter 2 2 times: on pipeline ranks 0, 1"},
    {"a step that is scaled by the norm itself",
     [](Program& p) {
       op_of(update(p, 0), ir::OpKind::kAdamW).operands[4] =
           op_of(update(p, 0), ir::OpKind::kClip).results[0];
     },
     ", which is no clipping factor"},
    {"an event that two ops record",
     [](Program& p) {
       for (size_t o : {0, 1}) p.fragments[0].launches[o].records = EventId(0);
     },
     "op 1 records event 0 a second time"},
    {"a workspace that ends before its last value",
     [](Program& p) {
       Fragment& f = p.fragments[working(p).fragment.index()];
       f.workspace = f.workspace - Bytes(64);
     },
     " of the workspace of "},
    {"a sum that a step adds to",
     [](Program& p) {
       ir::Op& zero = p.fragments.back().graph.ops.back();
       zero.kind = ir::OpKind::kAccumulate;
       zero.operands.push_back(op_of(update(p, 1), ir::OpKind::kAdamW).operands[5]);
     },
     "adds to 'loss' outside of the microbatches"},
    {"a sum that a step makes a multiple of",
     [](Program& p) {
       p.fragments.back().graph.ops.back().kind = ir::OpKind::kScale;
       p.fragments.back().graph.ops.back().attrs = ir::ScaleAttrs{2};
     },
     "replaces 'loss', which holds sums of microbatches"},
    {"a sum that work on a microbatch clears",
     [](Program& p) {
       call_another(p, 0, 1, ActionKind::kB, [](Fragment& f) { clear(f, f.graph.ops.size() - 1); });
     },
     "clears 'g1.0', which holds sums of microbatches"},
    {"a step by the weight itself", [](Program& p) { step_by_weight(p); },
     "op 5 (adamw) takes 'weight/0' as a gradient"},
    {"a gradient that is cleared for nothing", [](Program& p) { step_by_weight(p); },
     "clears the gradient 'grad/0', which no optimizer took"},
    {"a gradient that is read before it is complete",
     [](Program& p) {
       step_by_weight(p);
       auto& commands = p.ranks[0].commands;
       commands.erase(commands.begin() +
                      static_cast<int64_t>(index_of(p, 0, Kind::kCall, 1, ActionKind::kB)));
     },
     "reads 'grad/0', whose elements 0 to 64 hold microbatch 1 0 times"},
    {"a gradient to which the step adds",
     [](Program& p) {
       ir::Op& sum = op_of(update(p, 0), ir::OpKind::kAllReduce);
       sum.kind = ir::OpKind::kAccumulate;
       sum.attrs = {};
       sum.operands.push_back(op_of(update(p, 0), ir::OpKind::kAdamW).operands[5]);
     },
     "takes a gradient to which op 0 of this call adds"},
    {"a loss that is summed and stays so",
     [](Program& p) {
       Fragment& f = update(p, 1);
       f.graph.updates.back().value = op_of(f, ir::OpKind::kScale).operands[0];
       f.outputs.back().value = f.graph.updates.back().value;
     },
     R"(state 'loss' is [] at the end, but [] partial{"dp"} at the start of the next call)"},
    {"metrics in each other's state",
     [](Program& p) {
       auto& buffers = p.ranks[1].commands.back().buffers;
       std::swap(buffers[buffers.size() - 1], buffers[buffers.size() - 2]);
     },
     "writes port 'grad_norm' into state 'loss_value'"},
    {"data of one microbatch for work on another",
     [](Program& p) {
       command(p, 0, Kind::kCall, 1).buffers[0] = command(p, 0, Kind::kCall, 0).buffers[0];
     },
     "gives data 'x' of microbatch 0 to work on microbatch 1"},
    {"data of one microbatch for work on two",
     [](Program& p) { command(p, 0, Kind::kCall, 1).action.count = 2; },
     "gives data 'x' of microbatch 1 to work on microbatches 1 to 2"},
    {"what is carried within one slice", [](Program& p) { carry(p); },
     "carries 'h0#1' of microbatch 1 to microbatch 1"},
    {"what is carried to a slice of another microbatch",
     [](Program& p) {
       carry(p);
       Command& later = command(p, 0, Kind::kCall, 1, ActionKind::kB);
       later.action.slice = 1;
       later.buffers[1] = command(p, 0, Kind::kCall, 0, ActionKind::kB).buffers[1];
     },
     "carries 'h0#0' of microbatch 0 to microbatch 1, slice 1"},
    {"what is saved by another stage",
     [](Program& p) { command(p, 0, Kind::kCall, 1, ActionKind::kB).action.stage = StageId(1); },
     "gives 'h0#1' of stage 0 to work of stage 1"},
    {"what is carried from another stage",
     [](Program& p) {
       carry(p);
       command(p, 0, Kind::kCall, 1, ActionKind::kB).action.stage = StageId(1);
     },
     "gives 'h0#1' of stage 0 to work of stage 1"},
    {"a message of another stage than before",
     [](Program& p) { command(p, 0, Kind::kCall, 1).action.stage = StageId(1); },
     "gives 'y0#1', written as 'y0' by stage 1, channel 'y0', to port 'y0', which before got 'y0' "
     "by stage 0, channel 'y0'"},
    {"a message that its sender calls otherwise than before",
     [](Program& p) {
       const Fragment& f = p.fragments[command(p, 0, Kind::kCall, 1).fragment.index()];
       p.names.resize(1);
       for (const std::vector<Port>* ports : {&f.inputs, &f.outputs})
         for (const Port& port : *ports) p.names[0].push_back(port.name);
       p.names[0].back() = "%7";
       p.names[0].resize(p.names[0].size() + f.graph.values.size());
       command(p, 0, Kind::kCall, 1).names = 0;
     },
     "gives 'y0#1', written as '%7' by stage 0, channel 'y0', to port 'y0', which before got 'y0' "
     "by stage 0, channel 'y0'"},
    {"a message that is read as pending",
     [](Program& p) { received(p).layout.edit().sharding.partial = {"dp"}; },
     R"(reads 'y0#1' as [{"dp"}, {}] partial{"dp"} of f32[8,8], but it was sent as [{"dp"}, {}] of)"},
    {"a message that is read as of another whole",
     [](Program& p) { received(p).layout.edit().global_type = ir::make_type(DType::kF32, {7, 8}); },
     R"(reads 'y0#1' as [{"dp"}, {}] of f32[7,8], but it was sent as [{"dp"}, {}] of f32[8,8])"},
    {"a norm of a constant",
     [](Program& p) { make_constant(op_of(update(p, 0), ir::OpKind::kNormParameters), 1); },
     "(clip) takes %"},
    {"a norm that counts all parameters twice",
     [](Program& p) { add_to_itself(sum_before(update(p, 0), ir::OpKind::kClip)); },
     "(clip) takes the norms of op 2 2 times"},
    {"a loss that is nothing",
     [](Program& p) { make_constant(op_of(update(p, 1), ir::OpKind::kScale), 0); },
     " as 'loss_value'"},
    {"a loss and a constant",
     [](Program& p) {
       ir::Op &copy = op_of(update(p, 1), ir::OpKind::kCopy),
              &sum = sum_before(update(p, 1), ir::OpKind::kScale);
       sum.operands.push_back(copy.operands[0]);
       sum.kind = ir::OpKind::kAdd;
       sum.attrs = {};
       make_constant(copy, 1);
     },
     " as 'loss_value'"},
    {"a loss that is summed over pipeline ranks twice",
     [](Program& p) {
       ir::CollectiveAttrs attrs;
       attrs.group = ir::AxisGroup{{"pp"}};
       op_of(update(p, 1), ir::OpKind::kCopy).kind = ir::OpKind::kAllReduce;
       for (ir::Op* op : {&p.fragments.back().graph.ops[p.fragments.back().graph.ops.size() - 4],
                          &sum_before(update(p, 1), ir::OpKind::kScale)})
         op->attrs = attrs;
     },
     " as 'loss_value'"},
    {"a loss that is scaled by the learning rate",
     [](Program& p) {
       ir::Op& scale = op_of(update(p, 1), ir::OpKind::kScale);
       scale.kind = ir::OpKind::kMul;
       scale.attrs = {};
       scale.operands.push_back(op_of(update(p, 1), ir::OpKind::kAdamW).operands[5]);
     },
     " as 'loss_value'"},
    {"a norm that counts a gradient in two groups",
     [](Program& p) {
       for (const auto kind : {ir::OpKind::kNormBlocks, ir::OpKind::kNormParameters}) {
         auto& groups = std::get<ir::FlatAttrs>(op_of(update(p, 0), kind).attrs).groups;
         groups.push_back(groups[0]);
       }
       ValueIds& gradients = op_of(update(p, 0), ir::OpKind::kNormBlocks).operands;
       gradients.push_back(gradients[0]);
     },
     "takes a gradient that the norm counts 2 times"},
    {"a slot between other pipeline ranks",
     [](Program& p) {
       p.channels[0].from = 1;
       p.channels[0].to = 2;
       p.ranks.push_back(p.ranks[1]);
     },
     "lies in channel 'y0' between pipeline ranks 1 and 2"},
    {"names that there are not", [](Program& p) { command(p, 0, Kind::kCall, 0).names = 0; },
     "has names 0, there are 0"},
};

}  // namespace

TEST_CASE("the verifier names what one edit of a pipeline breaks") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    Program program = make_pipeline({.ranks = 2, .microbatches = 3, .dp = 2, .tp = 2, .slots = 2});
    REQUIRE(verify(program).sound());
    c.edit(program);
    const std::string all = join(verify(program).findings, "\n");
    CAPTURE(all);
    CHECK(all.find(c.finding) != std::string::npos);
  }
}

TEST_CASE("what lies in a rank's own part is where it was scattered, until that is cleared") {
  struct Edit {
    const char* name;
    std::function<void(Fragment&)> edit;
    const char* finding;
  };
  const auto scattered = [](Fragment& f) {
    return op_of(f, ir::OpKind::kReduceScatter).results[0];
  };
  const std::vector<Edit> edits = {
      {"in the next rank's part",
       [&](Fragment& f) {
         f.alias_offset[scattered(f).index()] += f.graph.type(scattered(f)).bytes().value;
       },
       "which it cannot do in place"},
      {"while the whole is wanted",
       [](Fragment& f) {
         op_of(f, ir::OpKind::kAdamW).operands[1] =
             op_of(f, ir::OpKind::kReduceScatter).operands[0];
       },
       "reads grad/0, but its byte 0 holds %1"},
  };
  for (const Edit& edit : edits) {
    CAPTURE(edit.name);
    Program program =
        make_pipeline({.ranks = 2, .microbatches = 3, .dp = 2, .tp = 1, .zero = true});
    REQUIRE(verify(program).sound());
    Fragment& fragment = update(program, 0);
    REQUIRE(lies_in_own_part(fragment, scattered(fragment)));
    edit.edit(fragment);
    const std::string all = join(verify(program).findings, "\n");
    CAPTURE(all);
    CHECK(all.find(edit.finding) != std::string::npos);
  }
}

TEST_CASE("a step decays what the module says") {
  Program program = make_pipeline({.ranks = 1, .microbatches = 2});
  ir::Module module;
  for (const char* name : {"w1.0", "w2.0"}) {
    ir::State state;
    state.name = name;
    state.decay = state.name == "w1.0";
    module.add_state(state);
  }
  for (const bool first : {true, false}) {
    auto& parameters = segments(update(program, 0), ir::OpKind::kAdamW, 0);
    parameters[0].decay = first;
    parameters[1].decay = !first;
    const std::string all = join(verify(program, {.module = &module}).findings, "\n");
    CAPTURE(all);
    CHECK((all.find("(adamw) does not decay 'w1.0', which decays") != std::string::npos) == !first);
    CHECK((all.find("(adamw) decays 'w2.0', which does not") != std::string::npos) == !first);
    CHECK((all.find("decay") == std::string::npos) == first);
  }
}

TEST_CASE("operations of one group must have an order") {
  Program program =
      make_pipeline({.ranks = 2, .microbatches = 3, .dp = 2, .tp = 2, .streams = true});
  REQUIRE(verify(program).sound());
  for (Fragment& fragment : program.fragments) {
    std::vector<size_t> of_dp;
    for (size_t o = 0; o < fragment.graph.ops.size(); ++o) {
      const ir::Op& op = fragment.graph.ops[o];
      if (op.kind != ir::OpKind::kAllReduce) continue;
      const auto* group = std::get_if<ir::AxisGroup>(&op.as<ir::CollectiveAttrs>().group);
      if (group != nullptr && group->axes == ir::Axes{"dp"}) of_dp.push_back(o);
    }
    if (of_dp.size() < 2) continue;
    fragment.launches[of_dp[1]].stream = StreamId(7);
    fragment.launches[of_dp[1]].waits.clear();
    const std::string all = join(verify(program).findings, "\n");
    CAPTURE(all);
    CHECK(all.find(fmt::format("op {} (all_reduce) may start before op {} has ended, both with the "
                               "devices of dp: their order must be the same on all",
                               of_dp[1], of_dp[0])) != std::string::npos);
    return;
  }
  FAIL("no two sums over dp in one fragment");
}

TEST_CASE("gradients lie where the optimizer takes them for the parameter's") {
  Program program = make_pipeline({.ranks = 1, .microbatches = 2});
  ir::Module module;
  for (const char* layer : {"1.0", "2.0"}) {
    ir::State state;
    state.name = std::string("w") + layer;
    state.parameter = module.add_state(state);
    state.kind = ir::StateKind::kGradient;
    state.name = std::string("g") + layer;
    module.add_state(state);
  }
  const VerifyOptions options{.module = &module};
  REQUIRE(verify(program, options).sound());
  std::vector<Buffer*> views;
  for (Buffer& buffer : program.ranks[0].buffers) {
    if (buffer.name() == "g1.0" || buffer.name() == "g2.0") views.push_back(&buffer);
  }
  REQUIRE(views.size() == 2);
  std::swap(views[0]->storage, views[1]->storage);
  const std::string all = join(verify(program, options).findings, "\n");
  CAPTURE(all);
  CHECK(all.find("op 3 (adamw) takes the elements 0 to 128 of 'grad/0', which are 'g2.0', for "
                 "parameter 0 'w1.0'") != std::string::npos);
}
