#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/verbs.h"
#include "tokamak/cli/words.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/comm/watchdog.h"
#include "tokamak/comm/world.h"
#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/host.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/core/json.h"
#include "tokamak/core/timing.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/cpu/gemm.h"
#include "tokamak/cpu/peak.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/launch/cluster/cluster_check.h"
#include "tokamak/launch/cluster/findings.h"
#include "tokamak/launch/cluster/rates.h"
#include "tokamak/launch/network/probe_network.h"
#include "tokamak/launch/process/hosts.h"
#include "tokamak/train/bench/machine_file.h"
#include "tokamak/train/together.h"

namespace tokamak::cli {
namespace {

struct ClusterWords {
  std::string folder = "outputs";
  std::string device = "auto";
  std::string settings;  ///< a file for shell scripts: the hosts to leave out
  bool json = false;
};

std::string json_line(const std::vector<launch::RankReport>& reports,
                      const std::vector<std::string>& leave_out) {
  std::string text;
  for (const launch::RankReport& report : reports) text += to_json(report) + "\n";
  return text + fmt::format("{{\"leave_out\":[{}{}{}]}}\n", leave_out.empty() ? "" : "\"",
                            fmt::join(leave_out, "\",\""), leave_out.empty() ? "" : "\"");
}

// Checks the hosts of all ranks that a launcher has started with these words. Rank 0 prints.
// Returns 75 where hosts should be left out.
int run_doctor_cluster(const ClusterWords& words) {
  constexpr auto kPatience = std::chrono::seconds(60);
  const auto start = std::chrono::steady_clock::now();
  const LaunchEnvironment launched = read_launch_environment();
  Watchdog watchdog({.start = kPatience, .progress = kPatience});
  const auto world = make_world(launched, {.timeout = kPatience});
  watchdog.watch(*world);
  std::unique_ptr<Backend> backend;
  all_together(*world, [&] { backend = open_backend({.device = words.device}, launched); });
  std::unique_ptr<World> of_gpus;
  World& ranks = device_world(*world, *backend, launched, false, of_gpus);
  const auto reports =
      launch::check_cluster(*world, ranks, *backend, launched, words.folder, describe_gpu);
  const auto findings = findings_of(reports);
  const auto leave_out = hosts_to_leave_out(reports, findings);
  on_rank_zero(*world, [&] {
    if (!words.settings.empty()) write_file_atomic(words.settings, launch::to_settings(leave_out));
    if (words.json) {
      fmt::print("{}", json_line(reports, leave_out));
    } else {
      fmt::print("{}{}", to_table(reports, findings), to_verdict(reports, findings));
      fmt::print("checked in {:.1f} s\n", seconds_since(start));
    }
    std::fflush(stdout);
  });
  watchdog.leave();
  return leave_out.empty() ? 0 : static_cast<int>(ExitCode::kTryAgain);
}

struct ProbedNetwork {
  size_t num_hosts = 0;
  launch::NetworkProbe probe;
};

ProbedNetwork probe(const std::string& hostfile) {
  if (!hostfile.empty()) {
    TOK_REQUIRE(path_exists(hostfile), "tokamak doctor: --hostfile {}: no such file", hostfile);
    const auto hosts = launch::Hosts(read_file(hostfile), hostfile).names();
    return {.num_hosts = hosts.size(), .probe = launch::probe_hosts(hosts)};
  }
  const int num_nodes = std::atoi(environment_variable("SLURM_JOB_NUM_NODES").c_str());
  TOK_REQUIRE(num_nodes > 0, "tokamak doctor --interfaces: wanted --hostfile, or a Slurm job");
  return {.num_hosts = static_cast<size_t>(num_nodes),
          .probe = launch::probe_allocation(static_cast<size_t>(num_nodes))};
}

std::string shell_lines(const std::string& interface) {
  std::string text;
  for (const auto& [name, value] : launch::interface_variables(interface))
    text += fmt::format("export {}={}\n", name, value);
  return text;
}

// Prints which interfaces connect the hosts of `hostfile`, or without one the nodes of this Slurm
// allocation. Writes the variables that make NCCL, RCCL and Open MPI take the fastest into
// `settings`, if that is not empty, for a shell. Returns 75 where no interface connects all.
int run_doctor_interfaces(const std::string& hostfile, const std::string& settings) {
  const auto [num_hosts, probed] = probe(hostfile);
  fmt::print("{}", to_table(probed));
  const auto interface = probed.hosts.size() == num_hosts ? fastest_common(probed) : std::nullopt;
  if (!interface) {
    fmt::print("network: no interface connects all hosts; {} of {} answer\n", probed.hosts.size(),
               num_hosts);
    return static_cast<int>(ExitCode::kTryAgain);
  }
  if (!settings.empty()) write_file_atomic(settings, shell_lines(interface->name));
  fmt::print("network: {} ({}) connects all {} hosts, found in {:.1f} s\n", interface->name,
             speed_text(*interface), num_hosts, probed.seconds);
  return 0;
}

// Checks that this folder takes a synced write and a rename, which checkpoints need.
std::string check_folder(const std::filesystem::path& folder, const LaunchEnvironment& launched) {
  const auto file = folder / fmt::format(".tokamak_doctor.{}", launched.host);
  try {
    make_folders(folder);
    write_file_atomic(file, "ok");
    std::filesystem::remove(file);
    return "ok";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Prints lines, with the host's name before each where several hosts may print at once.
class Lines {
 public:
  explicit Lines(const LaunchEnvironment& launched)
      : front_(launched.world_size > 1 ? launched.host + ": " : "") {}

  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) const {
    fmt::print("{}{}\n", front_, fmt::format(format, std::forward<Args>(args)...));
    std::fflush(stdout);  // a line at a time, as srun and mpirun mix them
  }

 private:
  std::string front_;
};

void print_gpus(const Lines& lines) {
  const int count = gpu::num_devices();
  if (count == 0) lines.print("gpu            none: {}", gpu::why_none());
  for (int i = 0; i < count; ++i) {
    const gpu::DeviceInfo info = gpu::describe_device(i);
    const auto peak = gpu_peak_flops(info.name);
    lines.print("gpu {:<10} {} at {}, {}, {:.1f} GiB, {} multiprocessors, {}", i, info.name,
                info.bus, info.arch, gib(info.memory_bytes), info.num_multiprocessors,
                peak ? fmt::format("{:.1f} TFLOP/s bfloat16, {}", 1e-12 * peak->per_s, peak->of)
                     : "no peak known, so no mfu");
  }
  for (const auto& [what, version] : gpu::library_versions())
    lines.print("{:<14} {}", what, version);
}

MachineFile measure_peaks(int threads, double budget_s) {
  constexpr int64_t kMatmulSize = 1536;
  const Waiting waiting("measuring the peaks");
  return {.cpu = cpu_name(),
          .threads = threads,
          .gemm_flops_f32 = cpu::measure_gemm_peak(DType::kF32, kMatmulSize, budget_s),
          .gemm_flops_bf16 = cpu::measure_gemm_peak(DType::kBF16, kMatmulSize, budget_s),
          .copy_bytes_per_s = launch::measure_copy_rate(threads, size_t{256} << 20U)};
}

}  // namespace

int run_doctor(Args args) {
  CLI::App app(
      "Checks this machine and measures its peaks; training reads them for mfu. Under srun or "
      "mpirun one rank of each host does.",
      "tokamak doctor");
  ClusterWords cluster;
  std::string& folder = cluster.folder;
  std::string hostfile;
  bool checks_cluster = false;
  bool checks_interfaces = false;
  app.add_option("--dump-folder", folder, "the folder runs will write to")->capture_default_str();
  app.add_flag("--cluster", checks_cluster,
               "compare the hosts of all ranks: tokamak launch -n 4 -- doctor --cluster");
  app.add_flag("--json", cluster.json, "with --cluster: a line for each rank, and the verdict");
  app.add_option("--settings", cluster.settings,
                 "a file for a shell: with --cluster the hosts to leave out, with --interfaces "
                 "the variables of the one chosen");
  app.add_flag("--interfaces", checks_interfaces,
               "which network interfaces connect the hosts of --hostfile, or of a Slurm job");
  app.add_option("--hostfile", hostfile, "with --interfaces: hosts as mpirun reads them");
  app.add_option("--device", cluster.device, kDeviceHelp)->capture_default_str();
  double budget_s = 0.3;
  app.add_option("--seconds", budget_s,
                 "for each type of matmul; 0 = measure nothing and save nothing")
      ->capture_default_str();
  if (!parse(app, args)) return 0;
  check_budget(budget_s);
  if (checks_interfaces) return run_doctor_interfaces(hostfile, cluster.settings);
  if (checks_cluster) return run_doctor_cluster(cluster);
  const LaunchEnvironment launched = read_launch_environment();
  // One rank speaks for its host: several at once would measure each other.
  if (launched.local_rank != 0) return 0;
  const Lines lines(launched);
  const auto backend = cpu::make_backend();
  const int threads = backend->target().threads;
  lines.print("cpu            {}, {} threads", cpu_name(), threads);
  lines.print("memory         {:.1f} GiB usable", gib(host_memory().limit));
  lines.print("gemm           {}",
              cpu::Gemm::is_available()
                  ? "oneDNN"
                  : "plain loops: built without oneDNN, expect a tenth of the speed");
  const bool measures = budget_s > 0.0;
  const MachineFile machine = measures ? measure_peaks(threads, budget_s) : MachineFile();
  if (measures) {
    lines.print("gemm float32   {:.0f} GFLOP/s", 1e-9 * machine.gemm_flops_f32);
    lines.print("gemm bfloat16  {:.0f} GFLOP/s", 1e-9 * machine.gemm_flops_bf16);
    lines.print("copy           {:.1f} GB/s", 1e-9 * machine.copy_bytes_per_s);
  }
  const std::string writable = check_folder(folder, launched);
  lines.print("{:<14} {}", folder, writable);
  print_gpus(lines);
  TOK_REQUIRE(writable == "ok", "doctor: {}", writable);
  if (!measures) return 0;
  const auto file = save_machine_file(machine, launched.world_size > 1 ? launched.host : "");
  lines.print("saved to {}: training now reports mfu against the gemm figures", file.string());
  return 0;
}

}  // namespace tokamak::cli
