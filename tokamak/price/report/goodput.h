// What failures and checkpoints leave of a run's time. Formulas: docs/pricing.md.
#pragma once

#include "tokamak/price/machine/machine.h"

namespace tokamak::price {

/// Times in seconds; the rate counts failures per second of the whole job.
struct FailureModel {
  double failures_per_s = 0.0;
  double stall_s = 0.0;  ///< delay of a step by a checkpoint
  double detect_s = 0.0;
  double restart_s = 0.0;  ///< schedule, start and load
  double durable_s = 0.0;  ///< from the stall to a checkpoint that survives

  double recovery_s() const { return detect_s + restart_s + durable_s; }
};

/// Returns useful over all time, with a checkpoint after every `interval_s` of useful work.
double goodput(const FailureModel& model, double interval_s);

/// Returns the interval with the greatest goodput; it is at least `durable_s` and one second.
double best_interval_s(const FailureModel& model);

/// A training state and who holds it: each rank has a share, which the first of every
/// `num_replicas` blocks of `block_ranks` ranks writes and all of them load.
struct SavedState {
  double bytes = 0.0;
  int num_ranks = 1;
  int num_replicas = 1;
  int block_ranks = 1;  ///< ranks of a pipeline stage that hold one replica
  /// Whether training continues while a copy in host memory is written.
  bool in_background = true;
  /// Memory of a device that the plan leaves free. A save in the background first copies the state
  /// there if 2 GiB remain.
  double free_bytes = 0.0;
};

/// What saving and loading a training state costs.
struct CheckpointCost {
  double rank_bytes = 0.0;  ///< of one rank
  double copy_s = 0.0;      ///< from device to host, for a save in the background during steps
  double stall_s = 0.0;     ///< the step's delay: what of copy and writing no other work hides
  double durable_s = 0.0;   ///< until it is on storage
  double load_s = 0.0;
  bool has_storage = false;  ///< else storage is unknown and these two count only the copy
};

/// `hidden_s` = until the optimizer next writes what is being copied.
CheckpointCost checkpoint_cost(const SavedState& state, double hidden_s, const Machine& machine);

/// Returns the model of a job of N devices that saves at this cost.
FailureModel failure_model(int num_ranks, const CheckpointCost& cost, const Machine& machine);

/// Returns the fewest spare nodes that suffice 99 times in 100, if each of `num_nodes` is down with
/// probability `down`.
int num_spares(int num_nodes, double down);

}  // namespace tokamak::price
