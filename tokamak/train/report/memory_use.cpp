#include "tokamak/train/report/memory_use.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

namespace tokamak {
namespace {

int64_t limit_in(const char* path) {
  int64_t limit = 0;
  std::ifstream file(path);
  return file >> limit && limit > 0 ? limit : std::numeric_limits<int64_t>::max();
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

MemoryUse process_memory_use() {
  return {.bytes = peak_resident_bytes(), .of_bytes = usable_memory_bytes()};
}

}  // namespace tokamak
