#include "execute/tracing.h"

#include "ops/op_def.h"

namespace mw::execute {
namespace {

using trace::Category;

trace::Span span_template(const BoundProgram& program, const Instruction& instruction,
                          trace::NameTable& names) {
  const pipeline::Command& command = program.command(instruction);
  trace::Span span;
  span.command = instruction.command;
  span.stage = command.action.stage;
  if (command.kind == pipeline::Command::Kind::kLoad) {
    span.microbatch = MicrobatchId(command.microbatch);
  } else if (command.action.stage.valid()) {
    span.microbatch = MicrobatchId(command.action.first);
  }
  switch (instruction.kind) {
    case Instruction::Kind::kKernel:
    case Instruction::Kind::kCollective:
    case Instruction::Kind::kAlias: {
      const pipeline::Fragment& fragment = program.fragment(instruction);
      const ir::Op& op = program.op(instruction);
      span.category =
          instruction.kind == Instruction::Kind::kCollective ? Category::kComm : Category::kCompute;
      span.name = names.intern(ir::op_name(op.kind));
      span.stream = fragment.launches[static_cast<size_t>(instruction.op)].stream;
      if (instruction.kind == Instruction::Kind::kKernel && ops::op_def(op.kind).cost != nullptr) {
        span.flops = Flops(ops::cost_of(fragment.graph, op).flops);
      }
      break;
    }
    case Instruction::Kind::kLoad:
      span.category = Category::kIo;
      span.name = names.intern("load " + command.name);
      break;
    case Instruction::Kind::kAcquire:
    case Instruction::Kind::kPublish:
    case Instruction::Kind::kReceive:
    case Instruction::Kind::kRelease:
      span.category = Category::kWait;
      span.name = names.intern(pipeline::to_string(command.kind));
      break;
  }
  return span;
}

// Unlike for every message of a trace. The channel's sequences are below 2^24 in a run.
int64_t message_number(const Instruction& instruction, const BoundProgram& program, int64_t run,
                       int64_t ranks) {
  const int64_t producer = instruction.ring->channel->producer().value;
  const auto channels = static_cast<int64_t>(program.program->channels.size());
  return (((run * channels) + program.command(instruction).channel) * ranks + producer) *
             (int64_t{1} << 24) +
         instruction.sequence;
}

}  // namespace

std::vector<trace::Span> span_templates(const BoundProgram& program, trace::NameTable& names) {
  std::vector<trace::Span> spans;
  spans.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    spans.push_back(span_template(program, instruction, names));
  }
  return spans;
}

trace::Span finish_span(trace::Span span, const Instruction& instruction,
                        const BoundProgram& program, Seconds start, Seconds end, Bytes bytes,
                        int64_t run, int64_t ranks) {
  span.start = start;
  span.duration = end - start;
  span.bytes = bytes;
  if (instruction.kind == Instruction::Kind::kPublish)
    span.flow_out = message_number(instruction, program, run, ranks);
  if (instruction.kind == Instruction::Kind::kReceive)
    span.flow_in = message_number(instruction, program, run, ranks);
  return span;
}

}  // namespace mw::execute
