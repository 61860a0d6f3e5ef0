#include "tokamak/core/usable_cores.h"

#include <algorithm>
#include <fstream>
#include <string>

#include <sched.h>
#include <unistd.h>

#include "tokamak/core/control_groups.h"

namespace tokamak {
namespace {

namespace fs = std::filesystem;

int cores_of_affinity() {
  cpu_set_t mine;
  if (::sched_getaffinity(0, sizeof mine, &mine) == 0) return std::max(1, CPU_COUNT(&mine));
  return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));  // over 1,024 cores
}

// Reads "QUOTA PERIOD", or two files with a number each; without a limit the quota is "max" or -1.
double cores_of_quota(const fs::path& quota_file, const fs::path& period_file) {
  std::ifstream quota_of(quota_file);
  std::ifstream period_of(period_file);
  std::ifstream& next = period_file.empty() ? quota_of : period_of;
  double quota = 0.0;
  double period = 0.0;
  if (!(quota_of >> quota) || !(next >> period) || quota <= 0.0 || period <= 0.0) return 0.0;
  return quota / period;
}

// A group's quota binds the groups inside it. Returns 0 where there is none.
double least_quota(const fs::path& root, fs::path group, bool is_version_2) {
  double least = 0.0;
  for (;; group = group.parent_path()) {
    const fs::path folder =
        root / (is_version_2 ? "sys/fs/cgroup" : "sys/fs/cgroup/cpu") / group.relative_path();
    const double cores =
        is_version_2 ? cores_of_quota(folder / "cpu.max", {})
                     : cores_of_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us");
    if (cores > 0.0) least = least > 0.0 ? std::min(least, cores) : cores;
    if (!group.has_relative_path()) return least;
  }
}

}  // namespace

int usable_cores(const fs::path& root) {
  int cores = cores_of_affinity();
  for (const ControlGroup& group : control_groups("cpu", root)) {
    const double quota = least_quota(root, group.path, group.is_version_2);
    if (quota > 0.0) cores = std::min(cores, std::max(1, static_cast<int>(quota)));
  }
  return cores;
}

}  // namespace tokamak
