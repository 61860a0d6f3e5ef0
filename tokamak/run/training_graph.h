// The graphs of a training run: one optimizer step (microbatches, then the update), and validation.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokamak/models/model.h"
#include "tokamak/parallel/distribute.h"

namespace tokamak {

struct OptimizerOptions {
  bool decoupled_decay = true;  ///< AdamW; false: Adam
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double max_norm = 1.0;  ///< global gradient norm; <= 0: no clipping
  std::vector<std::string>
      no_decay;              ///< parameters whose name contains one of these are not decayed
  bool limits_norm = false;  ///< the host writes a limit of the norm for each step
  /// Of the moments; absent: that of the masters. What is asked for as bf16 is rounded
  /// stochastically (docs/numerics.md).
  std::optional<DType> state;
};

struct TrainingGraphOptions {
  int64_t batch = 1;  ///< sequences of a microbatch
  int64_t seq_len = 0;
  DType master = DType::kF32;
  DType compute = DType::kF32;
  bool has_copies = false;  ///< compute copies of masters are State instead of casts
  uint64_t seed = 0;
  int64_t logits_bytes = int64_t{32} << 20U;  ///< of a chunk of the loss
  int64_t logits_multiple = 1;                ///< LmHeadLoss::column_multiple
  bool pads_logits = true;                    ///< on a GPU, to whole tiles
  OptimizerOptions optimizer;
};

/// The State of the graphs that the host writes or reads, by name.
struct StepState {
  StateId tokens;      ///< i32 [B, S]
  StateId labels;      ///< i32 [B, S]; -100 = no label
  StateId positions;   ///< i32 [B, S]: place of each token in its sequence
  StateId rows;        ///< i64 [B]: index of each sequence in the run; invalid without dropout
  StateId loss_scale;  ///< f32 [1]: 1 / label tokens of the global batch
  StateId scalars;     ///< f64 [4]: learning rate, 1 - beta1^t, 1 - beta2^t, step t
  StateId loss;        ///< f64 [1]
  StateId grad_norm;   ///< f64 [1], before clipping
  StateId norm_limit;  ///< f64 [1]: above this norm nothing is updated; invalid without a limit
};

/// Forward and backward of a microbatch over global shapes, as Distributor takes them. Gradients
/// accumulate in State "grad.NAME".
struct GradientGraph {
  StepState state;
  Value loss;
  std::vector<UpdateUnit> units;  ///< one for each parameter
};

/// Over which ranks the gradient norm is found.
struct NormGroups {
  CommGroup sum;  ///< whose squares are summed
  /// Each of whose sums is of equal gradients. Communicators may add in different orders, but all
  /// ranks clip by the same bits: the largest of the sums.
  CommGroup copies;
};

GradientGraph build_gradient_graph(Graph& graph, const ModelSpec& config,
                                   const TrainingGraphOptions& options);

/// Builds what a step does after its microbatches: norm, clipping, AdamW. `loss` may be absent
/// where this rank has none. If the loss or the gradient norm is not finite, every parameter and
/// moment stays as it was. `seed` is of the random bits that round moments.
void build_update(Graph& graph, std::span<const UpdateUnit> units, Value loss,
                  const StepState& state, const OptimizerOptions& options, uint64_t seed,
                  const NormGroups& norm);

/// Builds the units' compute copies from their masters; updates maintain these once they exist.
void build_copies(Graph& graph, std::span<const UpdateUnit> units);

/// Builds the loss without gradients or dropout, for its own batch shape, `options.batch` and
/// `options.seq_len`, in State named "validation.*".
StepState build_validation_graph(Graph& graph, const ModelSpec& config,
                                 const TrainingGraphOptions& options);

}  // namespace tokamak
