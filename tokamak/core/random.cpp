#include "tokamak/core/random.h"

#include <cmath>

#include "tokamak/core/normal_quantile.h"

namespace tokamak {

double normal_quantile(double p) {
  return fixed::normal_quantile(p);
}

double normal_cdf(double z) {
  return 0.5 * std::erfc(-z * 0.7071067811865476);
}

}  // namespace tokamak
