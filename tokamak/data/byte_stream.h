// Reads files from the front and unpacks .gz and .zst files on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "tokamak/core/random_file.h"

namespace tokamak {

class ByteStream {
 public:
  virtual ~ByteStream() = default;

  /// Fills and returns at most out.size() bytes, 0 at the end only. Throws Error naming the file if
  /// it is truncated or is not what its name says.
  virtual size_t read(std::span<char> out) = 0;

  /// Skips `count` bytes of content; throws Error if the file ends before.
  virtual void skip(int64_t count);
};

/// Whether open_bytes() gives other bytes than the file has: of .gz, .zst, .zstd and .parquet
/// files.
bool is_packed(const std::filesystem::path& path);

/// Reads a file from the front, by its name as it is packed; `text_column` is the column that is
/// read of a Parquet file. `is_far`: blocks of 4 MiB are read one ahead by another thread. Throws
/// Error naming the file.
std::unique_ptr<ByteStream> open_bytes(std::unique_ptr<RandomFile> file,
                                       const std::string& text_column = "text",
                                       bool is_far = false);

/// Opens a file of this machine so. Throws Error naming the path if it cannot be opened.
std::unique_ptr<ByteStream> open_bytes(const std::filesystem::path& path,
                                       const std::string& text_column = "text");

}  // namespace tokamak
