#include "tokamak/core/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <thread>

#include <sys/resource.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/control_groups.h"
#include "tokamak/core/error.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

// Address space that is taken besides the plan: libraries, heaps and a stack for each thread.
constexpr int64_t kProgramBytes = int64_t{128} << 20;
constexpr int64_t kThreadBytes = int64_t{16} << 20;

// Returns the number after `key` in lines of "KEY NUMBER".
int64_t number_in(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == key) return number;
  }
  return 0;
}

std::optional<int64_t> number_of(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number)) return std::nullopt;  // "max", or no file
  return number;
}

// The files in which one version of control groups says the same.
struct GroupFiles {
  const char* folder;
  const char* limit;
  const char* used;
  const char* cached;  // in memory.stat
};

constexpr GroupFiles kVersion1{"sys/fs/cgroup/memory", "memory.limit_in_bytes",
                               "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

void take_group(HostMemory& memory, const fs::path& folder, const GroupFiles& files) {
  const auto limit = number_of(folder / files.limit);
  if (!limit || *limit <= 0) return;
  const int64_t used =
      number_of(folder / files.used).value_or(0) - number_in(folder / "memory.stat", files.cached);
  memory.free = std::min(memory.free, std::max<int64_t>(*limit - used, 0));
  if (*limit >= memory.limit) return;
  memory.limit = *limit;
  memory.name = (folder / files.limit).string();
}

// A group's limit binds the groups inside it.
void take_groups(HostMemory& memory, const fs::path& root, fs::path group,
                 const GroupFiles& files) {
  for (;; group = group.parent_path()) {
    take_group(memory, root / files.folder / group.relative_path(), files);
    if (!group.has_relative_path()) return;
  }
}

// The address space that ulimit -v leaves this process.
std::optional<int64_t> address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const int64_t used = number_in("/proc/self/status", "VmSize:") * 1024;
  return static_cast<int64_t>(limit.rlim_cur) - used;
}

}  // namespace

HostMemory host_memory(const fs::path& root) {
  const fs::path info = root / "proc/meminfo";
  HostMemory memory{.limit = number_in(info, "MemTotal:") * 1024,
                    .free = number_in(info, "MemAvailable:") * 1024,
                    .name = "RAM"};
  for (const ControlGroup& group : control_groups("memory", root))
    take_groups(memory, root, group.path, group.is_version_2 ? kVersion2 : kVersion1);
  return memory;
}

void require_host_memory(int64_t bytes, int64_t processes, const std::string& what) {
  if (const auto left = address_space_left()) {
    const int64_t threads = std::max(1U, std::thread::hardware_concurrency());
    const int64_t wanted = bytes + kProgramBytes + threads * kThreadBytes;
    TOK_REQUIRE(wanted <= *left,
                "{}: it wants {:.2f} GiB of addresses with the program's own, ulimit -v leaves "
                "{:.2f} GiB; raise it",
                what, gib(wanted), gib(*left));
  }
  const HostMemory memory = host_memory();
  if (memory.limit == 0) return;
  const int64_t all = bytes * processes;
  const std::string ranks = processes > 1 ? fmt::format(" for {} ranks", processes) : "";
  TOK_REQUIRE(all <= memory.limit,
              "{}: it wants {:.2f} GiB{} on this machine, {} allows {:.2f} GiB", what, gib(all),
              ranks, memory.name, gib(memory.limit));
  if (all > memory.free) {
    throw SystemError(
        fmt::format("{}: it wants {:.2f} GiB{} on this machine, {:.2f} GiB of {} are free; others "
                    "hold the rest",
                    what, gib(all), ranks, gib(memory.free), memory.name));
  }
}

}  // namespace tokamak
