#include "tokamak/train/predecessor.h"

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>

#include "tokamak/core/process_stat.h"
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

}  // namespace

bool has_predecessors() {
  const char* const variable = std::getenv(kPredecessorsVariable);
  return variable != nullptr && *variable != '\0';
}

double await_predecessors() {
  const char* const variable = std::getenv(kPredecessorsVariable);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::istringstream processes(variable == nullptr ? "" : variable);
  for (std::string process; processes >> process;) {
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    while (!is_gone(process) && Clock::now() < start + kPatience) std::this_thread::sleep_for(20ms);
  }
  return seconds_since(start);
}

}  // namespace tokamak
