// Small dense systems. Private to room calibrate.
#pragma once

#include <vector>

namespace mw::calibrate {

using Matrix = std::vector<std::vector<double>>;

// Inverse of a symmetric positive definite matrix, by Cholesky. CheckFailure where it is not.
Matrix inverse(const Matrix& a);

}  // namespace mw::calibrate
