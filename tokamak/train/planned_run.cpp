#include "tokamak/train/planned_run.h"

#include <algorithm>

#include <fmt/format.h>

namespace tokamak {

PlannedRun::PlannedRun(const ModelSpec& config, const RunShape& shape, const Target& target)
    : config_(config), shape_(shape) {
  Graph training(states_);
  step_ = build_training_graph(training, config_, shape_.training);
  Graph validation(states_);
  if (shape_.validation)
    validation_step_ = build_validation_graph(validation, config_, *shape_.validation);
  layout_ = lay_out(states_);
  plan_ = compile(training, layout_, {.recompute = shape_.recompute, .target = target});
  if (shape_.validation) validation_plan_ = compile(validation, layout_, {.target = target});
}

int64_t PlannedRun::peak_bytes() const {
  int64_t total = 0;
  for (size_t a = 0; a < kNumArenas; ++a) {
    total +=
        std::max(plan_->arena_bytes[a], validation_plan_ ? validation_plan_->arena_bytes[a] : 0);
  }
  return total;
}

std::string memory_table(const PlannedRun& run) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  std::string text;
  const auto line = [&](std::string_view owner, int64_t bytes) {
    text += fmt::format("  {:<28}{:>16} bytes {:>10.3f} GiB\n", owner, bytes,
                        static_cast<double>(bytes) / kGiB);
  };
  int64_t listed = 0;
  for (const MemoryRow& row : run.plan().memory) {
    line(row.owner, row.bytes);
    listed += row.bytes;
  }
  if (run.peak_bytes() > listed) line("validation beyond training", run.peak_bytes() - listed);
  line("peak (planned = allocated)", run.peak_bytes());
  return text;
}

}  // namespace tokamak
