// The learning rate as torchtitan computes it: warm-up, stable, decay.
#pragma once

#include <cstdint>
#include <optional>

namespace tokamak {

enum class LrDecay { kLinear, kSqrt, kCosine };

/// `lr_scheduler.*` of the config.
struct LrSchedule {
  /// Cut to total_steps.
  int64_t warmup_steps = 200;
  /// `lr_scheduler.total_steps`, else `training.steps`.
  int64_t total_steps = 0;
  /// Share of total_steps that decays, cut to what warm-up leaves; absent = all of that.
  std::optional<double> decay_ratio = std::nullopt;
  LrDecay decay_type = LrDecay::kLinear;
  /// Floor of the decay as a fraction of the peak rate.
  double min_lr_factor = 0.0;
};

/// Returns the factor on `optimizer.lr` after `updates` earlier updates: step s of the log, counted
/// from 1, has lr_factor(schedule, s - 1). One virtual step keeps the last real step off the floor;
/// beyond total_steps the factor keeps its last value. REQUIRES: updates >= 0, total_steps >= 0.
double lr_factor(const LrSchedule& schedule, int64_t updates);

}  // namespace tokamak
