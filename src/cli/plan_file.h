// The files that a plan file's "for" names.
#pragma once

#include <string>

#include "base/fs.h"
#include "compile/plan.h"

namespace mw::cli {

// As the plan file says them: relative to its folder, wherever the command runs. Names of models/
// and clusters/ stay as they are.
compile::PlannedStep beside_plan_file(compile::PlannedStep step, const std::string& plan_file);
// And as the command opens them: a relative path that there is in the plan file's folder is that
// file, any other is of the working directory.
compile::PlannedStep from_plan_file(FileSystem& fs, compile::PlannedStep step,
                                    const std::string& plan_file);

}  // namespace mw::cli
