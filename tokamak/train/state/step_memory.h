// The State of a rank's last steps in memory that outlives the rank, so that a job which starts
// again after a death goes on from its last step and not from its last checkpoint.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "tokamak/comm/communicator.h"
#include "tokamak/train/state/snapshot.h"
#include "tokamak/train/state/step_slot.h"

namespace tokamak {

/// The variable that names the folder; `tokamak launch --keep-last-step` sets it.
inline constexpr const char* kStepMemoryVariable = "TOKAMAK_STEP_MEMORY";

/// Returns the host memory that a rank's two copies take, in bytes, with a train state of at most
/// `text_bytes` each.
int64_t bytes_of_step_memory(std::span<const TensorPiece> pieces, int64_t text_bytes);

struct StepMemoryOptions {
  std::filesystem::path folder;  ///< in memory (/dev/shm), of this host, of nobody else
  std::string config_digest;     ///< of the run that wrote the copies
  int64_t text_bytes = 0;        ///< room for the loader's state, as long as the run lasts
  int num_threads = 1;           ///< that copy and hash
  int ranks_of_host = 1;         ///< that share its memory
  /// How long the start may wait for memory; what is not there yet is taken during training.
  std::chrono::milliseconds patience{500};
  std::function<void(const std::string& text, const std::string& level)> say;
};

/// Two mapped files of the rank are written in turns, `rank-R.0` and `rank-R.1`: each has a header
/// with the step, the train state and the hashes of its parts, which is written last. A rank that
/// is killed at any moment leaves one of them whole.
class StepMemory {
 public:
  /// `pieces` must outlive it. Takes the copies of an earlier attempt over. Where memory is short
  /// on any rank, now or when it is taken, nothing is kept, and rank 0 says so. Collective.
  StepMemory(World& world, const StateAccess& access, std::span<const TensorPiece> pieces,
             StepMemoryOptions options);
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;
  ~StepMemory();

  /// Fills all pieces from the newest step that every rank holds whole, and returns the rest of its
  /// state; nothing if there is none. What is passed over gets a line. Collective.
  std::optional<TrainState> restore();

  /// Begins to copy the State of a step, over the older of both copies. Other threads go on with
  /// that. Steps are left out until all ranks have taken their memory; collective until then.
  /// REQUIRES: seal() on all ranks since the last call, and await_copy() before State changes.
  void keep(const TrainState& state);

  bool is_copying() const;

  /// Returns once State may change. Not collective.
  void await_copy();

  /// Returns once the copy that was begun last is whole on this rank; throws what it failed of.
  void seal();

  /// Makes both copies of this rank worthless: what they hold must not be gone back to.
  void forget();

 private:
  struct Taking;
  struct Work;

  std::string make_identity() const;
  std::filesystem::path path_of(size_t slot) const;
  void open();
  std::string open_slots();
  void take_memory(Taking& taking, const std::stop_token& stop) const;
  bool drop_if_lacking(const std::vector<std::string>& answers);
  bool is_ready();
  uint64_t copy_to(std::byte* data, Work& work) const;
  uint64_t load_from(const std::byte* data) const;
  void clear_state() const;
  std::vector<int64_t> common_steps();

  World& world_;
  StateAccess access_;
  std::span<const TensorPiece> pieces_;
  StepMemoryOptions o_;
  std::string identity_;
  std::array<std::unique_ptr<StepSlot>, 2> slots_;  // both or none
  std::unique_ptr<Taking> taking_;
  bool is_ready_ = false;
  size_t next_ = 0;
  std::unique_ptr<Work> work_;
};

}  // namespace tokamak
