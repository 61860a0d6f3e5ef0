#include "tokamak/cli/proxy_run.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "tokamak/cli/devices.h"
#include "tokamak/cli/fit.h"
#include "tokamak/comm/mpi_world.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/gpu/backend.h"
#include "tokamak/gpu/device_info.h"
#include "tokamak/price/machine/device_names.h"
#include "tokamak/price/report/preset_table.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/planned_ranks.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/train/run_signals.h"

namespace tokamak::cli {
namespace {

constexpr int64_t kUnseenMemory = int64_t{80} << 30;  // of a GPU that is not here

bool asks_for_proxy(const std::string& word) {
  return word == "--proxy" || word.starts_with("--proxy=");
}

// The ranks that a process without a launcher starts.
struct Start {
  int64_t ranks = 1;       ///< 1 where it trains alone, or only prints
  int64_t most_ranks = 1;  ///< the N of --proxy=N with which the ranks scale down alike
};

void require_fit(const RunConfig& run, LaunchEnvironment launched, int64_t ranks) {
  const PlanTarget target = plan_target({.device = run.config.job.device, .threads = 1});
  const ModelSpec spec = spec_of(run.config);
  const PlannedRun planned(spec, shape_of(run.config, spec, run.place), target.target);
  launched.world_size = launched.local_size = static_cast<int>(ranks);
  const Fit fit = fit_of(run, planned, target.target, launched);
  std::string why = fit.text;
  std::ranges::replace(why, '\n', ';');
  TOK_REQUIRE(fit.fits, "--proxy: {} try fewer ranks by --proxy={}, or --training.seq_len={}", why,
              ranks / 2, run.config.training.seq_len / 2);
}

Start start_of(Args args, const LaunchEnvironment& launched) {
  const bool only_prints =
      has_word(args, "--help") || has_word(args, "-h") || has_word(args, "--dry-run");
  if (only_prints) return {};
  const auto run = load_run_config(args, "train", launched);
  if (!run || !run->proxy || !run->needs.empty()) return {};
  const Start start{.ranks = run->place.degrees.world(), .most_ranks = run->proxy->most_ranks};
  if (start.ranks > 1 && !means_gpu(run->config.job.device))
    require_fit(*run, launched, start.ranks);
  return start;
}

std::optional<double> peak_of(const RunConfig& run, const Backend& backend,
                              std::optional<double> logged) {
  if (!is_gpu(backend)) return logged;
  const auto device = price::device_of_driver(device_text(backend));
  if (!device) return std::nullopt;
  const double peak =
      device->peak_flops[matmul_precision(run.config, linear_precision(run.config))];
  return peak > 0.0 ? std::optional(peak) : std::nullopt;
}

}  // namespace

ProxyLimits proxy_limits(const std::string& device, std::optional<int64_t> most_ranks,
                         const LaunchEnvironment& launched) {
  const bool is_launched = launched.source != "none";
  const int64_t started = most_ranks.value_or(launched.world_size);
  if (!means_gpu(device)) {
    ProxyLimits limits;
    if (is_launched || most_ranks) limits.num_ranks = started;
    if (!has_mpi()) limits.num_ranks = 1;
    return limits;
  }
  const int here = gpu::num_devices();
  if (here == 0) return gpu_proxy_limits(started, kUnseenMemory);
  return gpu_proxy_limits(is_launched || most_ranks ? started : here,
                          gpu::describe_device(0).memory_bytes);
}

std::optional<int> launch_proxy(Args args, const LaunchEnvironment& launched) {
  const bool is_proxy = std::ranges::any_of(args, asks_for_proxy);
  if (!is_proxy || launched.source != "none") return std::nullopt;
  Start start;
  {
    const RunSignals waiting;  // before a driver starts threads
    start = start_of(args, launched);
  }
  if (start.ranks == 1) return std::nullopt;
  std::vector<std::string> words{"-n", std::to_string(start.ranks), "--", "train"};
  for (const std::string& word : args)
    words.push_back(asks_for_proxy(word) ? fmt::format("--proxy={}", start.most_ranks) : word);
  return run_launch(words);
}

void report_preset(const RunConfig& run, const Backend& backend, std::optional<double> peak_flops,
                   const StepTimes& times) {
  const Degrees& degrees = run.place.degrees;
  const Config& c = run.config;
  const int64_t sequences = batch_sizes(c, degrees).global;
  const PresetRun measured{.model = spec_of(c),
                           .seq_len = c.training.seq_len,
                           .tokens_per_step = static_cast<double>(sequences * c.training.seq_len),
                           .num_devices = degrees.world(),
                           .last_step_s = times.last_s(),
                           .median_step_s = times.median_s(),
                           .peak_flops = peak_of(run, backend, peak_flops),
                           .is_proxy = run.proxy.has_value()};
  const int64_t ranks = degrees.world();
  const std::string devices = is_gpu(backend) ? "x " + device_text(backend)
                              : ranks == 1    ? "CPU rank"
                                              : "CPU ranks";
  const std::string title =
      fmt::format("{}, {} {}", run.proxy ? "proxy" : "this run", ranks, devices);
  const PresetTable table = preset_table(find_preset(*run.preset), measured, title);
  fmt::print("\n{}", to_text(table));
  write_file_atomic(std::filesystem::path(c.job.dump_folder) / "preset.json", to_json(table));
}

}  // namespace tokamak::cli
