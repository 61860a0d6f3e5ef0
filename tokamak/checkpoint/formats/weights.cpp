#include "tokamak/checkpoint/formats/weights.h"

#include "tokamak/checkpoint/formats/foreign.h"
#include "tokamak/core/error.h"

namespace tokamak {

bool is_of_model(std::string_view name) {
  return !name.starts_with("optimizer.") && !name.starts_with("fp8.");
}

Weights::Weights(const std::filesystem::path& path) {
  TOK_REQUIRE(path_exists(path), "there is no file or folder {}", path.string());
  refuse_foreign_checkpoint(path);
  if (is_folder(path) && path_exists(path / kManifestFile)) {
    checkpoint_ = std::make_unique<CheckpointReader>(path);
  } else {
    hf_.emplace(path);
  }
}

std::vector<TensorSource> Weights::sources(const HeadCounts& heads) const {
  if (hf_) return to_hf_weights(hf_->sources(), heads);
  std::vector<TensorSource> all;
  for (const auto& [name, type] : checkpoint_->manifest().tensors) {
    if (is_of_model(name)) all.push_back(checkpoint_->source(name));
  }
  return all;
}

}  // namespace tokamak
