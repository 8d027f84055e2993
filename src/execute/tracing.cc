#include "execute/tracing.h"

#include "ops/op_def.h"
#include "pipeline/trace_category.h"

namespace mw::execute {
namespace {

using trace::Category;
using trace::MemoryCategory;

// What spans of a command have in common.
trace::Span span_of(const pipeline::Command& command, size_t index) {
  trace::Span span;
  span.command = static_cast<int32_t>(index);
  span.stage = command.action.stage;
  if (command.kind == pipeline::Command::Kind::kLoad) {
    span.microbatch = MicrobatchId(command.microbatch);
  } else if (command.action.stage.valid()) {
    span.microbatch = MicrobatchId(command.action.first);
  }
  return span;
}

Category category_of(Instruction::Kind op) {
  switch (op) {
    case Instruction::Kind::kCollective:
    case Instruction::Kind::kStart: return Category::kComm;
    case Instruction::Kind::kFinish: return Category::kWait;
    default: return Category::kCompute;
  }
}

trace::Span span_template(const BoundProgram& program, const Instruction& instruction,
                          trace::NameTable& names) {
  const pipeline::Command& command = program.command(instruction);
  trace::Span span = span_of(command, static_cast<size_t>(instruction.command));
  switch (instruction.kind) {
    case Instruction::Kind::kKernel:
    case Instruction::Kind::kCollective:
    case Instruction::Kind::kStart:
    case Instruction::Kind::kFinish:
    case Instruction::Kind::kAlias: {
      const pipeline::Fragment& fragment = program.fragment(instruction);
      const ir::Op& op = program.op(instruction);
      span.category = category_of(instruction.kind);
      span.name = names.intern(ir::op_name(op.kind));
      span.stream = fragment.launches[static_cast<size_t>(instruction.op)].stream;
      if (instruction.kind == Instruction::Kind::kKernel && ops::op_def(op.kind).cost != nullptr) {
        span.flops = Flops(ops::cost_of(fragment.graph, op).flops);
      }
      break;
    }
    case Instruction::Kind::kLoad:
      span.category = Category::kIo;
      span.name = names.intern("load " + command.name.str());
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

ProgramTrace::ProgramTrace(const BoundProgram& program, trace::NameTable& names)
    : program_(program),
      lives_(pipeline::buffer_lives(
          *program.program,
          static_cast<size_t>(program.rank_program - program.program->ranks.data()))),
      step_name_(names.intern("step")) {
  instructions_.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions)
    instructions_.push_back(span_template(program, instruction, names));
  const std::vector<pipeline::Command>& commands = program.rank_program->commands;
  spans_needed_ = static_cast<int64_t>(instructions_.size()) + 1;  // and the step's own
  samples_needed_ =
      trace::kMemoryCategories + static_cast<int64_t>(lives_.born.size() + lives_.died.size());
  for (size_t c = 0; c < commands.size(); ++c) {
    calls_.push_back(span_of(commands[c], c));
    workspace_.push_back(0);
    if (commands[c].kind != pipeline::Command::Kind::kCall) continue;
    const pipeline::Fragment& fragment = program.program->fragments[commands[c].fragment.index()];
    calls_[c].category = Category::kCall;
    calls_[c].name = names.intern(pipeline::call_name(commands[c], fragment));
    calls_[c].stream = StreamId(0);
    workspace_[c] = pipeline::workspace_end(fragment);
    ++spans_needed_;
    samples_needed_ += 2;
  }
}

void ProgramTrace::begin(trace::Recorder& recorder, Seconds now, int64_t run, int64_t ranks) {
  recorder_ = &recorder;
  run_ = run;
  ranks_ = ranks;
  begin_ = now;
  next_born_ = next_died_ = 0;
  alive_ = {};
  for (size_t c = 0; c < pipeline::kCategories; ++c) {
    alive_[static_cast<size_t>(pipeline::trace_category(static_cast<pipeline::Category>(c)))] +=
        lives_.fixed[c];
  }
  for (int c = 0; c < trace::kMemoryCategories; ++c) {
    recorder_->record(trace::MemorySample{
        {}, now, static_cast<MemoryCategory>(c), Bytes(alive_[static_cast<size_t>(c)])});
  }
}

void ProgramTrace::before(uint32_t instruction, Seconds now) {
  if (!starts_command(instruction)) return;
  const int32_t command = program_.instructions[instruction].command;
  call_begin_ = now;
  change(lives_.born, next_born_, 1, command, now);
  sample_workspace(command, now, true);
}

void ProgramTrace::after(uint32_t instruction, Seconds start, Seconds end, Bytes bytes) {
  if (program_.instructions[instruction].kind != Instruction::Kind::kAlias)
    recorder_->record(finished(instruction, start, end, bytes));
  if (!ends_command(instruction)) return;
  const int32_t command = program_.instructions[instruction].command;
  trace::Span call = calls_[static_cast<size_t>(command)];
  if (call.name.valid()) {
    call.start = call_begin_;
    call.duration = end - call_begin_;
    recorder_->record(call);
  }
  sample_workspace(command, end, false);
  change(lives_.died, next_died_, -1, command, end);
}

void ProgramTrace::end(Seconds now, Bytes bytes) {
  trace::Span step;
  step.name = step_name_;
  step.category = Category::kStep;
  step.start = begin_;
  step.duration = now - begin_;
  step.bytes = bytes;
  step.command = static_cast<int32_t>(run_);
  recorder_->record(step);
}

bool ProgramTrace::starts_command(uint32_t i) const {
  const std::vector<Instruction>& list = program_.instructions;
  return i == 0 || list[i - 1].command != list[i].command;
}

bool ProgramTrace::ends_command(uint32_t i) const {
  const std::vector<Instruction>& list = program_.instructions;
  return i + 1 == list.size() || list[i + 1].command != list[i].command;
}

trace::Span ProgramTrace::finished(uint32_t i, Seconds start, Seconds end, Bytes bytes) const {
  const Instruction& instruction = program_.instructions[i];
  trace::Span span = instructions_[i];
  span.start = start;
  span.duration = end - start;
  span.bytes = bytes;
  if (instruction.kind == Instruction::Kind::kPublish)
    span.flow_out = message_number(instruction, program_, run_, ranks_);
  if (instruction.kind == Instruction::Kind::kReceive)
    span.flow_in = message_number(instruction, program_, run_, ranks_);
  return span;
}

void ProgramTrace::change(const std::vector<pipeline::LiveBytes>& list, size_t& next, int sign,
                          int32_t command, Seconds now) {
  for (; next < list.size() && list[next].command <= command; ++next) {
    const MemoryCategory category = pipeline::trace_category(list[next].category);
    int64_t& alive = alive_[static_cast<size_t>(category)];
    alive += sign * list[next].bytes;
    recorder_->record(trace::MemorySample{{}, now, category, Bytes(alive)});
  }
}

void ProgramTrace::sample_workspace(int32_t command, Seconds now, bool alive) {
  const int64_t bytes = workspace_[static_cast<size_t>(command)];
  if (bytes == 0) return;
  recorder_->record(
      trace::MemorySample{{}, now, MemoryCategory::kWorkspace, Bytes(alive ? bytes : 0)});
}

}  // namespace mw::execute
