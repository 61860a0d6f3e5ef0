// What failures and checkpoints leave of a run's time. Formulas: docs/pricing.md.
#pragma once

namespace tokamak::price {

/// Seconds; rate in failures a second of the whole job.
struct FailureModel {
  double failures_per_s = 0.0;
  double stall_s = 0.0;  ///< a checkpoint holds the step up so long
  double detect_s = 0.0;
  double restart_s = 0.0;  ///< schedule, start and load
  double durable_s = 0.0;  ///< from the stall to a checkpoint that survives
};

/// Useful over all time, with a checkpoint after every `interval_s` of useful work.
double goodput(const FailureModel& model, double interval_s);

/// The interval with the greatest goodput; at least `durable_s`.
double best_interval_s(const FailureModel& model);

}  // namespace tokamak::price
