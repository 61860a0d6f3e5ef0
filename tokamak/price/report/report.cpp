#include "tokamak/price/report/report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tokamak/core/bytes.h"
#include "tokamak/price/report/report_json.h"

namespace tokamak::price {
namespace {

constexpr double kDay = 86400.0;
constexpr double kHour = 3600.0;
constexpr double kMostDays = 1e9;

double percent(double part, double whole) {
  return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

double category(const Report& r, Category c) {
  return r.step.by_category[c];
}

std::string duration(double seconds) {
  if (seconds > kMostDays * kDay) return "for ever";
  if (seconds < 1.0) return fmt::format("{:.1f} ms", 1e3 * seconds);
  if (seconds < 120.0) return fmt::format("{:.2f} s", seconds);
  if (seconds < 2.0 * kHour) return fmt::format("{:.1f} min", seconds / 60.0);
  return fmt::format("{:.1f} h", seconds / kHour);
}

std::string speed_text(const Report& r) {
  std::string text = fmt::format(
      "{:<26}{:>12.4f} s\n{:<26}{:>12.0f}\n{:<26}{:>12.1f}\n\n{:<26}{:>12}{:>13}{:>9}\n", "step",
      r.step.seconds, "tokens/s", r.tokens_per_s(), "tokens/s/GPU", r.device_tokens_per_s(),
      "FLOPs counted as", "GFLOP/token", "TFLOP/s/GPU", "MFU %");
  for (const FlopsCount& count : r.flops) {
    text +=
        fmt::format("  {:<24}{:>12.1f}{:>13.1f}{:>9.2f}\n", count.name, 1e-9 * count.per_token,
                    1e-12 * r.device_flops(count), percent(r.device_flops(count), r.peak_flops));
  }
  return text + fmt::format("  of {:.0f} TFLOP/s, the {} peak of the data sheet\n",
                            1e-12 * r.peak_flops, name_of(r.precision));
}

std::string time_text(const Report& r) {
  std::string text = fmt::format(
      "{:<26}{:>12}{:>9}\n", fmt::format("time of rank {}", r.step.slowest_rank), "ms", "step %");
  for (size_t c = 0; c < kNumCategories; ++c) {
    text +=
        fmt::format("  {:<24}{:>12.3f}{:>9.2f}\n", name_of(static_cast<Category>(c)),
                    1e3 * r.step.by_category[c], percent(r.step.by_category[c], r.step.seconds));
  }
  text += fmt::format("  {:<24}{:>12.3f}{:>9.2f}\n", "hidden communication",
                      1e3 * r.step.hidden_comm_s, percent(r.step.hidden_comm_s, r.step.seconds));
  return text + fmt::format("  {:<24}{:>12}{:>9.2f}\n", "bubble, mean of ranks", "",
                            100.0 * r.step.bubble_fraction);
}

std::string memory_text(const Report& r) {
  std::string text =
      fmt::format("{:<26}{:>12}\n", fmt::format("memory of rank {}", r.memory_rank), "GiB");
  for (const MemoryRow& row : r.memory) {
    text += fmt::format("  {:<24}{:>12.3f}", row.owner, static_cast<double>(row.bytes) / kGiB);
    if (row.host_bytes > 0)
      text += fmt::format("  and {:.3f} of the host", static_cast<double>(row.host_bytes) / kGiB);
    text += "\n";
  }
  text += fmt::format("  {:<24}{:>12.3f}  of {:.3f}\n", "peak", r.memory_bytes() / kGiB,
                      r.memory_limit_bytes / kGiB);
  if (!r.fits()) {
    text += fmt::format("does not fit: {:.3f} GiB too much; try {}\n",
                        (r.memory_bytes() - r.memory_limit_bytes) / kGiB, r.memory_advice);
  }
  return text;
}

std::string run_text(const Report& r) {
  const double days = r.seconds_to_tokens() / kDay;
  const double hours = r.seconds_to_tokens() / kHour * static_cast<double>(r.num_devices);
  std::string text = fmt::format("{:<26}{:>12.2f} days, {:.0f} GPU-hours\n",
                                 fmt::format("{:.3g} tokens", r.tokens), days, hours);
  const Reliability& c = r.reliability;
  const std::string stored =
      c.checkpoint.has_storage
          ? fmt::format("safe after {}, loaded in {}", duration(c.checkpoint.durable_s),
                        duration(c.checkpoint.load_s))
          : "safe when is not known: no storage.write_bytes_per_s, as +site-unknown has";
  text += fmt::format("{:<26}{:>12.2f} GiB of a device: step stands {}, {}\n", "checkpoint",
                      c.checkpoint.rank_bytes / kGiB, duration(c.checkpoint.stall_s), stored);
  if (c.failures.failures_per_s > 0.0 && c.checkpoint.has_storage) {
    const double real_days = days / c.goodput;
    text += fmt::format(
        "{:<26}{:>12.4f} with a checkpoint every {} ({} step{}), a failure every {}: {}\n",
        "goodput", c.goodput, duration(c.interval_s), c.interval_steps,
        c.interval_steps == 1 ? "" : "s", duration(1.0 / c.failures.failures_per_s),
        real_days < kMostDays ? fmt::format("{:.2f} days", real_days) : "never done");
    text += fmt::format("{:<26}{:>12} beside {} nodes, enough 99 times in 100\n", "spares",
                        c.num_spares, c.num_nodes);
  }
  return text;
}

OrderedJson all_flops_json(const Report& r) {
  OrderedJson all = OrderedJson::array();
  for (const FlopsCount& count : r.flops)
    all.push_back(flops_json(count, r.device_tokens_per_s(), r.peak_flops));
  return all;
}

OrderedJson memory_json(const Report& r) {
  OrderedJson rows = OrderedJson::array();
  for (const MemoryRow& row : r.memory) {
    rows.push_back({{"owner", row.owner}, {"bytes", row.bytes}});
    if (row.host_bytes > 0) rows.back()["host_bytes"] = row.host_bytes;
  }
  OrderedJson json = {{"rank", r.memory_rank},
                      {"rows", rows},
                      {"peak_bytes", r.memory_bytes()},
                      {"limit_bytes", r.memory_limit_bytes},
                      {"fits", r.fits()}};
  if (!r.fits()) json["advice"] = r.memory_advice;
  return json;
}

OrderedJson reliability_json(const Report& r) {
  const Reliability& c = r.reliability;
  const auto stored = [&](double seconds) -> OrderedJson {
    return c.checkpoint.has_storage ? OrderedJson(seconds) : OrderedJson();
  };
  const bool fails = c.failures.failures_per_s > 0.0;
  return {{"rank_bytes", c.checkpoint.rank_bytes},
          {"stall_s", c.checkpoint.stall_s},
          {"durable_s", stored(c.checkpoint.durable_s)},
          {"load_s", stored(c.checkpoint.load_s)},
          {"failures_per_s", c.failures.failures_per_s},
          {"best_interval_s", fails ? stored(c.interval_s) : OrderedJson()},
          {"goodput", stored(c.goodput)},
          {"nodes", c.num_nodes},
          {"spare_nodes", c.num_spares}};
}

}  // namespace

double Report::memory_bytes() const {
  double bytes = 0.0;
  for (const MemoryRow& row : memory) bytes += static_cast<double>(row.bytes);
  return bytes;
}

Reliability reliability_of(const SavedState& state, const StepPrice& step, const Machine& machine) {
  const int num_devices = state.num_ranks;
  // The copy overlaps forward and backward until the optimizer overwrites its source.
  const double optimizer_s = step.by_category[Category::kOptimizer];
  const double hidden_s = std::max(0.0, step.seconds - optimizer_s);
  Reliability r{.checkpoint = checkpoint_cost(state, hidden_s, machine)};
  r.failures = failure_model(num_devices, r.checkpoint, machine);
  const int node = machine.storage.devices_per_node;
  r.num_nodes = (num_devices + node - 1) / node;
  const double down = machine.failures.per_device_s * node * machine.failures.repair_s;
  r.num_spares = num_spares(r.num_nodes, std::min(1.0, down));
  if (r.failures.failures_per_s > 0.0) {
    r.interval_steps =
        std::max<int64_t>(1, std::llround(std::ceil(best_interval_s(r.failures) / step.seconds)));
    r.interval_s = static_cast<double>(r.interval_steps) * step.seconds;
    r.goodput = goodput(r.failures, r.interval_s);
  }
  return r;
}

std::string to_text(const Report& r) {
  const std::string lag =
      r.slowest_lag > 0.0
          ? fmt::format("the slowest device {:.1f} % behind the mean where power is short\n",
                        100.0 * r.slowest_lag)
          : "";
  std::string notes;
  for (const std::string& note : {r.unverified, r.taken}) notes += note.empty() ? "" : note + "\n";
  return fmt::format("{} on {} x {}, {}{}\n{}{}\n{}\n{}\n{}\n{}\n{}\n{}", r.model, r.num_devices,
                     r.machine, name_of(r.precision), r.device_graphs ? ", device graphs" : "",
                     notes, r.mesh, r.schedule, lag, speed_text(r), time_text(r), memory_text(r),
                     run_text(r));
}

OrderedJson time_json(const StepPrice& step) {
  OrderedJson json;
  for (size_t c = 0; c < kNumCategories; ++c)
    json[std::string(name_of(static_cast<Category>(c)))] = step.by_category[c];
  return json;
}

OrderedJson flops_json(const FlopsCount& count, double device_tokens_per_s, double peak_flops) {
  const double flops = device_tokens_per_s * count.per_token;
  return {{"formula", count.name},
          {"flops_per_token", count.per_token},
          {"flops_per_s_per_gpu", flops},
          {"mfu", flops / peak_flops}};
}

OrderedJson report_json(const Report& r) {
  return {{"model", r.model},
          {"machine", r.machine},
          {"unverified", r.unverified.empty() ? OrderedJson() : OrderedJson(r.unverified)},
          {"domains_taken", r.taken.empty() ? OrderedJson() : OrderedJson(r.taken)},
          {"gpus", r.num_devices},
          {"mesh", r.mesh},
          {"schedule", r.schedule},
          {"precision", std::string(name_of(r.precision))},
          {"device_graphs", r.device_graphs},
          {"slowest_lag", r.slowest_lag},
          {"step_time_s", r.step.seconds},
          {"tokens_per_step", r.tokens_per_step},
          {"tokens_per_s", r.tokens_per_s()},
          {"tokens_per_s_per_gpu", r.device_tokens_per_s()},
          {"peak_flops", r.peak_flops},
          {"flops", all_flops_json(r)},
          {"slowest_rank", r.step.slowest_rank},
          {"time_s", time_json(r.step)},
          {"exposed_comm_s", category(r, Category::kExposedComm)},
          {"hidden_comm_s", r.step.hidden_comm_s},
          {"bubble_fraction", r.step.bubble_fraction},
          {"memory", memory_json(r)},
          {"tokens", r.tokens},
          {"days", r.seconds_to_tokens() / kDay},
          {"gpu_hours", r.seconds_to_tokens() / kHour * static_cast<double>(r.num_devices)},
          {"checkpoint", reliability_json(r)},
          {"events", r.step.events}};
}

std::string to_json(const Report& report) {
  return report_json(report).dump(2) + "\n";
}

}  // namespace tokamak::price
