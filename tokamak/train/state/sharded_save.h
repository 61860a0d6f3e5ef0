// One checkpoint written by all ranks of a job: it is complete or does not exist, whichever rank
// fails or dies at any moment.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tokamak/checkpoint/checkpoint_writer.h"
#include "tokamak/comm/communicator.h"

namespace tokamak {

struct ShardedSaveOptions {
  int num_threads = 1;  ///< of each rank
  /// Of the run at its folder: the temporary folders of later attempts are left alone.
  int64_t attempt = 0;
};

/// Construction, share() and conclude() are collective and touch no disk. In between each rank adds
/// what it owns and calls write(), and later name(), on any thread; every element of every tensor
/// is added by exactly one rank.
class ShardedSave {
 public:
  /// Chooses the temporary name of FOLDER/step-STEP that all ranks share.
  ShardedSave(World& world, const std::filesystem::path& folder, int64_t step,
              const ShardedSaveOptions& options = {});

  /// Adds a slice of the tensor `name` of type `global`; see CheckpointWriter. REQUIRES: called in
  /// attempt().
  void add(const std::string& name, const TensorType& global, const Slice& slice,
           TensorSource elements);

  /// Runs a part of this rank's work, such as adding slices, and keeps its exception for share().
  void attempt(const std::function<void()>& work) noexcept;

  /// Copies this rank's shard to `memory`, which must outlive the save: the State may change on
  /// return. Keeps a failure for share().
  void copy(BlockMemory& memory) noexcept;

  /// Writes this rank's shard. Keeps a failure for share().
  void write() noexcept;

  /// Bytes of this rank's shard, once it is written.
  int64_t shard_bytes() const { return shard_bytes_; }

  /// Tells rank 0 what every rank has written. Throws the first rank's failure on every rank and
  /// leaves nothing behind. REQUIRES: write() has returned.
  void share();

  /// Gives the checkpoint its name, on rank 0; other ranks have nothing to do. Keeps a failure for
  /// conclude(). REQUIRES: share() has returned.
  void name(const CheckpointInfo& info) noexcept;

  /// Returns the checkpoint's folder, or throws rank 0's failure on every rank. REQUIRES: name()
  /// has returned.
  std::filesystem::path conclude();

  /// The three together.
  std::filesystem::path commit(const CheckpointInfo& info);

 private:
  World* world_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::string summary_;
  std::vector<std::string> summaries_;  ///< of all ranks
  std::filesystem::path path_;
  int64_t shard_bytes_ = 0;
  std::exception_ptr failure_;
};

}  // namespace tokamak
