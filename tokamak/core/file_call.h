// Calls to a file system that have not returned, on any thread of this process, so that a disk that
// does not answer can be told by the call and the path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tokamak {

struct UnreturnedCall {
  uint64_t number = 0;  ///< counts all calls of the process; 0 = none is under way
  std::string text;     ///< "fsync of /runs/a/checkpoint/step-8.tmp-1/manifest.json"
};

/// Marks a call as under way while it lives.
class FileCall {
 public:
  /// `call` is a literal, as "fsync"; `path` must outlive this.
  FileCall(const char* call, const std::filesystem::path& path);
  FileCall(const FileCall&) = delete;
  FileCall& operator=(const FileCall&) = delete;
  ~FileCall();

 private:
  friend UnreturnedCall oldest_file_call();

  const char* call_;
  const std::filesystem::path& path_;
  uint64_t number_ = 0;
};

/// Returns the call that has been under way for longest.
UnreturnedCall oldest_file_call();

/// Returns how many calls have begun and ended: it grows while any thread makes progress.
uint64_t num_file_calls();

}  // namespace tokamak
