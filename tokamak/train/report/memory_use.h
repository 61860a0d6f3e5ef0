// What this process took from the machine's memory, for the log line.
#pragma once

#include <cstdint>

namespace tokamak {

/// The largest resident set that this process has had, in bytes.
int64_t peak_resident_bytes();

/// Memory that this process may use, in bytes: RAM, or its control group's limit where smaller.
int64_t usable_memory_bytes();

struct MemoryUse {
  int64_t bytes = 0;
  int64_t of_bytes = 0;
};

/// The two above.
MemoryUse process_memory_use();

}  // namespace tokamak
