#include "tokamak/cli/devices.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include <sched.h>
#include <unistd.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/usable_cores.h"
#include "tokamak/cpu/backend.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/gpu/nccl/nccl_world.h"
#include "tokamak/launch/cluster/nvml.h"
#include "tokamak/price/machine/device_names.h"
#include "tokamak/price/machine/machine.h"
#include "tokamak/train/bench/machine_file.h"
#include "tokamak/train/together.h"

namespace tokamak::cli {
namespace {

constexpr int kUnseenArch = 90;

// Each rank sends its host and its GPU's index there.
void require_own_gpus(World& world, const LaunchEnvironment& launched) {
  const std::string mine =
      fmt::format("{} {}", launched.host, gpu::describe_device(gpu::current_device()).bus);
  const auto all = world.all_gather_text(mine);
  fail_together(world, [&] {
    std::map<std::string, std::map<std::string, int>> ranks_by_gpu;  // by host
    for (const std::string& text : all) ++ranks_by_gpu[text.substr(0, text.find(' '))][text];
    for (const auto& [host, gpus] : ranks_by_gpu) {
      int ranks = 0;
      for (const auto& [gpu, users] : gpus) ranks += users;
      TOK_REQUIRE(ranks == static_cast<int>(gpus.size()),
                  "{} ranks on {} share {} GPU{}: start one rank for each GPU, or take "
                  "--job.device=cpu",
                  ranks, host, gpus.size(), gpus.size() == 1 ? "" : "s");
    }
  });
}

}  // namespace

bool means_gpu(const std::string& device) {
  TOK_REQUIRE(device == "auto" || device == "cpu" || device == "cuda",
              "device \"{}\": wanted auto, cpu or cuda", device);
  return device == "cuda" || (device == "auto" && gpu::num_devices() > 0);
}

bool wants_copy_engine(const std::string& choice, const LaunchEnvironment& launched) {
  if (choice != "auto") return choice == "always";
  return launched.world_size > 1 && launched.local_size == launched.world_size &&
         gpu::has_copy_engine_gathers();
}

std::unique_ptr<Backend> open_backend(const DeviceChoice& choice,
                                      const LaunchEnvironment& launched) {
  if (!means_gpu(choice.device)) return cpu::make_backend({.threads = choice.threads});
  const int count = gpu::num_devices();
  TOK_REQUIRE(count > 0, "device = cuda: {}", gpu::why_none());
  const int device = launched.local_rank % count;
  const std::string machine = price::machine_of_driver(gpu::describe_device(device).name);
  return gpu::make_backend(
      {.device = device,
       .symmetric = choice.copy_engine,
       .devices_per_host = launched.local_size,
       .deterministic = choice.deterministic,
       .rates = machine.empty() ? Rates{} : price::planning_rates(price::load_machine(machine))});
}

DType compute_dtype(const std::string& dtype, const std::string& device) {
  if (dtype == "auto") return means_gpu(device) ? DType::kBF16 : DType::kF32;
  const DType type = dtype_from_name(dtype, "--dtype");
  TOK_REQUIRE(type == DType::kF32 || type == DType::kBF16,
              "--dtype \"{}\": wanted float32 or bfloat16", dtype);
  return type;
}

int threads_of(int64_t wanted, const LaunchEnvironment& launched) {
  const bool is_told = std::getenv("OMP_NUM_THREADS") != nullptr;
  if (wanted > 0 || launched.local_size == 1 || is_told) return static_cast<int>(wanted);
  cpu_set_t mine;
  const bool has_own = sched_getaffinity(0, sizeof mine, &mine) == 0 &&
                       CPU_COUNT(&mine) < sysconf(_SC_NPROCESSORS_ONLN);
  return has_own ? 0 : std::max(1, usable_cores() / launched.local_size);
}

bool is_gpu(const Backend& backend) {
  return backend.target().backend == "gpu";
}

World& device_world(World& control, Backend& backend, const LaunchEnvironment& launched,
                    bool copy_engine, std::unique_ptr<World>& owned) {
  if (!is_gpu(backend) || control.size() == 1) return control;
  require_own_gpus(control, launched);
  fail_together(control, [&] {
    owned = gpu::make_nccl_world(control, backend, {.copy_engine = copy_engine});
  });
  return *owned;
}

PlanTarget plan_target(const DeviceChoice& choice) {
  if (!means_gpu(choice.device))
    return {.target = cpu::make_backend({.threads = choice.threads})->target(), .note = ""};
  if (gpu::num_devices() == 0) {
    return {
        .target = {.backend = "gpu", .arch = kUnseenArch, .deterministic = choice.deterministic},
        .note = fmt::format("planned for sm_{}; no GPU here: {}\n", kUnseenArch, gpu::why_none())};
  }
  const auto backend = open_backend(choice, {.local_size = gpu::num_devices()});
  const gpu::DeviceInfo info = gpu::describe_device(gpu::current_device());
  return {.target = backend->target(),
          .note = fmt::format("planned for {}: {}, {:.1f} GiB\n", info.arch, info.name,
                              gib(info.memory_bytes))};
}

std::optional<PeakFlops> peak_flops(const Backend& backend, DType compute) {
  if (is_gpu(backend)) return gpu_peak_flops(device_text(backend));
  const auto machine = load_machine_file(backend.target().threads);
  if (!machine) return std::nullopt;
  return PeakFlops{.per_s = machine->gemm_flops(compute), .of = "measured by tokamak doctor"};
}

std::optional<PeakFlops> gpu_peak_flops(std::string_view driver_name) {
  const auto device = price::device_of_driver(driver_name);
  if (!device) return std::nullopt;
  return PeakFlops{.per_s = device->peak_flops[price::Precision::kBf16], .of = device->name};
}

DeviceRates rates_of(const Backend& backend) {
  if (is_gpu(backend)) {
    const auto device = price::device_of_driver(device_text(backend));
    if (!device) return {};
    return device->floor;
  }
  const auto machine = load_machine_file(backend.target().threads);
  if (!machine) return {};
  return {.gemm_flops_bf16 = machine->gemm_flops_bf16,
          .gemm_flops_f32 = machine->gemm_flops_f32,
          .bytes_per_s = machine->copy_bytes_per_s};
}

void describe_gpu(Backend& backend, launch::RankReport& report) {
  const gpu::DeviceInfo info = gpu::describe_device(gpu::current_device());
  const gpu::MemoryInUse memory = gpu::memory_in_use();
  report.device = info.name;
  report.memory_bytes = memory.total_bytes;
  // Memory that this process holds already belongs to the run.
  report.free_bytes = memory.total_bytes - memory.used_bytes + backend.allocated_bytes();
  for (const auto& [what, version] : gpu::library_versions()) report.versions[what] = version;
  const auto health = launch::gpu_health(info.bus);
  if (!health) return;
  report.clock_mhz = health->clock_mhz;
  report.most_clock_mhz = health->most_clock_mhz;
  report.ecc_errors = health->ecc_errors;
  report.faults = health->faults;
  report.nvlink_domain = health->nvlink_domain;
  report.versions["GPU driver"] = health->driver;
}

MemoryUse memory_use(const Backend& backend) {
  if (!is_gpu(backend)) return process_memory_use();
  const gpu::MemoryInUse memory = gpu::memory_in_use();
  return {.bytes = memory.used_bytes, .of_bytes = memory.total_bytes};
}

std::string device_text(const Backend& backend) {
  if (is_gpu(backend)) return gpu::describe_device(gpu::current_device()).name;
  return fmt::format("{} threads", backend.target().threads);
}

}  // namespace tokamak::cli
