// Opens weights of any kind, for `convert`, `generate` and initial_load_path.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "tokamak/checkpoint/checkpoint_reader.h"
#include "tokamak/checkpoint/formats/hf_weights.h"
#include "tokamak/checkpoint/formats/weight_names.h"

namespace tokamak {

/// Whether a tensor of our checkpoints is a weight of the model: no moment and no scale.
bool is_of_model(std::string_view name);

/// The weights at a path, which is a Hugging Face or Meta folder or file, or one of our checkpoints
/// (the step folder). Sources live as long as the object.
class Weights {
 public:
  /// Throws Error naming the path and what is wrong; pickles are refused with the remedy.
  explicit Weights(const std::filesystem::path& path);

  /// Returns all weights under Hugging Face's names and layouts. `heads` is used only for Meta's.
  std::vector<TensorSource> sources(const HeadCounts& heads) const;

 private:
  std::optional<HfWeights> hf_;
  std::unique_ptr<CheckpointReader> checkpoint_;
};

}  // namespace tokamak
