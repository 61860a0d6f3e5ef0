// Saves checkpoints of a job, at once or while training goes on.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "tokamak/comm/communicator.h"
#include "tokamak/train/state/snapshot.h"

namespace tokamak {

struct CheckpointSaverOptions {
  std::filesystem::path folder;  ///< holds step-N
  int keep_latest_k = 10;        ///< 0 = all
  /// Shards are written by a thread from a copy in host memory.
  bool in_background = false;
  std::function<void(const std::string& text)> say;  ///< on rank 0
};

/// All functions except is_saving() and has_written() are collective. A failed save throws alike on
/// all ranks, from the function that ends it.
class CheckpointSaver {
 public:
  CheckpointSaver(World& world, CheckpointSaverOptions options);
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  /// Gives up a save that has not ended.
  ~CheckpointSaver();

  /// Ends the save before, begins a save, and ends it too unless it goes on in the background.
  /// State may change once this returns.
  void save(const StateAccess& access, std::span<const TensorPiece> pieces, const TrainState& state,
            const SnapshotOptions& options);

  /// Whether a save goes on in the background.
  bool is_saving() const { return pending_ != nullptr; }

  /// Whether this rank's shard of that save is written, or has failed; ranks may differ. If it is
  /// so on all ranks, finish() does not wait.
  bool has_written() const;

  /// Waits for the save in the background, if any, and gives the checkpoint its name.
  void finish();

 private:
  struct Pending;

  World& world_;
  CheckpointSaverOptions o_;
  std::unique_ptr<Pending> pending_;
};

}  // namespace tokamak
