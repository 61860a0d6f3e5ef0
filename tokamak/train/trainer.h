// The step loop: data, microbatches, update, metrics, validation, checkpoints, signals.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/comm/agreement.h"
#include "tokamak/comm/communicator.h"
#include "tokamak/data/loader.h"
#include "tokamak/train/lr_schedule.h"
#include "tokamak/train/planned_run.h"
#include "tokamak/train/run_checkpoints.h"
#include "tokamak/train/run_log.h"
#include "tokamak/train/validator.h"

namespace tokamak {

struct ProfilingOptions {
  std::filesystem::path traces_folder;  ///< empty = no traces
  int64_t freq = 10;
  int64_t active = 1;
  std::filesystem::path memory_folder;  ///< empty = no memory tables
};

struct TrainerOptions {
  ModelSpec model;
  RunShape shape;
  DataOptions data;  ///< this rank's rows; rows_per_batch is its microbatch
  Mesh mesh;
  bool head_and_tail = true;  ///< how context-parallel ranks are dealt tokens
  int64_t steps = 0;
  double lr = 0.0;
  LrSchedule schedule;
  std::optional<ValidationOptions> validation;
  CheckpointOptions checkpoint;
  LoggingOptions logging;
  ProfilingOptions profiling;
  std::string config_digest;
  /// What all ranks must have in common before they begin.
  std::vector<AgreementItem> agreement;
  /// Longest wait for a peer while training; start and saves take the world's own.
  std::chrono::seconds init_timeout{300};
  std::chrono::seconds train_timeout{100};

  int64_t num_microbatches() const { return data.num_rows / data.rows_per_batch; }
};

/// Trains until `steps`, a stop signal on any rank, or a loss or norm that is no number (throws
/// Diverged; the last checkpoint stays). A run that finds checkpoints goes on from the newest.
/// Collective over `world`, whose size is the mesh's.
void train(const TrainerOptions& options, World& world, Backend& backend);

}  // namespace tokamak
