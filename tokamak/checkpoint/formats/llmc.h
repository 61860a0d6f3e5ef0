// Model files of llm.c (docs/formats.md): 256 int32 of header, then all weights in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/core/file.h"

namespace tokamak {

/// The sizes in the header, and the sizes that follow from them.
struct LlmcModel {
  std::string_view model;  ///< "gpt2" or "llama3", as `model.name` has it
  DType dtype = DType::kF32;
  int64_t max_seq_len = 0;
  int64_t vocab_size = 0;
  int64_t padded_vocab_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t channels = 0;
  /// For Llama 3, it is found from the size of the file, since the header truncates its factors.
  int64_t ffn_hidden = 0;
  int64_t rope_theta = 0;  ///< 0 where positions are learned
  bool use_scaled_rope = false;
};

/// Whether the file begins with the magic number of one of the two formats.
bool is_llmc_model(const std::filesystem::path& path);

/// Reads and checks the header at the front of a file of `file_bytes` bytes that the user knows as
/// `name`; throws Error unless the sizes it implies are those of the file.
LlmcModel parse_llmc_header(std::span<const std::byte> bytes, int64_t file_bytes,
                            std::string_view name);

/// A mapped model file.
class LlmcFile {
 public:
  explicit LlmcFile(const std::filesystem::path& path);

  const LlmcModel& model() const { return model_; }

  /// Returns all weights under Hugging Face's names and layouts, without vocabulary padding. They
  /// live as long as the object.
  std::vector<TensorSource> sources() const;

 private:
  MappedFile file_;
  LlmcModel model_;
};

}  // namespace tokamak
