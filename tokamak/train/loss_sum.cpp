#include "tokamak/train/loss_sum.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace tokamak {

int64_t sum_over_rows(World& world, const Mesh& mesh, int64_t mine) {
  return *sum_over_rows(world, mesh, std::optional(mine));
}

std::optional<int64_t> sum_over_rows(World& world, const Mesh& mesh, std::optional<int64_t> mine) {
  if (world.size() == 1) return mine;
  const auto counts = world.all_gather_text(mine ? fmt::format("{}", *mine) : "");
  if (std::ranges::find(counts, "") != counts.end()) return std::nullopt;
  int64_t sum = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (counts_rows(mesh, rank)) sum += std::stoll(counts[rank]);
  }
  return sum;
}

LossSum::LossSum(const PlannedRun& run, const StateAccess& access, Executor& executor,
                 int64_t seq_len)
    : run_(run),
      access_(access),
      executor_(executor),
      inputs_(access, run.validation_step(), share_of(run, seq_len)),
      schedule_(run.validation_plan()->schedule(1)) {}

void LossSum::restart() {
  total_ = 0.0;
  labels_ = 0;
  inputs_.write_loss_scale(1.0F);
}

void LossSum::add(const Batch& batch) {
  inputs_.write_batch(batch, 0);
  for (const ScheduleItem& item : schedule_) executor_.run(item);
  total_ += access_.read<double>(run_.validation_step().loss)[0];
  labels_ += count_labels(batch);
}

}  // namespace tokamak
