// One checkpoint written by all ranks of a job: there whole or not at all, whichever rank fails or
// dies at whatever moment.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "tokamak/checkpoint/checkpoint_writer.h"
#include "tokamak/comm/communicator.h"

namespace tokamak {

/// Construction and commit() are collective. Between them each rank adds what it owns and calls
/// write(), on any thread; every element of every tensor is added by exactly one rank.
class ShardedSave {
 public:
  /// Prepares FOLDER/step-STEP under a temporary name that all ranks share. Throws Error, on all
  /// ranks alike, where rank 0 cannot write there.
  ShardedSave(World& world, const std::filesystem::path& folder, int64_t step);

  /// A slice of the tensor `name` of type `global`; see CheckpointWriter. REQUIRES: called in
  /// attempt().
  void add(const std::string& name, const TensorType& global, const Slice& slice,
           TensorSource elements);

  /// Runs a part of this rank's work, as adding its slices; what it throws is kept for commit().
  void attempt(const std::function<void()>& work) noexcept;

  /// Writes this rank's shard. What fails is kept for commit().
  void write() noexcept;

  /// Gives the checkpoint its name, which is returned, if every rank has written its shard; else
  /// throws on every rank what the first of them met, and nothing is left. REQUIRES: write() has
  /// returned.
  std::filesystem::path commit(const CheckpointInfo& info);

 private:
  World* world_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::string summary_;
  std::exception_ptr failure_;
};

}  // namespace tokamak
