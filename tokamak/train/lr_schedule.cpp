#include "tokamak/train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tokamak/core/error.h"

namespace tokamak {
namespace {

double remaining(LrDecay type, double progress) {
  switch (type) {
    case LrDecay::kLinear:
      return 1.0 - progress;
    case LrDecay::kSqrt:
      return 1.0 - std::sqrt(progress);
    case LrDecay::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  TOK_CHECK(false, "decay type {}", static_cast<int>(type));
}

int64_t decay_steps(const LrSchedule& schedule, int64_t room) {
  if (!schedule.decay_ratio) return room;
  // nearbyint rounds halves to even, as Python's round() does.
  const double wanted =
      std::nearbyint(static_cast<double>(schedule.total_steps) * *schedule.decay_ratio);
  return std::min(static_cast<int64_t>(wanted), room);
}

}  // namespace

double lr_factor(const LrSchedule& schedule, int64_t updates) {
  TOK_CHECK(updates >= 0 && schedule.total_steps >= 0);
  const int64_t warmup = std::min(schedule.warmup_steps, schedule.total_steps);
  const int64_t decay = decay_steps(schedule, schedule.total_steps - warmup);
  const int64_t decay_start = schedule.total_steps + 1 - decay;
  if (updates < warmup) return static_cast<double>(updates + 1) / static_cast<double>(warmup);
  if (updates < decay_start || decay == 0) return 1.0;
  const double progress =
      static_cast<double>(updates + 1 - decay_start) / static_cast<double>(decay);
  const double floor = schedule.min_lr_factor;
  return floor + (1.0 - floor) * remaining(schedule.decay_type, std::min(progress, 1.0));
}

}  // namespace tokamak
