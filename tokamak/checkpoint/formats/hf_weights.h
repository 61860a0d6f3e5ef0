// The weights of a Hugging Face folder: one safetensors file, or shards listed by an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokamak/checkpoint/formats/safetensors.h"

namespace tokamak {

/// All weights found at a path, which are mapped and read only where they are used. Sources and
/// views live as long as the object.
class HfWeights {
 public:
  /// `path` is a safetensors file, or a folder with model.safetensors, with
  /// model.safetensors.index.json and its shards, or with consolidated*.safetensors. Throws Error
  /// naming the file where a shard is absent, a tensor is missing, or one is given twice.
  explicit HfWeights(const std::filesystem::path& path);

  /// Returns the weights file by file.
  std::vector<TensorSource> sources() const;

  /// Returns null if there is no such tensor.
  const TensorView* find(std::string_view name) const;

 private:
  void open_index(const std::filesystem::path& index);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, const TensorView*> index_;
};

/// Parses model.safetensors.index.json into a map from tensor to file. Throws Error naming `what`
/// unless every file is a plain name.
std::map<std::string, std::string> parse_weight_index(std::string_view text, std::string_view what);

struct SaveOptions {
  /// The most bytes of tensors per file, unless one tensor alone is larger.
  int64_t max_file_bytes = 5'000'000'000;
  SafetensorsMetadata metadata = {{"format", "pt"}};
};

/// Writes the tensors, in the given order, as save_pretrained lays them out: model.safetensors, or
/// model-00001-of-0000N.safetensors and the index. Files of an earlier save in the other layout
/// are removed.
void save_hf_weights(const std::filesystem::path& folder, std::span<const TensorSource> tensors,
                     const SaveOptions& options = {});

}  // namespace tokamak
