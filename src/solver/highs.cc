// The solver through HiGHS's C interface; its C++ interface has another ABI than ours. The library
// is loaded when the first program is solved, with names of its own: it carries and exports another
// C++ standard library, which must not serve the rest of the process.
#include <dlfcn.h>
#include <interfaces/highs_c_api.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "base/error.h"
#include "solver/integer_program.h"

namespace mw::solver {
namespace {

struct Api {
  decltype(&Highs_create) create;
  decltype(&Highs_destroy) destroy;
  decltype(&Highs_getDoubleInfoValue) getDoubleInfoValue;
  decltype(&Highs_getIntInfoValue) getIntInfoValue;
  decltype(&Highs_getModelStatus) getModelStatus;
  decltype(&Highs_getObjectiveValue) getObjectiveValue;
  decltype(&Highs_getSolution) getSolution;
  decltype(&Highs_passMip) passMip;
  decltype(&Highs_run) run;
  decltype(&Highs_setBoolOptionValue) setBoolOptionValue;
  decltype(&Highs_setDoubleOptionValue) setDoubleOptionValue;
  decltype(&Highs_setIntOptionValue) setIntOptionValue;
  decltype(&Highs_setSolution) setSolution;
  decltype(&Highs_version) version;
};

template <typename Function>
void load(void* module, const char* name, Function& function) {
  function = reinterpret_cast<Function>(module == nullptr ? nullptr : dlsym(module, name));
  if (function != nullptr) return;
  throw_error(
      "an integer program needs HiGHS, which cannot be loaded: {}; run scripts/setup, then build "
      "again",
      dlerror());
}

Api load_api() {
  int mode = RTLD_NOW | RTLD_LOCAL;
#if defined(RTLD_DEEPBIND) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  mode |= RTLD_DEEPBIND;
#endif
  void* module = dlopen(MESHWRIGHT_HIGHS_LIBRARY, mode);
  Api api;
  load(module, "Highs_create", api.create);
  load(module, "Highs_destroy", api.destroy);
  load(module, "Highs_getDoubleInfoValue", api.getDoubleInfoValue);
  load(module, "Highs_getIntInfoValue", api.getIntInfoValue);
  load(module, "Highs_getModelStatus", api.getModelStatus);
  load(module, "Highs_getObjectiveValue", api.getObjectiveValue);
  load(module, "Highs_getSolution", api.getSolution);
  load(module, "Highs_passMip", api.passMip);
  load(module, "Highs_run", api.run);
  load(module, "Highs_setBoolOptionValue", api.setBoolOptionValue);
  load(module, "Highs_setDoubleOptionValue", api.setDoubleOptionValue);
  load(module, "Highs_setIntOptionValue", api.setIntOptionValue);
  load(module, "Highs_setSolution", api.setSolution);
  load(module, "Highs_version", api.version);
  return api;
}

const Api& api() {
  static const Api loaded = load_api();
  return loaded;
}

struct Destroy {
  void operator()(void* highs) const { api().destroy(highs); }
};
using Highs = std::unique_ptr<void, Destroy>;

double bounded(double value) {
  constexpr double kHighsInfinity = 1e30;
  return value == kInfinity ? kHighsInfinity : value == -kInfinity ? -kHighsInfinity : value;
}

void check(HighsInt status, const char* what) {
  if (status == kHighsStatusError) throw RunError(fmt::format("HiGHS failed at {}", what));
}

// HiGHS's tolerances are for costs like 1: it gets them in this unit.
double cost_unit(const IntegerProgram& program) {
  double largest = 0;
  for (const IntegerProgram::Variable& variable : program.variables())
    largest = std::max(largest, std::abs(variable.cost));
  return largest > 0 ? largest : 1;
}

void pass(void* highs, const IntegerProgram& program, double unit) {
  std::vector<double> cost, lower, upper, row_lower, row_upper, values;
  std::vector<HighsInt> kinds, starts, columns;
  for (const IntegerProgram::Variable& variable : program.variables()) {
    cost.push_back(variable.cost / unit);
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
  check(api().passMip(
            highs, static_cast<HighsInt>(cost.size()), static_cast<HighsInt>(row_lower.size()),
            static_cast<HighsInt>(columns.size()), kHighsMatrixFormatRowwise,
            kHighsObjSenseMinimize, 0, cost.data(), lower.data(), upper.data(), row_lower.data(),
            row_upper.data(), starts.data(), columns.data(), values.data(), kinds.data()),
        "reading the program");
}

Solution::Status status_of(HighsInt status, bool has_values) {
  if (status == kHighsModelStatusOptimal) return Solution::Status::kOptimal;
  if (status == kHighsModelStatusInfeasible) return Solution::Status::kInfeasible;
  if (status == kHighsModelStatusUnbounded || status == kHighsModelStatusUnboundedOrInfeasible)
    return Solution::Status::kUnbounded;
  return has_values ? Solution::Status::kFeasible : Solution::Status::kNothing;
}

// HiGHS looks at no row of a program without variables: each is a sum of nothing.
Solution of_no_variables(const IntegerProgram& program) {
  const auto& rows = program.rows();
  const bool satisfied = std::all_of(rows.begin(), rows.end(), [](const IntegerProgram::Row& row) {
    return row.lower <= 0 && 0 <= row.upper;
  });
  Solution solution;
  solution.status = satisfied ? Solution::Status::kOptimal : Solution::Status::kInfeasible;
  if (satisfied) solution.bound = 0;
  return solution;
}

}  // namespace

Solution solve(const IntegerProgram& program, const SolveOptions& options) {
  if (program.variables().empty()) return of_no_variables(program);
  const Highs owner(api().create());
  void* highs = owner.get();
  api().setBoolOptionValue(highs, "output_flag", 0);
  if (options.most_nodes > 0) api().setIntOptionValue(highs, "mip_max_nodes", options.most_nodes);
  api().setDoubleOptionValue(highs, "mip_rel_gap", kGap);
  api().setDoubleOptionValue(highs, "mip_abs_gap", 0);
  api().setIntOptionValue(highs, "threads", 1);  // the same answer every time
  api().setIntOptionValue(highs, "random_seed", 0);
  const double unit = cost_unit(program);
  pass(highs, program, unit);
  if (!options.start.empty()) {
    MW_CHECK(options.start.size() == program.variables().size(), "start of {} for {} variables",
             options.start.size(), program.variables().size());
    check(api().setSolution(highs, options.start.data(), nullptr, nullptr, nullptr),
          "taking the start");
  }
  check(api().run(highs), "solving");

  Solution solution;
  HighsInt primal = 0;
  api().getIntInfoValue(highs, "primal_solution_status", &primal);
  const bool has_values = primal == kHighsSolutionStatusFeasible;
  solution.status = status_of(api().getModelStatus(highs), has_values);
  if (has_values) {
    solution.values.resize(program.variables().size());
    std::vector<double> row_values(program.rows().size());
    check(api().getSolution(highs, solution.values.data(), nullptr, row_values.data(), nullptr),
          "reading the solution");
    solution.objective = api().getObjectiveValue(highs) * unit;
  }
  const auto& variables = program.variables();
  if (std::any_of(variables.begin(), variables.end(), [](const auto& v) { return v.integer; })) {
    api().getDoubleInfoValue(highs, "mip_dual_bound", &solution.bound);
    solution.bound *= unit;
  }
  // HiGHS keeps no bound where it has no integers, or none that are open.
  if (solution.status == Solution::Status::kOptimal && solution.bound == -kInfinity)
    solution.bound = solution.objective;
  return solution;
}

std::string solver_name() { return fmt::format("HiGHS {}", api().version()); }

}  // namespace mw::solver
