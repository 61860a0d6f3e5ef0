#include "tokamak/cli/cluster/cluster_check.h"

#include <cstdlib>

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tokamak/cli/cluster/nvml.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/slurm/command.h"
#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/train/report/memory_use.h"
#include "tokamak/train/together.h"

namespace tokamak::cli {
namespace {

namespace fs = std::filesystem;

void describe_gpu(Backend& backend, RankReport& report) {
  const gpu::DeviceInfo info = gpu::describe_device(gpu::current_device());
  const gpu::MemoryInUse memory = gpu::memory_in_use();
  report.is_gpu = true;
  report.memory_bytes = memory.total_bytes;
  // Memory that this process holds already belongs to the run.
  report.free_bytes = memory.total_bytes - memory.used_bytes + backend.allocated_bytes();
  for (const auto& [what, version] : gpu::library_versions()) report.versions[what] = version;
  const auto health = gpu_health(info.bus);
  if (!health) return;
  report.clock_mhz = health->clock_mhz;
  report.most_clock_mhz = health->most_clock_mhz;
  report.ecc_errors = health->ecc_errors;
  report.faults = health->faults;
  report.nvlink_domain = health->nvlink_domain;
  report.versions["GPU driver"] = health->driver;
}

/// Checks, by one rank of each host, that the folder takes a synced write and a rename, which
/// checkpoints need.
void look_into(const fs::path& folder, RankReport& report) {
  const fs::path file = folder / fmt::format(".tokamak_doctor.{}.{}", report.host, report.rank);
  try {
    make_folders(folder);
    if (report.local_rank == 0) {
      write_file_atomic(file, "ok");
      fs::remove(file);
    }

    struct statvfs room {};

    if (statvfs(folder.c_str(), &room) == 0)
      report.disk_bytes = static_cast<int64_t>(room.f_bavail * room.f_frsize);
  } catch (const std::exception& error) {
    report.folder_error = error.what();
  }
}

/// Whether all hosts see one folder, by a file that rank 0 makes.
void look_for_marker(World& control, const fs::path& folder, RankReport& report) {
  const std::string name =
      control.broadcast_text(fmt::format(".tokamak_doctor.shared.{}.{}", report.host, getpid()), 0);
  const bool is_first = control.rank() == 0;
  if (is_first && report.folder_error.empty()) FileWriter(folder / name).write(report.host);
  control.barrier();
  report.shares_folder = path_exists(folder / name);
  control.barrier();
  if (is_first) {
    std::error_code code;
    fs::remove(folder / name, code);
  }
}

std::string digest_of_program() {
  const MappedFile program("/proc/self/exe");
  return fmt::format("{:016x}", hash_of(program.bytes()));
}

}  // namespace

std::vector<RankReport> check_cluster(World& control, World& ranks, Backend& backend,
                                      const LaunchEnvironment& launched, const fs::path& folder,
                                      const CheckEffort& effort) {
  RankReport report{.rank = control.rank(),
                    .local_rank = launched.local_rank,
                    .host = launched.host,
                    .device = device_text(backend),
                    .memory_bytes = usable_memory_bytes(),
                    .free_bytes = free_host_bytes()};
  report.versions["program"] = digest_of_program();
  if (is_gpu(backend)) describe_gpu(backend, report);
  look_into(folder, report);
  look_for_marker(control, folder, report);
  all_together(control, [&] {
    measure_device(backend, effort, report);
    return std::string();
  });
  measure_network(control, ranks, backend, effort.network_s, report);
  std::vector<RankReport> reports;
  for (const std::string& text : control.all_gather_text(to_json(report)))
    reports.push_back(report_of_json(text));
  return reports;
}

std::optional<int64_t> parse_time_left(const std::string& text) {
  int64_t parts[4] = {0, 0, 0, 0};  // days, hours, minutes, seconds
  int64_t number = 0;
  std::vector<int64_t> numbers;
  bool has_days = false;
  if (text.empty() || text.find_first_not_of("0123456789:-") != std::string::npos)
    return std::nullopt;
  for (const char c : text + ":") {
    if (c == ':' || c == '-') {
      has_days = has_days || c == '-';
      numbers.push_back(std::exchange(number, 0));
    } else {
      number = number * 10 + (c - '0');
    }
  }
  if (numbers.size() < 2 || numbers.size() > 4 || (has_days && numbers.size() != 4))
    return std::nullopt;
  std::copy(numbers.rbegin(), numbers.rend(), std::rbegin(parts));
  return ((parts[0] * 24 + parts[1]) * 60 + parts[2]) * 60 + parts[3];
}

std::optional<int64_t> seconds_of_allocation() {
  const char* const job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr) return std::nullopt;
  return parse_time_left(run_command({"timeout", "2", "squeue", "-h", "-j", job, "-o", "%L"}).out);
}

}  // namespace tokamak::cli
