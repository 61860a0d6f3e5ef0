// Reads files from the front and unpacks .gz and .zst files on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

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

/// Opens a file; `text_column` is the column that is read of a Parquet file. Throws Error naming
/// the path if it cannot be opened.
std::unique_ptr<ByteStream> open_bytes(const std::filesystem::path& path,
                                       const std::string& text_column = "text");

}  // namespace tokamak
