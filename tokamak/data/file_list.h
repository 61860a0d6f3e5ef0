// Finds the files that a dataset path stands for, here or in a store (hub/file_store.h), and a
// digest that changes when they do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tokamak/core/random_file.h"

namespace tokamak {

struct SourceFile {
  std::filesystem::path path;  ///< of a stored file its address
  /// Relative to the path the user wrote, or the file's own name.
  std::string name;
  int64_t size = 0;
  std::string tag;  ///< of a stored file: changes when its contents do; else ""

  bool is_far() const;  ///< whether a store has it
};

/// Whether a path of this machine is a folder, or an address does not name a file of data.
bool is_source_folder(const std::filesystem::path& path);

/// Opens a file that list_files() returned. Throws Error naming it.
std::unique_ptr<RandomFile> open_source_file(const SourceFile& file);

/// Returns the file `path`, or every file under the folder whose name `wanted` accepts (never dot
/// files), in the order of their names. Throws Error naming what cannot be read.
std::vector<SourceFile> list_files(const std::filesystem::path& path,
                                   const std::function<bool(const std::string&)>& wanted);

/// Hashes names, sizes and contents: of a stored file its tag, of files above 1 MiB only 64 KiB at
/// either end and 64 samples of 4 KiB between them. The hash is the same on any machine.
uint64_t hash_files(const std::vector<SourceFile>& files);

/// Hashes the modification times of files above 1 MiB, for caches on this machine only.
uint64_t hash_times(const std::vector<SourceFile>& files);

}  // namespace tokamak
