// Parquet files as JSON lines, so that they are one more packing of them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "tokamak/data/byte_stream.h"

namespace tokamak {

bool is_parquet(const std::filesystem::path& path);

/// Returns why this build reads no Parquet files; empty if it does.
std::string why_no_parquet();

/// Gives a line {"text":"..."} for each row of the file's column "text", of strings, of bytes, or
/// of either by a dictionary; a null is an empty text. Holds one batch of rows of a row group.
/// Throws Error naming the file.
std::unique_ptr<ByteStream> open_parquet_lines(const std::filesystem::path& path);

}  // namespace tokamak
