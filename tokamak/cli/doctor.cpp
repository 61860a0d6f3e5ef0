#include <filesystem>

#include <fmt/format.h>

#include "tokamak/cli/cluster/doctor_cluster.h"
#include "tokamak/cli/cluster/rates.h"
#include "tokamak/cli/devices.h"
#include "tokamak/cli/words.h"
#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/core/json.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/cpu/gemm.h"
#include "tokamak/cpu/peak.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/train/bench/machine_file.h"
#include "tokamak/train/report/memory_use.h"

namespace tokamak::cli {
namespace {

// Checks that this folder takes a synced write and a rename, which checkpoints need.
std::string check_folder(const std::filesystem::path& folder) {
  try {
    make_folders(folder);
    write_file_atomic(folder / ".tokamak_doctor", "ok");
    std::filesystem::remove(folder / ".tokamak_doctor");
    return "ok";
  } catch (const std::exception& error) {
    return error.what();
  }
}

void print_gpus() {
  const int count = gpu::num_devices();
  if (count == 0) fmt::print("gpu            none: {}\n", gpu::why_none());
  for (int i = 0; i < count; ++i) {
    const gpu::DeviceInfo info = gpu::describe_device(i);
    const auto peak = gpu_peak_flops(info.name);
    fmt::print("gpu {:<10} {} at {}, {}, {:.1f} GiB, {} multiprocessors, {}\n", i, info.name,
               info.bus, info.arch, static_cast<double>(info.memory_bytes) / kGiB,
               info.num_multiprocessors,
               peak ? fmt::format("{:.1f} TFLOP/s bfloat16, {}", 1e-12 * peak->per_s, peak->of)
                    : "no peak known, so no mfu");
  }
  for (const auto& [what, version] : gpu::library_versions())
    fmt::print("{:<14} {}\n", what, version);
}

}  // namespace

int run_doctor(Args args) {
  CLI::App app("Checks this machine and measures its peaks; training reads them for mfu.",
               "tokamak doctor");
  ClusterWords cluster;
  std::string& folder = cluster.folder;
  bool checks_cluster = false;
  app.add_option("--dump-folder", folder, "the folder runs will write to")->capture_default_str();
  app.add_flag("--cluster", checks_cluster,
               "compare the hosts of all ranks: tokamak launch -n 4 -- doctor --cluster");
  app.add_flag("--json", cluster.json, "with --cluster: a line for each rank, and the verdict");
  app.add_option("--settings", cluster.settings,
                 "with --cluster: a file for a shell with the hosts to leave out");
  app.add_option("--device", cluster.device, kDeviceHelp)->capture_default_str();
  if (!parse(app, args)) return 0;
  if (checks_cluster) return run_doctor_cluster(cluster);
  const auto backend = cpu::make_backend();
  const int threads = backend->target().threads;
  fmt::print("cpu            {}, {} threads\n", cpu_name(), threads);
  fmt::print("memory         {:.1f} GiB usable\n",
             static_cast<double>(usable_memory_bytes()) / kGiB);
  fmt::print("gemm           {}\n",
             cpu::Gemm::is_available()
                 ? "oneDNN"
                 : "plain loops: built without oneDNN, expect a tenth of the speed");
  MachineFile machine{.cpu = cpu_name(), .threads = threads};
  machine.gemm_flops_f32 = cpu::measure_gemm_peak(DType::kF32);
  machine.gemm_flops_bf16 = cpu::measure_gemm_peak(DType::kBF16);
  machine.copy_bytes_per_s = measure_copy_rate(threads, size_t{256} << 20U);
  fmt::print(
      "gemm float32   {:.0f} GFLOP/s\ngemm bfloat16  {:.0f} GFLOP/s\ncopy           {:.1f} GB/s\n",
      1e-9 * machine.gemm_flops_f32, 1e-9 * machine.gemm_flops_bf16,
      1e-9 * machine.copy_bytes_per_s);
  const std::string writable = check_folder(folder);
  fmt::print("{:<14} {}\n", folder, writable);
  print_gpus();
  TOK_REQUIRE(writable == "ok", "doctor: {}", writable);
  const auto file = save_machine_file(machine);
  fmt::print("saved to {}: training now reports mfu against the gemm figures\n", file.string());
  return 0;
}

}  // namespace tokamak::cli
