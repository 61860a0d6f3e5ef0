#include "tokamak/run/flops.h"

namespace tokamak {
namespace {

double flops_with_keys(const FlopsShape& shape, double keys) {
  const auto matmul = static_cast<double>(shape.parameters - shape.lookup_parameters);
  const auto pair = static_cast<double>(shape.layers * shape.heads) *
                    static_cast<double>(shape.head_dim_qk + shape.head_dim_v);
  return 6.0 * matmul + 6.0 * pair * keys;
}

// Returns the FLOPs of all matmuls of one token, forward and backward.
double product_flops(const ModelSpec& m, double keys) {
  const auto matrices =
      static_cast<double>(count_parameters(m).block_matrices + m.dim * m.vocab_size);
  const auto pairs = static_cast<double>(m.num_layers * m.num_heads * m.head_dim);
  return 6.0 * (matrices + 2.0 * pairs * keys);
}

}  // namespace

FlopsShape flops_shape(const ModelSpec& model, int64_t seq_len) {
  const ParameterCount count = count_parameters(model);
  return {.parameters = count.total,
          .lookup_parameters = count.embedding,
          .layers = model.num_layers,
          .heads = model.num_heads,
          .head_dim_qk = model.head_dim,
          .head_dim_v = model.head_dim,
          .seq_len = seq_len};
}

double flops_per_token(const FlopsShape& shape) {
  return flops_with_keys(shape, static_cast<double>(shape.seq_len));
}

double causal_flops_per_token(const FlopsShape& shape) {
  return flops_with_keys(shape, 0.5 * static_cast<double>(shape.seq_len + 1));
}

double nemo_flops_per_token(const ModelSpec& model, int64_t seq_len) {
  return product_flops(model, static_cast<double>(seq_len));
}

double megatron_flops_per_token(const ModelSpec& model, int64_t seq_len) {
  return product_flops(model, 0.5 * static_cast<double>(seq_len));
}

}  // namespace tokamak
