#include "tokamak/train/step_inputs.h"

#include <cmath>
#include <numeric>
#include <vector>

namespace tokamak {

SequenceShare share_of(const PlannedRun& run, int64_t seq_len) {
  SequenceShare share =
      sequence_share(run.mesh(), run.rank(), seq_len, padded_seq_len(seq_len, run.mesh()),
                     run.shape().distribute.head_and_tail);
  share.num_positions = learned_positions(run.config());
  return share;
}

void StepInputs::write_scalars(double lr, int64_t step, int64_t update,
                               const OptimizerOptions& optimizer) const {
  const auto t = static_cast<double>(update);
  const double scalars[] = {lr, 1.0 - std::pow(optimizer.beta1, t),
                            1.0 - std::pow(optimizer.beta2, t), static_cast<double>(step)};
  if (has(state_.scalars)) access_.write(state_.scalars, std::span<const double>(scalars));
}

void StepInputs::write_norm_limit(double limit) const {
  const double values[] = {limit};
  if (has(state_.norm_limit)) access_.write(state_.norm_limit, std::span<const double>(values));
}

void StepInputs::write_loss_scale(float scale) const {
  const float values[] = {scale};
  if (has(state_.loss_scale)) access_.write(state_.loss_scale, std::span<const float>(values));
}

void StepInputs::write_batch(const Batch& batch, int64_t first_row) const {
  const LocalBatch local = local_batch(batch, share_);
  const auto write = [&](StateId id, const std::vector<int32_t>& values) {
    if (has(id)) access_.write(id, std::span<const int32_t>(values));
  };
  write(state_.tokens, local.tokens);
  write(state_.labels, local.labels);
  write(state_.positions, local.positions);
  if (!has(state_.rows)) return;
  std::vector<int64_t> rows(batch.rows);
  std::iota(rows.begin(), rows.end(), first_row);
  access_.write(state_.rows, std::span<const int64_t>(rows));
}

}  // namespace tokamak
