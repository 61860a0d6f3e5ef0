// The one place that turns the word auto, cpu or cuda into a backend.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tokamak/comm/communicator.h"
#include "tokamak/comm/launch_environment.h"
#include "tokamak/core/dtype.h"
#include "tokamak/exec/backend.h"
#include "tokamak/launch/cluster/rank_report.h"
#include "tokamak/run/op_table.h"
#include "tokamak/train/report/memory_use.h"

namespace tokamak::cli {

/// The help text of a verb's --device.
inline constexpr const char* kDeviceHelp = "auto, cpu or cuda; auto = a GPU if there is one";

/// Whether `device` means a GPU here: auto does if GPU support is built in and a GPU is visible.
/// Throws Error for an unknown word.
bool means_gpu(const std::string& device);

struct DeviceChoice {
  std::string device = "auto";
  int threads = 0;             ///< of a CPU; 0 = all
  bool deterministic = false;  ///< a GPU's libraries add in a fixed order too
  bool copy_engine = false;    ///< a GPU's memory can be gathered by copy engines
};

/// Returns what `choice` (auto, never or always) means for ranks started like this: auto means yes
/// for several ranks of one host with an NCCL that supports it.
bool wants_copy_engine(const std::string& choice, const LaunchEnvironment& launched);

/// Opens the GPU of the local rank, or the CPU. Throws Error if cuda is asked for and there is
/// none.
std::unique_ptr<Backend> open_backend(const DeviceChoice& choice,
                                      const LaunchEnvironment& launched = {});

/// Returns the dtype that --dtype means on `device`: float32, bfloat16, or auto, which is bfloat16
/// on a GPU and float32 on a CPU. Throws Error for others.
DType compute_dtype(const std::string& dtype, const std::string& device);

/// Returns the CPU threads of a rank: `wanted`, or, where that is 0, its share of the host's cores;
/// 0 stands for all that the process may use.
int threads_of(int64_t wanted, const LaunchEnvironment& launched);

bool is_gpu(const Backend& backend);

/// Returns the world in which groups of `backend` are made: `control` itself, or one of NCCL over
/// it, which `owned` then keeps. With `copy_engine` (as for the backend) parameters are gathered
/// without kernels. Throws on all ranks if two have the same GPU. Collective.
World& device_world(World& control, Backend& backend, const LaunchEnvironment& launched,
                    bool copy_engine, std::unique_ptr<World>& owned);

struct PlanTarget {
  Target target;
  std::string note;  ///< "planned for sm_90 (...)\n"; "" for a CPU
};

/// Returns the target of a plan: this machine's device or, if cuda is asked for and no GPU is
/// visible, sm_90 with all libraries.
PlanTarget plan_target(const DeviceChoice& choice);

struct PeakFlops {
  double per_s = 0.0;
  std::string of;  ///< "NVIDIA H200 SXM 141 GB"
};

/// Returns the peak that MFU divides by: a GPU's bf16 peak from its file in machines/devices, or
/// the rate that doctor measured on this CPU. Returns nothing if neither is known.
std::optional<PeakFlops> peak_flops(const Backend& backend, DType compute);

/// Returns the same for a GPU, which is looked up by its driver name.
std::optional<PeakFlops> gpu_peak_flops(std::string_view driver_name);

/// Returns the rates that matmuls and copies reach: a GPU's from the same file, or those that
/// doctor measured on this CPU. All are 0 if neither is known.
DeviceRates rates_of(const Backend& backend);

/// Fills in the report of a rank on its GPU: memory, health and versions of libraries.
void describe_gpu(Backend& backend, launch::RankReport& report);

/// Returns the driver's figures of a GPU, or the process's own on a CPU.
MemoryUse memory_use(const Backend& backend);

/// Returns text such as "NVIDIA H200" or "8 threads".
std::string device_text(const Backend& backend);

}  // namespace tokamak::cli
