// A GPT small enough for the interpreter, trained under a plan: tied embeddings, dropout, four
// blocks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "execute/executor.h"
#include "interpreter_backend.h"

namespace mw {

struct Trained {
  std::vector<float> losses, norms;  // one a step
  // [rank] all states' bytes, in the order of the rank's buffers.
  std::vector<std::vector<std::byte>> states;
};

// Compiled and proved; programs 0 (init) and 1 (train), with post-validation 2 and 3 (validate and
// amend), on threads.
class SmallTraining {
 public:
  // Throws Error where the compiler refuses the plan.
  explicit SmallTraining(const std::string& plan, const execute::ExecutorOptions& options = {},
                         InterpreterBackend::Hook hook = nullptr, double max_norm = 1);

  void initialize();
  void step() { steps(1); }  // the next one
  void steps(int count);     // which run into one another with post-validation
  // Of all steps so far.
  Trained result();

 private:
  const compile::Plan plan_;
  compile::CompiledPlan compiled_;
  InterpreterBackend backend_;
  std::unique_ptr<execute::Executor> executor_;
  Trained trained_;
  int64_t step_ = 0;

  float metric(const char* name, RankId rank) const;
  void flow(int count);
};

Trained train(const std::string& plan, const execute::ExecutorOptions& options = {},
              double max_norm = 1, int steps = 2);

inline constexpr int64_t kSmallBatch = 8;  // sequences a step

}  // namespace mw
