// Opening a trained model from whatever the user points at.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/models/model_spec.h"
#include "tokamak/tokenizer/tokenizer.h"

namespace tokamak::cli {

/// The flavor of a --model word such as llama3:8B; throws Error.
ModelSpec spec_of_word(const std::string& word);

struct ModelFiles {
  ModelSpec config;
  std::vector<TensorSource> parameters;
  std::filesystem::path folder;  ///< where config and tokenizer were found
};

/// A Hugging Face folder, a checkpoint (its model is in the config.json that training leaves beside
/// it), an llm.c model, or, with `flavor` ("llama3:8B"), bare weights. Throws Error.
ModelFiles open_model(const std::filesystem::path& path, const std::string& flavor);

/// The tokenizer at `path`, or where `path` is empty the one that lies beside the model; "bytes"
/// and "self" by name.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path,
                                          const std::filesystem::path& model_folder);

}  // namespace tokamak::cli
