// Model FLOPs per trained token, the numerator of tflops and mfu. Every project counts differently.
#pragma once

#include <cstdint>

#include "tokamak/models/model_spec.h"

namespace tokamak {

/// The sizes that the count needs.
struct FlopsShape {
  /// Every parameter once; a tied head counts once.
  int64_t parameters = 0;
  /// Parameters that are only looked up (token table unless tied to the head, position table).
  int64_t lookup_parameters = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t head_dim_qk = 0;
  int64_t head_dim_v = 0;
  int64_t seq_len = 0;
};

FlopsShape flops_shape(const ModelSpec& model, int64_t seq_len);

/// Counts forward and backward, every query against every key, as torchtitan does:
/// 6 (N - N_lookup) + 6 L H (d_qk + d_v) T.
double flops_per_token(const FlopsShape& shape);

/// Counts only the keys that a causal query sees: (T + 1) / 2 on average in place of T.
double causal_flops_per_token(const FlopsShape& shape);

/// Counts as NeMo 24.09 prints, only matmuls and every query against every key:
/// 12 L h^2 (1 + g / a + T / h) + 6 c L h f + 6 h V with c = 3 matmuls of a gated MLP, else 2.
double nemo_flops_per_token(const ModelSpec& model, int64_t seq_len);

/// Counts as Megatron-LM's num_floating_point_operations: the same with half the keys.
double megatron_flops_per_token(const ModelSpec& model, int64_t seq_len);

}  // namespace tokamak
