// The step loop: data, microbatches, update, metrics, validation, checkpoints, signals.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/comm/agreement.h"
#include "tokamak/comm/communicator.h"
#include "tokamak/data/loader.h"
#include "tokamak/run/op_table.h"
#include "tokamak/run/planned_run.h"
#include "tokamak/train/guard/slow_ranks.h"
#include "tokamak/train/guard/step_guard.h"
#include "tokamak/train/lr_schedule.h"
#include "tokamak/train/report/run_log.h"
#include "tokamak/train/report/start_phases.h"
#include "tokamak/train/report/step_profile.h"
#include "tokamak/train/state/run_checkpoints.h"
#include "tokamak/train/validator.h"

namespace tokamak {

/// What a run watches besides its loss.
struct RunGuardOptions {
  GuardOptions steps;
  SlowRankOptions slow_ranks;
  int64_t check_replicas_every = 0;  ///< steps; 0 = never
  bool rolls_divergent_back = false;
};

struct TrainerOptions {
  ModelSpec model;
  RunShape shape;
  DataOptions data;  ///< this rank's rows; rows_per_batch is its microbatch
  int64_t steps = 0;
  std::optional<double> epochs;  ///< in place of steps, and of the schedule's if that has none
  double lr = 0.0;
  LrSchedule schedule;
  std::optional<ValidationOptions> validation;
  CheckpointOptions checkpoint;
  LoggingOptions logging;
  RunGuardOptions guard;
  ProfilingOptions profiling;
  std::string config_digest;
  /// Items that must be the same on all ranks before they begin.
  std::vector<AgreementItem> agreement;
  /// Returns the signal that asks this rank to stop, or 0. It is called before the first step and
  /// after each; if it is absent, nothing stops the rank.
  std::function<int()> stop_signal;
  /// Returns whether this rank was asked for a checkpoint since the last call; absent = never.
  std::function<bool()> save_asked;
  /// Called before each try of a step, for tests that damage State.
  std::function<void(int64_t step, const StateAccess& access)> before_step;
  /// Called before the last checkpoint of the run is written: it is lost if the process ends now.
  std::function<void()> before_last_save;
  /// Longest wait for a peer while training; start and saves use the world's own timeout.
  std::chrono::seconds init_timeout{300};
  std::chrono::seconds train_timeout{100};
  /// What the process has done until it trains; its line follows in the log.
  StartPhases start;
  /// Processes of this run that share the host's memory.
  int64_t ranks_per_host = 1;

  const Mesh& mesh() const { return shape.distribute.mesh; }

  int64_t num_microbatches() const { return data.num_rows / data.rows_per_batch; }
};

/// Trains until `steps`, a stop signal on any rank, or a loss or norm that is not finite (throws
/// Diverged; the last checkpoint stays). A run that finds checkpoints resumes from the newest.
/// Returns whether a signal ended the run before its last step. Collective over
/// `world`, whose size is the mesh's.
bool train(const TrainerOptions& options, World& world, Backend& backend);

}  // namespace tokamak
