// Parquet files as JSON lines, so that they are one more packing of them. What reads them is a
// library of its own, libtokamak_parquet.so, which is loaded for the first file.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "tokamak/core/random_file.h"
#include "tokamak/data/byte_stream.h"

namespace tokamak {

bool is_parquet(const std::filesystem::path& path);

/// Returns why this program reads no Parquet files; empty if it does.
std::string why_no_parquet();

/// Gives a line {"COLUMN":"..."} for each row of a column of strings, of bytes, or of either by a
/// dictionary. `column` may be a member of a struct, "a.b"; lists on the way to it, or of strings,
/// are joined by line ends. A null is an empty text, and none in a list. Holds about 32 MiB or one
/// row group of the column's packed bytes. Throws Error naming the file.
std::unique_ptr<ByteStream> open_parquet_lines(std::unique_ptr<RandomFile> file,
                                               const std::string& column);

}  // namespace tokamak
