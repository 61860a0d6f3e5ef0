// Writes a checkpoint: every rank writes one shard, and one rank commits. A process killed at any
// moment leaves the previous checkpoint or the new one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tokamak/checkpoint/atomic_folder.h"
#include "tokamak/checkpoint/block_file.h"
#include "tokamak/checkpoint/formats/safetensors.h"
#include "tokamak/checkpoint/manifest.h"
#include "tokamak/checkpoint/tensor_source.h"

namespace tokamak {

/// The bytes of a shard file before it is written: a safetensors header, and tensors that lie
/// elsewhere.
class ShardContents {
 public:
  explicit ShardContents(std::vector<TensorSource> tensors);

  int64_t bytes() const { return layout_.file_bytes; }

  /// The first byte of a tensor in the file, by its index among those given.
  int64_t offset(size_t tensor) const { return layout_.offsets[tensor]; }

  /// Fills `out` with the file's bytes from `first` on; any threads may read at once if the sources
  /// allow it. REQUIRES: `first` and the end of `out` are multiples of 8 or the file's end.
  void read(int64_t first, std::span<std::byte> out) const;

 private:
  std::vector<TensorSource> tensors_;
  SafetensorsLayout layout_;
  /// The first byte of each tensor that has any, in their order in the file, and its index.
  std::vector<std::pair<int64_t, size_t>> begins_;
};

struct CheckpointWriterOptions {
  int rank = 0;  ///< rank 0's writer cleans up what dead jobs left
  /// It is unique to this attempt and equal on all ranks; a single rank may leave it empty.
  std::string token;
  /// The unit of verification on load.
  int64_t chunk_bytes = int64_t{4} << 20;
  /// Threads that read, hash and write this rank's shard. If there are several, they call
  /// TensorSource::read at once.
  int num_threads = 1;
};

class CheckpointWriter {
 public:
  /// Writes FOLDER/step-STEP, at first under a temporary name. Touches no disk.
  CheckpointWriter(const std::filesystem::path& folder, int64_t step,
                   const CheckpointWriterOptions& options = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Rank 0 removes what all ranks wrote and did not commit, so no rank may write after that.
  ~CheckpointWriter();

  /// Adds a whole tensor, which must live until finish_shard().
  void add(TensorSource tensor);

  /// Adds a slice of the tensor `name` of type `global`. `elements` are those of the slice, in
  /// order, whatever their own name and dims. Exactly one rank adds each element of a tensor.
  void add(const std::string& name, const TensorType& global, const Slice& slice,
           TensorSource elements);

  /// Copies the shard to host memory, from which finish_shard() writes it: what was added may
  /// change once this returns. `memory` grows if it is too small, and must outlive the writer.
  void copy_shard(BlockMemory& memory);

  /// Writes, hashes and syncs this rank's shard, once. Throws Error where the folder cannot be
  /// written, and SystemError (disk full, I/O error). A rank that holds nothing writes no shard,
  /// and its summary names no file.
  ShardSummary finish_shard();

  /// Writes the manifest, gives the folder its name and returns that. Rank 0 calls it with all
  /// ranks' summaries once all shards are finished.
  std::filesystem::path commit(std::span<const ShardSummary> shards, const CheckpointInfo& info);

 private:
  struct Part {
    TensorType global;
    ShardPiece piece;
  };

  int64_t block_bytes() const;
  void close_entries();
  void make_folder() const;

  AtomicFolder folder_;
  int64_t step_;
  CheckpointWriterOptions options_;
  std::vector<TensorSource> entries_;
  std::vector<Part> parts_;
  std::unique_ptr<ShardContents> contents_;  // once nothing is added any more
  const std::byte* copy_ = nullptr;          // of the shard, in host memory
  bool finished_ = false;
  bool committed_ = false;
};

/// Returns "step-20" for step 20.
std::string step_folder_name(int64_t step);

}  // namespace tokamak
