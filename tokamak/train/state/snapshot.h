// Saving and loading the State of a run, on any mesh.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/comm/communicator.h"
#include "tokamak/exec/executor.h"
#include "tokamak/train/state/pieces.h"
#include "tokamak/train/state/sharded_save.h"

namespace tokamak {

/// The part of a checkpoint besides its tensors.
struct TrainState {
  int64_t step = 0;     ///< finished steps
  int64_t updates = 0;  ///< those made by the optimizer, by which Adam corrects its moments
  int64_t tokens_seen = 0;
  int64_t schedule_step = 0;   ///< steps since the schedule of the learning rate began
  uint64_t seed = 0;           ///< all random numbers are functions of it and of the step
  std::string loader;          ///< LoaderState as JSON
  std::string keys;            ///< of a loaded checkpoint's configuration; empty in old ones
  int64_t missing_scales = 0;  ///< delayed scales of this rank that the loaded checkpoint lacks
  std::optional<DType> other_moments;  ///< dtype of the loaded moments where the run has another
};

/// What one checkpoint holds: parameters and, if `resumable`, moments and the train state. A
/// model-only checkpoint casts parameters to `export_dtype`.
struct SnapshotOptions {
  std::string config_digest;
  std::string keys;     ///< of the configuration, by saved_keys.h
  std::string lineage;  ///< lineage_of() the checkpoint
  bool resumable = true;
  DType export_dtype = DType::kF32;
};

/// Returns the pieces that this rank writes; see read_pieces().
std::vector<PieceSource> pieces_to_save(const StateAccess& access,
                                        std::span<const TensorPiece> pieces, bool resumable);

/// Adds the result of pieces_to_save().
void add_pieces(ShardedSave& save, std::span<const PieceSource> pieces,
                const SnapshotOptions& options);

CheckpointInfo info_of(const TrainState& state, const SnapshotOptions& options);

/// Writes FOLDER/step-N and returns its path. Collective; throws alike on all ranks.
std::filesystem::path save_checkpoint(World& world, const StateAccess& access,
                                      std::span<const TensorPiece> pieces,
                                      const std::filesystem::path& folder, const TrainState& state,
                                      const SnapshotOptions& options);

/// Fills every piece of a parameter from whole tensors; throws Error naming those that are missing
/// or of another shape.
void load_parameters(const StateAccess& access, std::span<const TensorPiece> pieces,
                     std::span<const TensorSource> sources);

/// Which parts of a checkpoint are loaded: torchtitan's `checkpoint.exclude_from_loading` excludes
/// parts.
struct LoadParts {
  bool model = true;
  bool optimizer = true;
  bool lr_scheduler = true;
  bool loader = true;
  bool train_state = true;
};

/// Returns the names of the parts that are not loaded, as "optimizer, dataloader", or "".
std::string names_of_excluded(const LoadParts& parts);

/// The threads and ranks that read a checkpoint together.
struct LoadThreads {
  int count = 1;          ///< threads of this rank
  int64_t num_ranks = 1;  ///< that load at the same time
};

/// Throws Error for a model-only checkpoint and for other shapes, from what the reader has read.
void check_checkpoint(const CheckpointReader& reader, std::span<const TensorPiece> pieces,
                      const LoadParts& parts);

/// Loads a resumable checkpoint that any mesh wrote, reading and hashing only what the pieces need.
/// Throws Damaged where a hash is wrong, and Error as check_checkpoint() does.
TrainState load_checkpoint(const StateAccess& access, std::span<const TensorPiece> pieces,
                           const std::filesystem::path& folder, const LoadParts& parts,
                           const LoadThreads& threads = {});

}  // namespace tokamak
