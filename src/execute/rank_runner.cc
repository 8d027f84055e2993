#include "execute/rank_runner.h"

#include "base/clock.h"
#include "base/error.h"
#include "execute/finite.h"
#include "execute/tracing.h"
#include "pipeline/figures.h"

namespace mw::execute {
namespace {

// So far, by the group or the ring that the instruction uses.
Bytes bytes_sent_by(const Instruction& instruction) {
  if (instruction.ring != nullptr) return instruction.ring->channel->bytes_sent();
  if (instruction.collective == nullptr || instruction.collective->group() == nullptr)
    return Bytes(0);
  return instruction.collective->group()->bytes_sent();
}

}  // namespace

void RankRunner::prepare_trace(int which, trace::NameTable& names) {
  const auto program = static_cast<size_t>(which);
  if (traces_.size() <= program) traces_.resize(program + 1);
  if (!traces_[program]) {
    traces_[program] = std::make_unique<ProgramTrace>(context_.program(which), names);
    most_spans_ = std::max(most_spans_, traces_[program]->spans());
    most_samples_ = std::max(most_samples_, traces_[program]->samples());
    recorder_ =
        std::make_unique<trace::Recorder>(context_.device().rank, most_spans_, most_samples_);
  }
  recorder_->clear();
}

Measured RankRunner::run(const RunRequest& request) {
  status_.program.store(request.which, std::memory_order_relaxed);
  status_.run.store(request.run, std::memory_order_relaxed);
  BoundProgram& program = context_.program(request.which);
  Measured measured;
  pipeline::OrderHash order;
  const Bytes sent_before = context_.bytes_sent();
  ProgramTrace* const trace =
      request.traced ? traces_[static_cast<size_t>(request.which)].get() : nullptr;
  if (trace != nullptr)
    trace->begin(*recorder_, steady_clock().now(), request.run, context_.device().mesh->size());
  const auto count = static_cast<uint32_t>(program.instructions.size());
  for (uint32_t i = 0; i < count; ++i) {
    const Instruction& instruction = program.instructions[i];
    status_.progress.store((++started_ << 32) | (i + 1), std::memory_order_relaxed);
    if (stop_.load(std::memory_order_relaxed)) throw comm::Aborted("the run was stopped");
    for (uint32_t p = instruction.first_patch; p < instruction.first_patch + instruction.patches;
         ++p) {
      const Patch& patch = program.patches[p];
      program.pointers[patch.pointer] =
          static_cast<char*>(program.slots[patch.slot]) + patch.offset;
    }
    if (trace != nullptr) {
      const Bytes sent = bytes_sent_by(instruction);
      const Seconds start = steady_clock().now();
      trace->before(i, start);
      run_instruction(program, instruction, request);
      trace->after(i, start, steady_clock().now(), bytes_sent_by(instruction) - sent);
    } else {
      run_instruction(program, instruction, request);
    }
    if (request.check_finite) check_results(program, instruction);
    measured.arena_peak = std::max(measured.arena_peak, Bytes(instruction.arena_end));
    if (instruction.is_op()) {
      ++measured.instructions;
      order.add(instruction.token);
    }
    if (i + 1 != program.repeat.instructions) continue;
    if (request.validated != nullptr && !(*request.validated)())
      measured.end = Measured::End::kStopped;
    if (*program.repeat.amended != 0) {
      MW_CHECK(request.validated != nullptr, "there is no step before that could be amended");
      if (measured.end == Measured::End::kEnded) measured.end = Measured::End::kRepeats;
    }
    if (measured.end == Measured::End::kEnded) continue;
    go_back(program);  // a sender may wait for it
    return measured;
  }
  for (RingUse& use : program.rings) use.ring->next += use.messages;
  measured.bytes_sent = context_.bytes_sent() - sent_before;
  measured.order_hash = order.value();
  measured.scratch = context_.scratch_bytes();
  if (trace != nullptr) trace->end(steady_clock().now(), measured.bytes_sent);
  status_.progress.store(RankStatus::kEnded, std::memory_order_relaxed);
  return measured;
}

void RankRunner::go_back(const BoundProgram& program) const {
  for (const Unread& unread : program.repeat.unread) {
    comm::Channel& channel = *unread.ring->channel;
    if (!unread.received) channel.receive(unread.ring->next + unread.sequence);
    channel.release(unread.ring->next + unread.sequence);
  }
  for (const RingUse& use : program.repeat.messages) use.ring->next += use.messages;
}

void RankRunner::run_instruction(BoundProgram& program, const Instruction& instruction,
                                 const RunRequest& request) {
  void* const* const pointers = program.pointers.data() + instruction.first_pointer;
  const std::span<void* const> operands(pointers, instruction.operands);
  const std::span<void* const> results(pointers + instruction.operands, instruction.results);
  Ring* const ring = instruction.ring;
  switch (instruction.kind) {
    case Instruction::Kind::kKernel:
      instruction.kernel->run(operands, results, context_.scratch());
      break;
    case Instruction::Kind::kCollective:
      instruction.collective->run(operands, results, context_.scratch());
      break;
    case Instruction::Kind::kStart:
      instruction.collective->start(operands, results);
      if (request.check_finite) instruction.collective->finish();  // its results are looked at next
      break;
    case Instruction::Kind::kFinish: instruction.collective->finish(); break;
    case Instruction::Kind::kAlias: break;
    case Instruction::Kind::kLoad: {
      const pipeline::Command& command = program.command(instruction);
      const pipeline::Buffer& buffer = program.rank_program->buffers[command.buffers[0].index()];
      (*request.loader)(command.name, command.microbatch, context_.device().rank, buffer.type(),
                        results[0]);
      break;
    }
    case Instruction::Kind::kAcquire:
      program.slots[instruction.slot] = ring->channel->acquire(ring->next + instruction.sequence);
      break;
    case Instruction::Kind::kPublish:
      ring->channel->publish(ring->next + instruction.sequence);
      break;
    case Instruction::Kind::kReceive:
      // A consumer only reads; kernels take operands without const because in-place ones are
      // written.
      program.slots[instruction.slot] =
          const_cast<void*>(ring->channel->receive(ring->next + instruction.sequence));
      break;
    case Instruction::Kind::kRelease:
      ring->channel->release(ring->next + instruction.sequence);
      break;
  }
}

void RankRunner::check_results(const BoundProgram& program, const Instruction& instruction) const {
  const auto check = [&](const ir::TensorType& type, const void* data, const std::string& label) {
    const auto element = first_non_finite(type.dtype, type.elements(), data);
    if (!element) return;
    throw RunError(fmt::format(
        "'{}' is {} at element {} of {}, the first number of this rank that is not finite", label,
        non_finite_name(type.dtype, data, *element), *element, ir::to_string(type)));
  };
  void* const* const results =
      program.pointers.data() + instruction.first_pointer + instruction.operands;
  if (instruction.kind == Instruction::Kind::kLoad) {
    const pipeline::Command& command = program.command(instruction);
    check(program.rank_program->buffers[command.buffers[0].index()].type(), results[0],
          command.name);
  } else if (instruction.is_op()) {
    const ir::Op& op = program.op(instruction);
    if (may_be_infinite(op)) return;
    const ir::Graph& graph = program.fragment(instruction).graph;
    for (size_t r = 0; r < op.results.size(); ++r) {
      check(graph.type(op.results[r]), results[r], program.label(instruction, op.results[r]));
    }
  }
}

std::string RankRunner::where() const {
  const BoundProgram& program = context_.program(status_.program.load(std::memory_order_relaxed));
  std::string text =
      fmt::format("{} run {}", program.program->name, status_.run.load(std::memory_order_relaxed));
  const uint64_t progress = status_.progress.load(std::memory_order_relaxed);
  if (!RankStatus::runs(progress)) return text;
  const size_t instruction = RankStatus::instruction(progress) - 1;
  // The watchdog may look while the rank goes on to another program.
  if (instruction >= program.instructions.size()) return text;
  return text + ", " + program.describe(program.instructions[instruction]);
}

}  // namespace mw::execute
