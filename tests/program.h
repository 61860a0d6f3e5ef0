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

/// Runs `argv` in `folder` without a shell, `in` on its standard input, and waits for it. Throws
/// SystemError where it cannot be started.
ProgramResult run_program(const std::vector<std::string>& argv,
                          const std::filesystem::path& folder = ".", const std::string& in = "");

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

/// A program that runs beside the test; killed with the object.
class RunningProgram {
 public:
  explicit RunningProgram(const std::vector<std::string>& argv,
                          const std::filesystem::path& folder = ".", const std::string& in = "");
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram();

  void send(int signal) const;

  ProgramResult wait();

 private:
  ScratchFolder scratch_;
  std::string name_;
  int child_ = 0;
};

}  // namespace tokamak
