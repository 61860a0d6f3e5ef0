// Runs a program as a user would, for whole-system tests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tokamak {

struct ProgramResult {
  /// The exit code, or 128 + signal as a shell reports it.
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// Runs `argv` in `folder` without a shell and waits for it. Throws SystemError where it cannot be
/// started.
ProgramResult run_program(const std::vector<std::string>& argv,
                          const std::filesystem::path& folder = ".");

/// An empty folder of its own for each object, removed with it.
class ScratchFolder {
 public:
  ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tokamak
