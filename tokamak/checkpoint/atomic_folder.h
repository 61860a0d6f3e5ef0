// A folder that exists whole or not at all, whenever the process may die.
#pragma once

#include <filesystem>
#include <string>

namespace tokamak {

/// A folder under a temporary name, TARGET.tmp-TOKEN, that becomes TARGET in one step. Several
/// processes may hold the same folder; one of them commits.
class AtomicFolder {
 public:
  /// `token` is part of a file name; it is unique to this attempt and the same in all processes
  /// that share the folder. If it is empty, the constructor makes one. Touches no disk.
  AtomicFolder(const std::filesystem::path& target, const std::string& token);

  /// Creates the temporary folder and the parents of the target.
  void make() const;

  /// Returns the folder to write to until the commit.
  const std::filesystem::path& path() const { return path_; }

  const std::filesystem::path& target() const { return target_; }

  /// Makes every file durable, then the name. A folder that had the name is swapped out in the same
  /// step (two steps where the filesystem cannot swap) and removed. Throws SystemError.
  void commit();

  /// Removes the temporary folder with all in it; never throws.
  void discard() noexcept;

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;
};

/// Removes a folder, if it exists, file by file.
void remove_by_files(const std::filesystem::path& folder) noexcept;

/// Cleans up after processes that died: removes the temporary folders of `parent`, except those of
/// `keep_token`, and restores a folder that was moved away and never replaced. A token may begin
/// with the number of an attempt ("a7-"); folders of later attempts than keep_token's are left
/// alone. REQUIRES: no other job writes under `parent`.
void sweep_stale_folders(const std::filesystem::path& parent, const std::string& keep_token = "");

}  // namespace tokamak
