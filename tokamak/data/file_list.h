// Finds the files that a dataset path stands for, and a digest that changes when they do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tokamak {

struct SourceFile {
  std::filesystem::path path;
  /// Relative to the path the user wrote, or the file's own name.
  std::string name;
  int64_t size = 0;
};

/// Returns the file `path`, or every file under the folder whose name `wanted` accepts (never dot
/// files), in the order of their names. Throws Error naming what cannot be read.
std::vector<SourceFile> list_files(const std::filesystem::path& path,
                                   const std::function<bool(const std::string&)>& wanted);

/// Hashes names, sizes and contents, of files above 1 MiB only 64 KiB at either end and 64
/// samples of 4 KiB between them. The hash is the same on any machine.
uint64_t hash_files(const std::vector<SourceFile>& files);

/// Hashes the modification times of files above 1 MiB, for caches on this machine only.
uint64_t hash_times(const std::vector<SourceFile>& files);

}  // namespace tokamak
