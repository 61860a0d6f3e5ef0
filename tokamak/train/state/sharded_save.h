// One checkpoint written by all ranks of a job: it is complete or does not exist, whichever rank
// fails or dies at any moment.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "tokamak/checkpoint/checkpoint_writer.h"
#include "tokamak/comm/communicator.h"

namespace tokamak {

struct ShardedSaveOptions {
  int num_threads = 1;  ///< of each rank
  /// Of the run at its folder: the temporary folders of later attempts are left alone.
  int64_t attempt = 0;
};

/// Construction and commit() are collective. Between them each rank adds what it owns and calls
/// write(), on any thread; every element of every tensor is added by exactly one rank.
class ShardedSave {
 public:
  /// Prepares FOLDER/step-STEP under a temporary name that all ranks share. Throws Error or
  /// SystemError, on all ranks alike, if rank 0 cannot write there.
  ShardedSave(World& world, const std::filesystem::path& folder, int64_t step,
              const ShardedSaveOptions& options = {});

  /// Adds a slice of the tensor `name` of type `global`; see CheckpointWriter. REQUIRES: called in
  /// attempt().
  void add(const std::string& name, const TensorType& global, const Slice& slice,
           TensorSource elements);

  /// Runs a part of this rank's work, such as adding slices, and keeps its exception for commit().
  void attempt(const std::function<void()>& work) noexcept;

  /// Copies this rank's shard to `memory`, which must outlive the save: the State may change on
  /// return. Keeps a failure for commit().
  void copy(BlockMemory& memory) noexcept;

  /// Writes this rank's shard. Keeps a failure for commit().
  void write() noexcept;

  /// Bytes of this rank's shard, once it is written.
  int64_t shard_bytes() const { return shard_bytes_; }

  /// Gives the checkpoint its name and returns it, if every rank has written its shard; else throws
  /// the first rank's failure on every rank and leaves nothing behind. REQUIRES: write() has
  /// returned.
  std::filesystem::path commit(const CheckpointInfo& info);

 private:
  World* world_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::string summary_;
  int64_t shard_bytes_ = 0;
  std::exception_ptr failure_;
};

}  // namespace tokamak
