// What runs on this machine, for tests of jobs of several processes.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tokamak {

/// Waits until `done` holds; fails after `seconds`.
template <class Done>
void await(const Done& done, const std::string& what, int seconds = 10) {
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
       std::chrono::steady_clock::now() < end;) {
    if (done()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL() << "waited " << seconds << " s for " << what;
}

struct Process {
  pid_t id = 0;
  std::string words;  ///< each ends with a zero byte
};

/// Processes that are not dead and have `word` among their words.
inline std::vector<Process> processes_with(const std::string& word) {
  std::vector<Process> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline");
    const std::string words{std::istreambuf_iterator<char>(file), {}};
    if (words.find(word) != std::string::npos) found.push_back({std::stoi(name), words});
  }
  return found;
}

/// Those of them that train: ranks, not launchers.
inline std::vector<Process> training_processes(const std::string& word) {
  const std::string name("tokamak\0train", 13);
  std::vector<Process> found;
  for (Process& process : processes_with(word)) {
    if (process.words.rfind(name, 0) == 0) found.push_back(std::move(process));
  }
  return found;
}

}  // namespace tokamak
