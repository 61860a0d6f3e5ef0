// How much memory this process may take: the machine's, its control groups' and its own limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tokamak {

/// Bytes of memory that the processes of this machine, or of a control group, share.
struct HostMemory {
  int64_t limit = 0;  ///< RAM, or a control group's limit where that is smaller
  int64_t free = 0;   ///< the unused part; files that are only cached count as free
  std::string name;   ///< "RAM", or the file that states the limit
};

/// Reads /proc/meminfo and the limits of this process's control groups (versions 1 and 2), all of
/// them below `root`.
HostMemory host_memory(const std::filesystem::path& root = "/");

/// Checks that `processes` processes like this one can each take `bytes` more. Throws Error where
/// they never can (RAM, a control group's limit, ulimit -v), and SystemError where others hold what
/// is wanted; `what` begins both.
void require_host_memory(int64_t bytes, int64_t processes, const std::string& what);

}  // namespace tokamak
