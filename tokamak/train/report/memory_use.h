// How much of the machine's memory this process has taken, for the log line.
#pragma once

#include <cstdint>

namespace tokamak {

/// Returns the largest resident set that this process has had, in bytes.
int64_t peak_resident_bytes();

/// Returns the memory that this process may use, in bytes: RAM, or its control group's limit if
/// that is smaller.
int64_t usable_memory_bytes();

/// Returns the memory that this process could still take without anything being swapped or killed,
/// in bytes.
int64_t free_host_bytes();

struct MemoryUse {
  int64_t bytes = 0;
  int64_t of_bytes = 0;
};

/// Returns the two above.
MemoryUse process_memory_use();

}  // namespace tokamak
