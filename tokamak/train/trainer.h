// The step loop: data, microbatches, update, metrics, validation, checkpoints, signals.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/data/loader.h"
#include "tokamak/exec/executor.h"
#include "tokamak/train/hf_model.h"
#include "tokamak/train/log_line.h"
#include "tokamak/train/lr_schedule.h"
#include "tokamak/train/planned_run.h"
#include "tokamak/train/snapshot.h"

namespace tokamak {

struct ValidationOptions {
  DataOptions data;
  int64_t freq = 10;   ///< steps between validations; also after step 1
  int64_t steps = -1;  ///< batches of one validation; -1 = the whole set
};

struct CheckpointOptions {
  bool enable = false;
  std::filesystem::path folder;  ///< holds step-N
  int64_t interval = 500;
  int keep_latest_k = 10;
  int64_t load_step = -1;  ///< -1 = the newest that is complete
  LoadParts parts;
  std::filesystem::path initial_load_path;  ///< empty = new parameters
  bool initial_load_model_only = true;
  bool last_save_model_only = true;
  bool last_save_in_hf = false;
  DType export_dtype = DType::kF32;
  bool first_step = false;
  bool load_only = false;
  bool create_seed = false;  ///< write step-0 and end
  AssetFiles assets;         ///< tokenizer files, for exports
  SpecialIds ids;
};

struct LoggingOptions {
  std::filesystem::path dump_folder;
  int64_t log_freq = 10;
  LogColor color = LogColor::kPlain;
  bool causal_mfu = false;
  std::optional<double> peak_flops;          ///< of this machine, for mfu
  std::filesystem::path tensorboard_folder;  ///< empty = no event files
  std::function<void(const std::string& level, const std::string& text)> print;
};

struct ProfilingOptions {
  std::filesystem::path traces_folder;  ///< empty = no traces
  int64_t freq = 10;
  int64_t active = 1;
  std::filesystem::path memory_folder;  ///< empty = no memory tables
};

struct TrainerOptions {
  ModelSpec model;
  RunShape shape;
  DataOptions data;  ///< rows_per_batch is the microbatch
  int64_t steps = 0;
  double lr = 0.0;
  LrSchedule schedule;
  std::optional<ValidationOptions> validation;
  CheckpointOptions checkpoint;
  LoggingOptions logging;
  ProfilingOptions profiling;
  std::string config_digest;

  int64_t num_microbatches() const { return data.global_batch_size / shape.training.batch; }
};

/// Trains until `steps`, a stop signal, or a loss or norm that is no number (throws Diverged; the
/// last checkpoint stays). A run that finds checkpoints goes on from the newest. Collective over
/// `world`.
void train(const TrainerOptions& options, World& world, Backend& backend);

}  // namespace tokamak
