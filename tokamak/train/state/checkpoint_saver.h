// Saves checkpoints of a job, at once or while training goes on. A save that fails leaves the run
// going.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "tokamak/checkpoint/block_file.h"
#include "tokamak/comm/communicator.h"
#include "tokamak/train/state/snapshot.h"

namespace tokamak {

struct CheckpointSaverOptions {
  std::filesystem::path folder;  ///< holds step-N
  int keep_latest_k = 10;        ///< 0 = all
  /// Shards are written by threads from a copy in host memory.
  bool in_background = false;
  /// The device writes that copy itself, at the rate of its link.
  bool pins_copy = false;
  int num_threads = 1;    ///< that copy, hash and write this rank's shard
  int ranks_of_host = 1;  ///< that share its memory
  /// Failed saves in a row after which the run ends.
  int max_failed_saves = 3;
  /// From a failed save to the next attempt; doubled with each further failure.
  std::chrono::duration<double> retry_after{10.0};
  int64_t attempt = 0;  ///< of the run at its folder (run_folder.h); 0 = not counted
  /// On rank 0: throws where another process has taken the run's folder since.
  std::function<void()> fence;
  std::function<void(const std::string& text, const std::string& level)> say;
};

/// save() and finish() are collective; a failure is met alike on all ranks.
///
/// In the background a save has three parts. Threads first copy the shard to host memory, while
/// forward and backward only read what they copy; the update waits for that (await_copy). Where the
/// device has memory to spare, State is copied there first, and nothing waits. Then they hash and
/// write the copy. Once all ranks have, a thread of rank 0 writes the manifest and gives
/// the checkpoint its name. No call to a disk is made by the calling thread.
class CheckpointSaver {
 public:
  CheckpointSaver(World& world, CheckpointSaverOptions options);
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  /// Gives up a save that has not ended.
  ~CheckpointSaver();

  /// Takes what a save in the background needs, so that the first one is as fast as later ones: the
  /// pages of the copy are taken by a thread while training goes on. Without enough host memory
  /// saves are not made in the background; rank 0 says so. Does nothing again. Collective.
  void prepare(const StateAccess& access, std::span<const TensorPiece> pieces);

  /// Waits for the previous save, starts one, and waits for it too unless it runs in the
  /// background. A failed save is reported and its files are removed; after max_failed_saves
  /// failures in a row the next one throws. REQUIRES: await_copy() is called before State changes.
  void save(const StateAccess& access, std::span<const TensorPiece> pieces, const TrainState& state,
            const SnapshotOptions& options);

  /// Whether State must not change yet.
  bool is_copying() const;

  /// Returns once State may change. Not collective.
  void await_copy();

  /// Whether a save goes on in the background, and of which step.
  bool is_saving() const { return pending_ != nullptr; }

  int64_t step() const;

  /// Whether this rank's threads have done, or failed at, the part of the save that is under way;
  /// ranks may differ. If it is so on all ranks, advance() does not wait.
  bool can_advance() const;

  /// Ends that part, and begins the next or ends the save. REQUIRES: is_saving().
  void advance();

  /// Waits for the end of the save in the background, if any.
  void finish();

  /// Runs `work`, which is another way to save and throws alike on all ranks, with the same rules
  /// for failures.
  void attempt(int64_t step, const std::function<void()>& work);

  /// Failed saves since the last good one.
  int num_failed() const { return num_failed_; }

  /// Whether a failed save should be tried again by now. Ranks' clocks differ.
  bool wants_retry() const;

  /// From now to the time for a retry.
  std::chrono::duration<double> retry_wait() const;

 private:
  struct Pending;
  using Clock = std::chrono::steady_clock;

  void begin(const StateAccess& access, std::span<const TensorPiece> pieces,
             const TrainState& state, const SnapshotOptions& options);
  void run(Pending& pending, std::function<void()> part);
  void await_part();
  /// Not before the first save: NCCL and others take their memory in the first steps.
  void take_spare_memory(const StateAccess& access, std::span<const TensorPiece> pieces);
  bool is_superseded(Pending& pending);
  void check_fence(Pending& pending);
  void end(Pending& ended);
  void purge_old(int64_t step);
  void make_room();

  World& world_;
  CheckpointSaverOptions o_;
  BlockMemory copy_;
  Backend* pinned_by_ = nullptr;
  std::unique_ptr<Allocation> spare_;  ///< of the device, for what lies from spared_from_ on
  const std::byte* spared_from_ = nullptr;
  bool has_looked_for_spare_ = false;
  std::jthread page_taker_;
  std::jthread purger_;
  std::unique_ptr<Pending> pending_;
  int num_failed_ = 0;
  Clock::time_point retry_at_;
};

}  // namespace tokamak
