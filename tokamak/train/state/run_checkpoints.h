// A run's checkpoints: those it starts from and those it writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/data/loader.h"
#include "tokamak/train/report/run_log.h"
#include "tokamak/train/state/checkpoint_saver.h"
#include "tokamak/train/state/hf_save.h"
#include "tokamak/train/state/saved_keys.h"
#include "tokamak/train/state/snapshot.h"
#include "tokamak/train/state/step_memory.h"

namespace tokamak {

struct CheckpointOptions {
  bool enable = false;
  std::filesystem::path folder;  ///< holds step-N
  /// Takes the one checkpoint that a run which otherwise saves nothing leaves when it is stopped;
  /// empty: it leaves none.
  std::filesystem::path stopped_folder;
  int64_t interval = 500;
  int keep_latest_k = 10;
  int64_t load_step = -1;  ///< -1 = the newest that is complete
  LoadParts parts;
  std::filesystem::path initial_load_path;  ///< empty = new parameters
  bool initial_load_model_only = true;
  bool last_save_model_only = false;
  bool last_save_in_hf = false;
  DType export_dtype = DType::kF32;
  bool first_step = false;
  bool load_only = false;
  bool create_seed = false;  ///< write step-0 and end
  bool in_background = false;
  bool pins_copy = false;  ///< CheckpointSaverOptions::pins_copy
  int max_failed_saves = 3;
  double retry_s = 10.0;
  std::chrono::seconds timeout{60};     ///< of one call to the file system
  int64_t attempt = 0;                  ///< of the run at its folder
  std::function<void()> fence;          ///< CheckpointSaverOptions::fence
  int num_threads = 1;                  ///< of this rank, that read and write checkpoints
  int ranks_of_host = 1;                ///< that share its memory
  std::filesystem::path memory_folder;  ///< StepMemoryOptions::folder; empty = none is kept
  AssetFiles assets;                    ///< tokenizer files, for exports
  SpecialIds ids;
  KeyValues keys;  ///< learning_keys() of the run

  bool writes() const { return enable && !load_only; }

  /// Whether the run was told to begin before the newest checkpoint.
  bool goes_back() const { return load_step >= 0 || !parts.train_state; }
};

/// Throws Error as RunCheckpoints::begin() would for what a run of `steps` begins from, of which it
/// reads no more than headers. Returns lines that begin() would log. Takes `loader`, which may be
/// null, to the place where the run would go on.
std::vector<std::string> check_begin(const CheckpointOptions& options, const ModelSpec& model,
                                     std::span<const TensorPiece> pieces, int64_t steps,
                                     Loader* loader);

/// All functions are collective and throw alike on all ranks.
class RunCheckpoints {
 public:
  /// `pieces` and the rest must outlive it; `master` is the dtype of the parameters.
  RunCheckpoints(const CheckpointOptions& options, const ModelSpec& model, DType master,
                 const std::string& config_digest, World& world, const StateAccess& access,
                 std::span<const TensorPiece> pieces, const RunLog& log);

  /// Whether the run's checkpoints show that it has done `steps` already. The last may hold the
  /// model only, which is enough to know.
  bool has_done(int64_t steps);

  /// Fills parameters and moments from the last step that is kept in memory, else from the run's
  /// newest checkpoint, or else from given weights or initial values. A checkpoint that was due
  /// before the step in memory and is not there is made up for.
  TrainState begin(uint64_t seed, Loader& loader);

  /// Whether step `state.step` of `steps` must be saved: by the options, because the run is
  /// `stopping`, or because ranks agreed to `retry` a failed save.
  bool is_due(const TrainState& state, int64_t steps, bool stopping, bool retry) const;

  /// Saves if it is due. A save that would wait for one that is still being written is left out
  /// with a line. The last save of a run is tried until it is made or the failures are too many.
  void save_if_due(TrainState& state, int64_t steps, bool stopping, bool retry,
                   const Loader& loader);

  /// Writes step-0.
  void save_seed(TrainState& state, const Loader& loader);

  CheckpointSaver& saver() { return saver_; }

  /// Returns where the last step is kept, or null.
  StepMemory* memory() { return memory_.get(); }

  /// Begins to keep the step in memory. REQUIRES: memory(), and what StepMemory::keep() does.
  void keep_step(TrainState& state, const Loader& loader);

  /// Whether State must not change yet.
  bool is_copying() const;

  /// Returns once State may change. Not collective.
  void await_copies();

 private:
  bool writes() const { return o_.writes(); }

  const std::filesystem::path& folder_of_saves() const {
    return writes() ? o_.folder : o_.stopped_folder;
  }

  /// Whether the newest checkpoint belongs to a run that was told to load as this one is: what was
  /// asked for is done, and the run goes on from there.
  bool newest_is_own() const;

  /// Loads the checkpoint to resume from, if there is one.
  std::optional<TrainState> resume(uint64_t seed);
  std::optional<TrainState> recall(const Loader& loader);
  bool owes_save(int64_t step) const;
  TrainState resume_from(const std::filesystem::path& path, uint64_t seed);
  TrainState load(const CheckpointReader& checkpoint, const LoadParts& parts, uint64_t seed) const;
  void leave_branch(TrainState& state, const Loader& loader);
  void leave_newer(const std::filesystem::path& folder, int64_t first,
                   const std::filesystem::path& kept, const std::filesystem::path& aside) const;
  std::string loaded_since(std::chrono::steady_clock::time_point start) const;
  void take_over(TrainState& state, uint64_t seed, Loader& loader) const;
  void load_weights();
  void describe_model(const std::filesystem::path& folder) const;
  void save(TrainState& state, bool resumable, const Loader& loader);
  void save_last(TrainState& state, bool stopping, const Loader& loader);
  void save_in_hf(const TrainState& state);

  const CheckpointOptions& o_;
  const ModelSpec& model_;
  DType master_;
  std::string config_digest_;
  World& world_;
  StateAccess access_;
  std::span<const TensorPiece> pieces_;
  const RunLog& log_;
  std::string lineage_;                ///< of the checkpoints that it writes
  std::filesystem::path loaded_from_;  ///< by resume()
  bool has_branched_ = false;          ///< that checkpoint has another lineage
  CheckpointSaver saver_;
  std::unique_ptr<StepMemory> memory_;
};

}  // namespace tokamak
