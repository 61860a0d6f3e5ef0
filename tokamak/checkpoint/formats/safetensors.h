// The safetensors file format (docs/formats.md): 8 bytes of header length, a JSON header, the data.
// The reader trusts nothing in the header until it was checked against the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokamak/checkpoint/tensor_source.h"
#include "tokamak/core/file.h"

namespace tokamak {

using SafetensorsMetadata = std::map<std::string, std::string>;

/// One header entry; `begin` and `end` are bytes from the start of the file.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Dims dims;
  int64_t begin = 0;
  int64_t end = 0;
};

struct SafetensorsHeader {
  /// The entries in the order of their data.
  std::vector<SafetensorsEntry> entries;
  SafetensorsMetadata metadata;
};

/// Reads and checks a header. `bytes` is the front of a file of `file_bytes` bytes that the user
/// knows as `name`. Throws Error unless lengths, names, types, shapes and offsets agree and the
/// tensors fill the file without gap or overlap, as the reference implementation demands.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes, int64_t file_bytes,
                                           std::string_view name);

/// A mapped safetensors file; the views live as long as the object.
class SafetensorsFile {
 public:
  /// Throws Error naming the path and what is wrong with it.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  /// Returns all tensors in the order of their data.
  std::span<const TensorView> tensors() const { return tensors_; }

  const SafetensorsMetadata& metadata() const { return metadata_; }

  /// Returns null if there is no such tensor.
  const TensorView* find(std::string_view name) const;

  /// Throws Error naming file and tensor if there is none.
  const TensorView& at(std::string_view name) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> index_;
  SafetensorsMetadata metadata_;
};

/// The layout of a file to be written.
struct SafetensorsLayout {
  /// The length and the header, padded so that data starts at a multiple of 8.
  std::string head;
  /// Indices of the tensors in the order of their data: widest type first, then by name.
  std::vector<size_t> order;
  /// First byte of each tensor in the file, by index.
  std::vector<int64_t> offsets;
  int64_t file_bytes = 0;
};

/// Lays tensors out byte for byte as the reference implementation does. Throws Error on a repeated
/// or reserved name.
SafetensorsLayout lay_out_safetensors(std::span<const TensorSource> tensors,
                                      const SafetensorsMetadata& metadata);

/// Passes the file to `sink` from its first byte to its last.
void stream_safetensors(const SafetensorsLayout& layout, std::span<const TensorSource> tensors,
                        const std::function<void(std::span<const std::byte>)>& sink);

/// Writes `path` aside, syncs it and renames it; on any throw `path` is as it was before.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace tokamak
