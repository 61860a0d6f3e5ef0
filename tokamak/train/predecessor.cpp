#include "tokamak/train/predecessor.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tokamak/core/host.h"
#include "tokamak/core/timing.h"

namespace tokamak {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 30s;

// A zombie holds nothing, once no other thread of its process lives.
bool is_gone(const std::string& process) {
  constexpr size_t kThreads = 17;
  const auto words = process_stat(std::atoi(process.c_str()));
  return words.size() <= kThreads || (words[0] == "Z" && std::stol(words[kThreads]) <= 1);
}

std::vector<std::string> predecessors() {
  std::istringstream words(environment_variable(kPredecessorsVariable));
  std::vector<std::string> processes(std::istream_iterator<std::string>(words), {});
  std::erase_if(processes, [](const std::string& process) {
    return process.find_first_not_of("0123456789") != std::string::npos;
  });
  return processes;
}

}  // namespace

bool has_predecessors() {
  return !environment_variable(kPredecessorsVariable).empty();
}

bool are_predecessors_alive() {
  const auto processes = predecessors();
  return !std::ranges::all_of(processes, is_gone);
}

double await_predecessors() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (const std::string& process : predecessors()) {
    while (!is_gone(process) && Clock::now() < start + kPatience) std::this_thread::sleep_for(20ms);
  }
  return seconds_since(start);
}

}  // namespace tokamak
