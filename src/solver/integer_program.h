// IntegerProgram: minimise costs over variables with bounds, some of them integers, under linear
// rows. A value; HiGHS solves it, where it is there (highs.cc or its twin no_highs.cc).
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace mw::solver {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

class IntegerProgram {
 public:
  struct Variable {
    double cost = 0, lower = 0, upper = kInfinity;
    bool integer = false;
  };
  struct Term {
    int32_t variable;
    double factor;
  };
  // lower <= sum of the terms <= upper.
  struct Row {
    double lower, upper;
    std::vector<Term> terms;
  };

  // Returns the variable's number.
  int32_t add_variable(Variable variable);
  int32_t add_binary(double cost = 0) { return add_variable({cost, 0, 1, true}); }
  // REQUIRES: every variable of the terms is there, none twice.
  void add_row(double lower, double upper, std::vector<Term> terms);

  const std::vector<Variable>& variables() const { return variables_; }
  const std::vector<Row>& rows() const { return rows_; }

 private:
  std::vector<Variable> variables_;
  std::vector<Row> rows_;
};

// What is nearer to the best than this, in proportion, is taken for it.
inline constexpr double kGap = 1e-6;

struct SolveOptions {
  // Of the search tree: then the best found is the answer, on every machine the same. 0: none.
  int32_t most_nodes = 0;
  std::vector<double> start;  // a value a variable, where the search begins; empty: none
};

struct Solution {
  enum class Status {
    kOptimal,     // no more than kGap of the objective above the bound, however small both are
    kFeasible,    // the nodes were used up; `bound` says how far from optimal this may be
    kInfeasible,  // no values satisfy the rows
    kUnbounded,
    kNothing  // the nodes were used up before any values were found
  };
  Status status = Status::kNothing;
  std::vector<double> values;  // of the best found; empty where there is none
  double objective = 0;
  double bound = -kInfinity;  // no values are better than this; -infinity: nothing is known
};

// Throws Error where the build has no solver. Deterministic: no clock ends the search.
Solution solve(const IntegerProgram& program, const SolveOptions& options = {});
// "HiGHS 1.15.1", or "" where there is none.
std::string solver_name();

}  // namespace mw::solver
