#include "tokamak/price/task/calibrate.h"

#include <algorithm>
#include <cmath>

#include "tokamak/core/error.h"
#include "tokamak/price/machine/machine_key.h"

namespace tokamak::price {

namespace {

double best_rate(std::span<const TimedOp> ops, Cost::Kind kind, bool is_gradient) {
  double best = 0.0;
  for (const TimedOp& op : ops) {
    const bool has_suffix = op.op.find("_grad") != std::string::npos;
    if (op.kind != kind || op.seconds <= 0.0) continue;
    if (kind == Cost::Kind::kAttention && has_suffix != is_gradient) continue;
    const double amount = kind == Cost::Kind::kMemory ? op.bytes : op.flops;
    best = std::max(best, amount / op.seconds);
  }
  return best;
}

// Returns the rate of all ops of a kind together. This rate lasts, while the fastest op shows what
// a cold device reaches.
double total_rate(std::span<const TimedOp> ops, Cost::Kind kind) {
  double amount = 0.0;
  double seconds = 0.0;
  for (const TimedOp& op : ops) {
    if (op.kind != kind || op.seconds <= 0.0) continue;
    amount += kind == Cost::Kind::kMemory ? op.bytes : op.flops;
    seconds += op.seconds;
  }
  return seconds > 0.0 ? amount / seconds : 0.0;
}

// Returns "key = { value = 1.5, unit = "GB/s", source = "..." }".
std::string line_of(const std::string& key, double in_si, Dimension dimension,
                    const std::string& source) {
  const std::string text = text_of(in_si, dimension);
  const size_t blank = text.find(' ');
  const std::string unit =
      blank == std::string::npos ? "" : fmt::format("unit = \"{}\", ", text.substr(blank + 1));
  return fmt::format("{} = {{ value = {}, {}source = \"{}\" }}\n", key, text.substr(0, blank), unit,
                     source);
}

// `alone` names the file if it refines no base.
std::string head_of(const std::string& base, std::string_view alone) {
  if (base.empty()) return fmt::format("# Read by tokamak price --cluster {}\n", alone);
  return fmt::format("# Refines {0}: tokamak price --cluster {0}+THIS.toml\n", base);
}

// Makes `text` safe between the quotes of a TOML text.
std::string plain(std::string text) {
  for (char& c : text) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

// The logarithm makes twice too long as wrong as twice too short, so noise cannot pull times to 0.
double mean_log_error(const Machine& machine, const GroupLayout& group,
                      std::span<const TimedCollective> timed) {
  double sum = 0.0;
  for (const TimedCollective& t : timed) {
    sum += std::abs(std::log(collective_seconds(t.kind, t.bytes, group, machine) / t.seconds));
  }
  return sum / static_cast<double>(timed.size());
}

size_t connecting_level(const Machine& machine, int num_ranks) {
  for (size_t l = 0; l < machine.levels.size(); ++l) {
    const int devices = machine.levels[l].num_devices;
    if (devices == 0 || devices >= num_ranks) return l;
  }
  fail("{}: no level connects {} ranks", machine.name, num_ranks);
}

}  // namespace

std::string device_toml(const std::string& base, const std::string& device, double memory_bytes,
                        Precision precision, std::span<const TimedOp> ops) {
  const double product = best_rate(ops, Cost::Kind::kGemm, false);
  const double forward = best_rate(ops, Cost::Kind::kAttention, false);
  const double backward = best_rate(ops, Cost::Kind::kAttention, true);
  const double memory = best_rate(ops, Cost::Kind::kMemory, false);
  TOK_REQUIRE(product + forward + backward + memory > 0.0,
              "--calibration: no product, attention or memory-bound op was timed");
  const std::string source = plain(fmt::format("measured by tokamak bench op on {}", device));
  std::string out = head_of(base, "THIS.toml") + "\n[device]\n";
  const auto add = [&](const std::string& key, double value, Dimension dimension) {
    out += line_of(key, value, dimension, source);
  };
  const std::string_view suffix = name_of(precision);
  double peak = product;
  double sheet = memory;
  double derate = 1.0;
  bool knows_cold_rates = false;
  if (base.empty()) {
    TOK_REQUIRE(product > 0.0 && memory > 0.0,
                "--calibration without --machine: wanted products and memory-bound ops, as bench "
                "op all times them");
    out += fmt::format("name = \"{}\"\n", plain(device));
    add(fmt::format("peak_flops_{}", suffix), product, Dimension::kFlopsPerSecond);
    add("memory_bytes", memory_bytes, Dimension::kBytes);
    add("memory_bytes_per_s", memory, Dimension::kBytesPerSecond);
    // Matmuls of any shape run at their best rate, on the whole device at once.
    add("num_sms", 1.0, Dimension::kNone);
    add("tile_1x1", 1.0, Dimension::kNone);
  } else {
    const Machine machine = load_machine(base);
    peak = machine.device.peak_flops[precision];
    sheet = machine.device.memory.bytes_per_s;
    derate = machine.software.power_derate;
    // Ops that are timed long enough to last have warmed the device.
    knows_cold_rates = machine.device.power.memory > 0.0;
    TOK_REQUIRE(peak > 0.0, "--machine {}: no device.peak_flops_{}", base, suffix);
  }
  const double derated_peak = peak * derate;
  const auto share = [](double rate, double of) { return std::min(rate / of, 1.0); };
  if (product > 0.0) {
    if (!knows_cold_rates)
      add(fmt::format("gemm_efficiency_{}", suffix), share(product, derated_peak),
          Dimension::kNone);
    add("gemm_sustained_efficiency", share(total_rate(ops, Cost::Kind::kGemm), peak),
        Dimension::kNone);
  }
  if (forward > 0.0 && !knows_cold_rates)
    add("attention_forward_efficiency", share(forward, derated_peak), Dimension::kNone);
  if (backward > 0.0 && !knows_cold_rates)
    add("attention_backward_efficiency", share(backward, derated_peak), Dimension::kNone);
  if (memory > 0.0) {
    add("memory_efficiency", share(total_rate(ops, Cost::Kind::kMemory), sheet), Dimension::kNone);
  }
  return out;
}

double fit_level(Machine& machine, size_t level, int num_ranks,
                 std::span<const TimedCollective> timed) {
  const GroupLayout group = strided_layout(num_ranks, 1, machine);
  Level& l = machine.levels[level];

  struct Parameter {
    double* value;
    double max;
  };

  std::vector<Parameter> parameters = {{&l.base_s, 1.0}, {&l.sqrt_s, 1.0}, {&l.efficiency, 1.0}};
  const bool reduces = l.switch_reduce_min_devices > 0;
  if (reduces) {
    parameters.push_back({&l.switch_reduce_base_s, 1.0});
    parameters.push_back({&l.switch_reduce_bytes_per_s, 1e15});
  }
  // A time of 0 could never change, because the fit multiplies by factors.
  for (double* seconds : {&l.base_s, &l.sqrt_s}) *seconds = std::max(*seconds, 1e-7);
  double best = mean_log_error(machine, group, timed);
  for (double step = 2.0; step > 1.001;) {
    bool has_improved = false;
    for (const Parameter& p : parameters) {
      for (const double factor : {step, 1.0 / step}) {
        const double before = *p.value;
        *p.value = std::min(before * factor, p.max);
        const double error = mean_log_error(machine, group, timed);
        if (error < best * (1.0 - 1e-9)) {
          best = error;
          has_improved = true;
        } else {
          *p.value = before;
        }
      }
    }
    if (!has_improved) step = std::sqrt(step);
  }
  return std::expm1(best);
}

std::string fabric_toml(const std::string& base, int num_ranks,
                        std::span<const TimedCollective> timed) {
  TOK_REQUIRE(!timed.empty(), "--calibration: no collective was timed");
  Machine machine;
  std::string out = head_of(base, "DEVICE+THIS.toml");
  if (base.empty()) {
    double rate = 0.0;
    for (const TimedCollective& t : timed) rate = std::max(rate, 2.0 * t.bytes / t.seconds);
    machine.name = "host";
    machine.levels.push_back({.name = "host",
                              .num_devices = num_ranks,
                              .bytes_per_s = rate,
                              .efficiency = 0.5,
                              .latency_s = 1e-6,
                              .base_s = 1e-6});
    out += "levels = [\"host\"]\n";
  } else {
    machine = load_machine(base);
  }
  const size_t at = connecting_level(machine, num_ranks);
  const double error = fit_level(machine, at, num_ranks, timed);
  const Level& level = machine.levels[at];
  const std::string source =
      fmt::format("fitted on {} collectives of {} ranks by tokamak bench comm, mean error {:.1f} %",
                  timed.size(), num_ranks, 100.0 * error);
  out += fmt::format("\n[{}]\n", level.name);
  if (base.empty()) {
    out += line_of("num_devices", level.num_devices, Dimension::kNone, "the ranks timed");
    out += line_of("bytes_per_s", level.bytes_per_s, Dimension::kBytesPerSecond,
                   "no less than any collective reached");
    out += line_of("latency_s", level.latency_s, Dimension::kSeconds, "assumed");
  }
  out += line_of("efficiency", level.efficiency, Dimension::kNone, source);
  out += line_of("base_s", level.base_s, Dimension::kSeconds, source);
  out += line_of("sqrt_s", level.sqrt_s, Dimension::kSecondsPerRootMib, source);
  if (level.switch_reduce_min_devices > 0 && num_ranks >= level.switch_reduce_min_devices) {
    out += line_of("switch_reduce_base_s", level.switch_reduce_base_s, Dimension::kSeconds, source);
    out += line_of("switch_reduce_bytes_per_s", level.switch_reduce_bytes_per_s,
                   Dimension::kBytesPerSecond, source);
  }
  return out;
}

}  // namespace tokamak::price
