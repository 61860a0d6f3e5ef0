// Opens a trained model from whatever the user points at.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/models/model_spec.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak::cli {

/// Returns the flavor of a --model word such as llama3:8B; throws Error.
ModelSpec spec_of_word(const std::string& word);

struct ModelFiles {
  ModelSpec config;
  std::vector<TensorSource> parameters;
  std::filesystem::path folder;  ///< where config and tokenizer were found
  /// Which checkpoint of a run was taken; tensors and members of config.json that are not used.
  std::vector<std::string> notes;
};

/// Opens a Hugging Face folder, a checkpoint (its model is in the config.json that training writes
/// beside it), the newest complete checkpoint of a run's folder, or, with `flavor` ("llama3:8B"),
/// weights without a config.json. Throws Error.
ModelFiles open_model(const std::filesystem::path& given, const std::string& flavor);

/// Opens the tokenizer at `path`, or the one beside the model if `path` is empty; "bytes" and
/// "shakespeare" are names of tokenizers.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path,
                                          const std::filesystem::path& model_folder);

}  // namespace tokamak::cli
