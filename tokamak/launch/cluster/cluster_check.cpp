#include "tokamak/launch/cluster/cluster_check.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tokamak/core/chunk_hash.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/train/together.h"

namespace tokamak::launch {
namespace {

namespace fs = std::filesystem;

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
                                      const DescribeGpu& describe_gpu, const CheckEffort& effort) {
  RankReport report{.rank = control.rank(),
                    .local_rank = launched.local_rank,
                    .host = launched.host,
                    .is_gpu = backend.target().backend == "gpu",
                    .device = fmt::format("{} threads", backend.target().threads),
                    .memory_bytes = host_memory().limit,
                    .free_bytes = host_memory().free};
  report.versions["program"] = digest_of_program();
  if (report.is_gpu) describe_gpu(backend, report);
  look_into(folder, report);
  look_for_marker(control, folder, report);
  all_together(control, [&] { measure_device(backend, effort, report); });
  measure_network(control, ranks, backend, effort.network_s, report);
  std::vector<RankReport> reports;
  for (const std::string& text : control.all_gather_text(to_json(report)))
    reports.push_back(report_of_json(text));
  return reports;
}

}  // namespace tokamak::launch
