#include "tokamak/train/report/memory_use.h"

#include <fstream>
#include <string>
#include <string_view>

#include <sys/resource.h>

#include "tokamak/core/host_memory.h"

namespace tokamak {

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

MemoryUse process_memory_use() {
  return {.bytes = peak_resident_bytes(), .of_bytes = host_memory().limit};
}

}  // namespace tokamak
