#include "calibrate/linear.h"

#include <cmath>

#include "base/error.h"

namespace mw::calibrate {

Matrix inverse(const Matrix& a) {
  const size_t n = a.size();
  Matrix lower(n, std::vector<double>(n, 0));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (size_t k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
      MW_CHECK(i != j || sum > 0, "row {} of {}: {} is not positive", i, n, sum);
      lower[i][j] = i == j ? std::sqrt(sum) : sum / lower[j][j];
    }
  }
  Matrix result(n, std::vector<double>(n, 0));
  for (size_t column = 0; column < n; ++column) {
    std::vector<double> x(n, 0);
    for (size_t i = 0; i < n; ++i) {
      double sum = i == column ? 1 : 0;
      for (size_t k = 0; k < i; ++k) sum -= lower[i][k] * x[k];
      x[i] = sum / lower[i][i];
    }
    for (size_t i = n; i-- > 0;) {
      double sum = x[i];
      for (size_t k = i + 1; k < n; ++k) sum -= lower[k][i] * result[k][column];
      result[i][column] = sum / lower[i][i];
    }
  }
  return result;
}

}  // namespace mw::calibrate
