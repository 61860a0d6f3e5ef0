#include "tokamak/train/report/memory_use.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <sys/resource.h>
#include <unistd.h>

namespace tokamak {
namespace {

int64_t limit_in(const char* path) {
  int64_t limit = 0;
  std::ifstream file(path);
  return file >> limit && limit > 0 ? limit : std::numeric_limits<int64_t>::max();
}

// Returns the number after `word` in a file of words and numbers, or nothing.
std::optional<int64_t> number_in(const char* path, std::string_view word) {
  std::ifstream file(path);
  int64_t number = 0;
  for (std::string at; file >> at;) {
    if (at == word && file >> number) return number;
  }
  return std::nullopt;
}

}  // namespace

int64_t peak_resident_bytes() {
  // VmHWM rather than getrusage: the latter keeps a parent's peak across exec.
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t usable_memory_bytes() {
  const int64_t ram = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min({ram, limit_in("/sys/fs/cgroup/memory.max"),
                   limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

int64_t free_host_bytes() {
  int64_t free = number_in("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  std::ifstream current("/sys/fs/cgroup/memory.current");
  if (int64_t used = 0; current >> used) {
    const int64_t cache = number_in("/sys/fs/cgroup/memory.stat", "file").value_or(0);
    free = std::min(free, usable_memory_bytes() - (used - cache));
  }
  return free;
}

MemoryUse process_memory_use() {
  return {.bytes = peak_resident_bytes(), .of_bytes = usable_memory_bytes()};
}

}  // namespace tokamak
