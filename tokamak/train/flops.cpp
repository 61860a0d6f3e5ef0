#include "tokamak/train/flops.h"

namespace tokamak {
namespace {

double flops_with_keys(const FlopsShape& shape, double keys) {
  const auto matmul = static_cast<double>(shape.parameters - shape.lookup_parameters);
  const auto pair = static_cast<double>(shape.layers * shape.heads) *
                    static_cast<double>(shape.head_dim_qk + shape.head_dim_v);
  return 6.0 * matmul + 6.0 * pair * keys;
}

}  // namespace

double flops_per_token(const FlopsShape& shape) {
  return flops_with_keys(shape, static_cast<double>(shape.seq_len));
}

double causal_flops_per_token(const FlopsShape& shape) {
  return flops_with_keys(shape, 0.5 * static_cast<double>(shape.seq_len + 1));
}

}  // namespace tokamak
