// The solver of a build without HiGHS.
#include "base/error.h"
#include "solver/integer_program.h"

namespace mw::solver {

Solution solve(const IntegerProgram&, const SolveOptions&) {
  throw Error(
      "this build has no integer-program solver; install HiGHS with scripts/setup and build again");
}

std::string solver_name() { return ""; }

}  // namespace mw::solver
