// The solver through HiGHS's C interface; its C++ interface has another ABI than ours.
#include <interfaces/highs_c_api.h>

#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "solver/integer_program.h"

namespace mw::solver {
namespace {

struct Destroy {
  void operator()(void* highs) const { Highs_destroy(highs); }
};
using Highs = std::unique_ptr<void, Destroy>;

double bounded(double value) {
  constexpr double kHighsInfinity = 1e30;
  return value == kInfinity ? kHighsInfinity : value == -kInfinity ? -kHighsInfinity : value;
}

void check(HighsInt status, const char* what) {
  if (status == kHighsStatusError) throw RunError(fmt::format("HiGHS failed at {}", what));
}

void pass(void* highs, const IntegerProgram& program) {
  std::vector<double> cost, lower, upper, row_lower, row_upper, values;
  std::vector<HighsInt> kinds, starts, columns;
  for (const IntegerProgram::Variable& variable : program.variables()) {
    cost.push_back(variable.cost);
    lower.push_back(bounded(variable.lower));
    upper.push_back(bounded(variable.upper));
    kinds.push_back(variable.integer ? kHighsVarTypeInteger : kHighsVarTypeContinuous);
  }
  for (const IntegerProgram::Row& row : program.rows()) {
    row_lower.push_back(bounded(row.lower));
    row_upper.push_back(bounded(row.upper));
    starts.push_back(static_cast<HighsInt>(columns.size()));
    for (const IntegerProgram::Term& term : row.terms) {
      columns.push_back(term.variable);
      values.push_back(term.factor);
    }
  }
  check(Highs_passMip(
            highs, static_cast<HighsInt>(cost.size()), static_cast<HighsInt>(row_lower.size()),
            static_cast<HighsInt>(columns.size()), kHighsMatrixFormatRowwise,
            kHighsObjSenseMinimize, 0, cost.data(), lower.data(), upper.data(), row_lower.data(),
            row_upper.data(), starts.data(), columns.data(), values.data(), kinds.data()),
        "reading the program");
}

Solution::Status status_of(HighsInt status, bool has_values) {
  if (status == kHighsModelStatusOptimal || status == kHighsModelStatusModelEmpty)
    return Solution::Status::kOptimal;
  if (status == kHighsModelStatusInfeasible) return Solution::Status::kInfeasible;
  if (status == kHighsModelStatusUnbounded || status == kHighsModelStatusUnboundedOrInfeasible)
    return Solution::Status::kUnbounded;
  return has_values ? Solution::Status::kFeasible : Solution::Status::kNothing;
}

}  // namespace

Solution solve(const IntegerProgram& program, const SolveOptions& options) {
  const Highs owner(Highs_create());
  void* highs = owner.get();
  Highs_setBoolOptionValue(highs, "output_flag", 0);
  Highs_setDoubleOptionValue(highs, "time_limit", options.time_limit_s);
  Highs_setDoubleOptionValue(highs, "mip_rel_gap", options.relative_gap);
  Highs_setIntOptionValue(highs, "threads", options.threads);
  Highs_setIntOptionValue(highs, "random_seed", 0);
  pass(highs, program);
  if (!options.start.empty()) {
    MW_CHECK(options.start.size() == program.variables().size(), "start of {} for {} variables",
             options.start.size(), program.variables().size());
    check(Highs_setSolution(highs, options.start.data(), nullptr, nullptr, nullptr),
          "taking the start");
  }
  check(Highs_run(highs), "solving");

  Solution solution;
  HighsInt primal = 0;
  Highs_getIntInfoValue(highs, "primal_solution_status", &primal);
  const bool has_values = primal == kHighsSolutionStatusFeasible;
  solution.status = status_of(Highs_getModelStatus(highs), has_values);
  if (has_values) {
    solution.values.resize(program.variables().size());
    std::vector<double> row_values(program.rows().size());
    check(Highs_getSolution(highs, solution.values.data(), nullptr, row_values.data(), nullptr),
          "reading the solution");
    solution.objective = Highs_getObjectiveValue(highs);
  }
  Highs_getDoubleInfoValue(highs, "mip_dual_bound", &solution.bound);
  return solution;
}

std::string solver_name() { return fmt::format("HiGHS {}", Highs_version()); }

}  // namespace mw::solver
