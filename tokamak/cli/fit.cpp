#include "tokamak/cli/fit.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/host_memory.h"
#include "tokamak/core/names.h"
#include "tokamak/core/usable_cores.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/models/model.h"
#include "tokamak/price/machine/device_names.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/flops.h"
#include "tokamak/run/plan_proof.h"
#include "tokamak/train/bench/machine_file.h"
#include "tokamak/train/state/step_memory.h"

namespace tokamak::cli {
namespace {

class Fitting {
 public:
  void add(const std::string& what, bool fits) {
    fit_.text += fmt::format("{}: {}\n", what, fits ? "fits" : "does not fit");
    fit_.fits = fit_.fits && fits;
  }

  void say(const std::string& what) { fit_.text += what + "\n"; }

  Fit take() { return std::move(fit_); }

 private:
  Fit fit_;
};

// Memory that the ranks of this host share.
void fit_host_memory(const std::string& what, int64_t planned, const LaunchEnvironment& launched,
                     Fitting& out) {
  const int64_t ranks = launched.local_size;
  const int64_t free = host_memory().free;
  out.add(fmt::format("{}: {:.2f} GiB planned{}, {:.2f} of {:.2f} GiB free", what,
                      gib(planned * ranks), ranks > 1 ? fmt::format(" for {} ranks", ranks) : "",
                      gib(free), gib(host_memory().limit)),
          planned * ranks <= free);
}

// `tokamak launch --keep-last-step` keeps the State of the last steps in this host's memory.
int64_t last_step_bytes(const PlannedRun& planned) {
  return std::getenv(kStepMemoryVariable) == nullptr ? 0
                                                     : bytes_of_step_memory(planned.pieces(), 0);
}

void fit_memory(bool on_gpu, const PlannedRun& planned, const LaunchEnvironment& launched,
                Fitting& out) {
  const int64_t kept = last_step_bytes(planned);
  if (!on_gpu) {
    return fit_host_memory(kept > 0 ? "memory, with the copies of --keep-last-step" : "memory",
                           planned.peak_bytes() + planned.host_bytes() + kept, launched, out);
  }
  const gpu::MemoryInUse memory = gpu::memory_in_use();
  const int64_t free = memory.total_bytes - memory.used_bytes;
  out.add(fmt::format("GPU memory: {:.2f} GiB planned, {:.2f} of {:.2f} GiB free",
                      gib(planned.peak_bytes()), gib(free), gib(memory.total_bytes)),
          planned.peak_bytes() <= free);
  if (planned.host_bytes() + kept == 0) return;
  std::string what = planned.host_bytes() > 0 ? "what is offloaded" : "";
  if (kept > 0) what += what.empty() ? "" : " and of ";
  if (kept > 0) what += "the copies of --keep-last-step";
  fit_host_memory("host memory of " + what, planned.host_bytes() + kept, launched, out);
}

// The folder, or the nearest one above it that is there.
std::filesystem::path existing(std::filesystem::path folder) {
  std::error_code code;
  folder = std::filesystem::absolute(folder, code);
  while (!std::filesystem::exists(folder, code) && folder != folder.parent_path())
    folder = folder.parent_path();
  return folder;
}

void fit_disk(const Config& c, const PlannedRun& planned, Fitting& out) {
  if (!c.checkpoint.enable || c.checkpoint.load_only) return;
  const TrainingGraphOptions& training = planned.shape().training;
  const int64_t parameters = count_parameters(planned.config()).total;
  const auto master = static_cast<int64_t>(size_of(training.master));
  const auto state =
      static_cast<int64_t>(size_of(training.optimizer.state.value_or(training.master)));
  const int64_t each = parameters * (master + 2 * state);
  const int64_t interval = std::max<int64_t>(1, c.checkpoint.interval);
  int64_t count = (c.training.steps + interval - 1) / interval;
  // One more is written before the oldest is removed.
  if (c.checkpoint.keep_latest_k > 0) count = std::min(count, c.checkpoint.keep_latest_k + 1);
  const auto at = existing(std::filesystem::path(c.job.dump_folder) / c.checkpoint.folder);
  std::error_code code;
  const auto space = std::filesystem::space(at, code);
  if (code) return out.say(fmt::format("disk: {}: {}", at.string(), code.message()));
  const auto free = static_cast<int64_t>(space.available);
  out.add(fmt::format("disk: {} checkpoint{} of {:.2f} GiB, {:.2f} GiB free in {}", count,
                      count == 1 ? "" : "s", gib(each), gib(free), at.string()),
          count * each <= free);
}

// A step's seconds where the machine is known, after a line that says whence.
std::optional<double> price_of_gpus(const RunConfig& run, Fitting& out) {
  const std::string machine =
      price::machine_of_driver(gpu::describe_device(gpu::current_device()).name);
  if (machine.empty()) return std::nullopt;
  try {
    const PricedRun priced = price_run({.config = run.config,
                                        .degrees = run.place.degrees,
                                        .machine = price::load_machine(machine)});
    out.say(
        fmt::format("time of a step: {} by price on {}", time_text(priced.step.seconds), machine));
    return priced.step.seconds;
  } catch (const Error& error) {
    out.say(fmt::format("time of a step: no price on {}: {}", machine, error.what()));
    return std::nullopt;
  }
}

std::optional<double> price_of_cpu(const RunConfig& run, const PlannedRun& planned,
                                   const LaunchEnvironment& launched, int threads, Fitting& out) {
  const auto machine = load_machine_file(threads);
  if (!machine || launched.world_size > 1) return std::nullopt;
  const Config& c = run.config;
  const double tokens = static_cast<double>(batch_sizes(c, run.place.degrees).global) *
                        static_cast<double>(c.training.seq_len);
  const double flops = flops_per_token(flops_shape(planned.config(), c.training.seq_len)) * tokens;
  const double seconds = flops / machine->gemm_flops(planned.shape().training.compute);
  out.say(
      fmt::format("time of a step: at least {} at the rate of matmuls that doctor measured here",
                  time_text(seconds)));
  return seconds;
}

std::optional<double> allocation_left_s() {
  const char* end = std::getenv("SLURM_JOB_END_TIME");
  if (end == nullptr) return std::nullopt;
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  return std::max(0.0, std::atof(end) - static_cast<double>(now));
}

void fit_time(std::optional<double> step_s, const Config& c, Fitting& out) {
  const auto left = allocation_left_s();
  if (!left) return;
  if (!step_s) {
    out.say(fmt::format(
        "time: {} left of the allocation; how long a step takes here is not known before the "
        "first one",
        time_text(*left)));
    return;
  }
  const double steps_s = *step_s * static_cast<double>(c.training.steps);
  out.add(fmt::format("time: {} for {} steps, {} left of the allocation", time_text(steps_s),
                      c.training.steps, time_text(*left)),
          steps_s <= *left);
}

}  // namespace

std::string proof_text(const PlannedRun& planned, const Target& target) {
  if (planned.mesh().size() == 1) {
    prove_plans(planned);
    return "proof: the plan orders all tasks that touch the same bytes\n";
  }
  const PlannedKinds proven = prove_all_ranks(planned, target, usable_cores());
  return fmt::format(
      "proof: the plans order all tasks that touch the same bytes, and the collectives of {} ranks "
      "of {} kind{} meet ({} ranks planned)\n",
      with_commas(int64_t{planned.mesh().size()}), proven.kinds.size(),
      proven.kinds.size() == 1 ? "" : "s", proven.num_planned);
}

std::string time_text(double seconds) {
  if (seconds < 1.0) return fmt::format("{:.3g} ms", 1e3 * seconds);
  if (seconds < 120.0) return fmt::format("{:.3g} s", seconds);
  if (seconds < 7200.0) return fmt::format("{:.3g} min", seconds / 60.0);
  if (seconds < 172800.0) return fmt::format("{:.3g} hours", seconds / 3600.0);
  return fmt::format("{:.3g} days", seconds / 86400.0);
}

Fit fit_of(const RunConfig& run, const PlannedRun& planned, const Target& target,
           const LaunchEnvironment& launched) {
  Fitting out;
  const bool on_gpu = means_gpu(run.config.job.device);
  fit_memory(on_gpu, planned, launched, out);
  fit_disk(run.config, planned, out);
  const auto step_s =
      on_gpu ? price_of_gpus(run, out) : price_of_cpu(run, planned, launched, target.threads, out);
  fit_time(step_s, run.config, out);
  return out.take();
}

}  // namespace tokamak::cli
