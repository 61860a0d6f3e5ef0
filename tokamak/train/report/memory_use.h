// How much of the machine's memory this process has taken, for the log line.
#pragma once

#include <cstdint>

namespace tokamak {

/// Returns the largest resident set that this process has had, in bytes.
int64_t peak_resident_bytes();

struct MemoryUse {
  int64_t bytes = 0;
  int64_t of_bytes = 0;
};

/// Returns peak_resident_bytes() of the memory that the process may use.
MemoryUse process_memory_use();

}  // namespace tokamak
