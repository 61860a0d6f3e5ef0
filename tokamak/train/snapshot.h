// Saving and loading the State of a run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/exec/executor.h"

namespace tokamak {

/// What a checkpoint says beside tensors.
struct TrainState {
  int64_t step = 0;  ///< finished steps
  int64_t tokens_seen = 0;
  uint64_t seed = 0;   ///< all random numbers are functions of it and of the step
  std::string loader;  ///< LoaderState as JSON
};

/// Every State of `kind` as a source that reads the device piece by piece.
std::vector<TensorSource> state_sources(const StateAccess& access, StateKind kind);

/// Writes FOLDER/step-N: parameters and, if `resumable`, moments and `state`. A model-only
/// checkpoint casts parameters to `export_dtype`. Returns its path.
std::filesystem::path save_checkpoint(const StateAccess& access,
                                      const std::filesystem::path& folder, const TrainState& state,
                                      const std::string& config_digest, bool resumable,
                                      DType export_dtype);

/// Fills every parameter from `sources`; throws Error naming those that are missing or of another
/// shape.
void load_parameters(const StateAccess& access, std::span<const TensorSource> sources);

/// What of a checkpoint is loaded: torchtitan's `checkpoint.exclude_from_loading` leaves parts out.
struct LoadParts {
  bool optimizer = true;
  bool loader = true;
  bool train_state = true;
};

/// Loads a resumable checkpoint. Throws Error on a model-only one and on other shapes.
TrainState load_checkpoint(const StateAccess& access, const std::filesystem::path& folder,
                           const LoadParts& parts);

}  // namespace tokamak
