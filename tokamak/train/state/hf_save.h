// The Hugging Face folder of a run on any mesh.
#pragma once

#include <filesystem>
#include <span>

#include "tokamak/comm/communicator.h"
#include "tokamak/exec/executor.h"
#include "tokamak/parallel/tensor_piece.h"
#include "tokamak/train/state/hf_model.h"

namespace tokamak {

/// What an export needs besides the weights.
struct HfExportOptions {
  ModelSpec model;
  DType dtype = DType::kF32;
  SpecialIds ids;
  AssetFiles assets;
};

/// Writes FOLDER/step-STEP as export_hf_folder() does and returns its path. Ranks of a mesh write
/// their pieces to a temporary folder, from which rank 0 assembles the tensors as a stream: no rank
/// ever holds a whole tensor. Collective; throws alike on all ranks.
std::filesystem::path save_hf_folder(World& world, const StateAccess& access,
                                     std::span<const TensorPiece> pieces,
                                     const std::filesystem::path& folder, int64_t step,
                                     const HfExportOptions& options);

}  // namespace tokamak
