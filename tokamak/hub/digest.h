// The hashes by which hubs and stores name the contents of files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace tokamak {

/// Returns the SHA-256 of a file's bytes in hex. Throws Error naming the path.
std::string sha256_of(const std::filesystem::path& path);

/// Returns the SHA-256 of bytes in hex.
std::string sha256_of(std::span<const std::byte> bytes);

/// Returns the id that git gives a file's bytes: the SHA-1 of "blob SIZE\0" and the bytes, in hex.
/// Throws Error naming the path.
std::string git_blob_id(const std::filesystem::path& path);

}  // namespace tokamak
