#include "solver/integer_program.h"

#include "base/error.h"

namespace mw::solver {

int32_t IntegerProgram::add_variable(Variable variable) {
  MW_CHECK(variable.lower <= variable.upper, "bounds {} to {}", variable.lower, variable.upper);
  variables_.push_back(variable);
  return static_cast<int32_t>(variables_.size()) - 1;
}

void IntegerProgram::add_row(double lower, double upper, std::vector<Term> terms) {
  for (const Term& term : terms) {
    MW_CHECK(term.variable >= 0 && term.variable < static_cast<int32_t>(variables_.size()),
             "variable {} of {}", term.variable, variables_.size());
  }
  rows_.push_back({lower, upper, std::move(terms)});
}

}  // namespace mw::solver
