#include "tokamak/cli/price.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/run_config.h"
#include "tokamak/config/check.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/price/pictures.h"
#include "tokamak/train/presets.h"
#include "tokamak/train/report_of.h"

namespace tokamak::cli {
namespace {

// What one price is asked of.
struct Point {
  price::Machine machine;
  int64_t num_gpus = 1;
  std::vector<std::string> overrides;  // after those of the command line
};

void say_unpriced(const Config& config) {
  for (const Need& need : unpriced(config))
    fmt::print(stderr, "not priced: {} = {}: {}\n", need.key, need.value, need.reason);
}

std::optional<PriceRequest> request_of(const PriceWords& words, const Point& point) {
  std::vector<std::string> args = words.rest;
  args.insert(args.end(), point.overrides.begin(), point.overrides.end());
  args.push_back(fmt::format("--world-size={}", point.num_gpus));
  const auto run = load_run_config(args, "plan", {.source = "none"});
  if (!run) return std::nullopt;
  price::require_devices(point.machine, point.num_gpus, fmt::format("--gpus {}", point.num_gpus));
  return PriceRequest{.config = run->config,
                      .degrees = run->place.degrees,
                      .machine = point.machine,
                      .linear = words.precision.value_or(linear_precision(run->config)),
                      .all_ranks = words.all_ranks,
                      .wants_spans = !words.sweep && (words.trace || words.html)};
}

bool is_machine_key(const price::Machine& machine, const std::string& key) {
  const std::string section = key.substr(0, key.find('.') + 1);
  const std::vector<std::string> keys = price::machine_keys(machine);
  return std::any_of(keys.begin(), keys.end(),
                     [&](const std::string& known) { return known.starts_with(section); });
}

// The mesh grows in data_parallel_shard_degree; the batch of all ranks grows with it or stays.
std::vector<std::string> overrides_for_gpus(const PriceWords& words, const Point& base,
                                            int64_t num_gpus) {
  std::vector<std::string> overrides{"--parallelism.data_parallel_shard_degree=-1"};
  Point first = base;
  first.overrides = overrides;
  const auto request = request_of(words, first);
  TOK_REQUIRE(request, "--help: not with --sweep");
  const int64_t global = global_batch_size(request->config, request->degrees);
  const int64_t wanted = words.sweep->is_weak ? global * num_gpus / base.num_gpus : global;
  overrides.push_back(fmt::format("--training.global_batch_size={}", wanted));
  const int64_t dp = request->degrees.dp() * num_gpus / base.num_gpus;
  const int64_t local = request->config.training.local_batch_size;
  if (dp > 0 && wanted / dp > 0 && wanted / dp < local)
    overrides.push_back(fmt::format("--training.local_batch_size={}", wanted / dp));
  return overrides;
}

Point point_of(const PriceWords& words, const Point& base, size_t i) {
  const Sweep& sweep = *words.sweep;
  const std::string& value = sweep.values[i];
  Point point = base;
  if (!sweep.gpus.empty()) {
    point.num_gpus = sweep.gpus[i];
    point.overrides = overrides_for_gpus(words, base, point.num_gpus);
  } else if (is_machine_key(base.machine, sweep.key)) {
    price::set_number(point.machine, fmt::format("{}={}", sweep.key, value), "--sweep");
    price::validate(point.machine);
  } else {
    point.overrides = {fmt::format("--{}={}", sweep.key, value)};
  }
  return point;
}

std::string sweep_text(const Sweep& sweep, const std::vector<price::Report>& reports) {
  size_t width = sweep.key.size();
  for (const std::string& value : sweep.values) width = std::max(width, value.size());
  std::string text = fmt::format("{:<{}}{:>8}{:>12}{:>14}{:>9}{:>12}{:>10}{:>10}{:>12}\n",
                                 sweep.key, width, "GPUs", "step s", "tok/s/GPU", "MFU %",
                                 "relative %", "comm %", "bubble %", "memory GiB");
  for (size_t i = 0; i < reports.size(); ++i) {
    const price::Report& r = reports[i];
    const double comm =
        r.step.by_category[static_cast<size_t>(price::Category::kExposedComm)] / r.step.seconds;
    text += fmt::format(
        "{:<{}}{:>8}{:>12.4f}{:>14.1f}{:>9.2f}{:>12.2f}{:>10.2f}{:>10.2f}{:>12.2f}{}\n",
        sweep.values[i], width, r.num_devices, r.step.seconds, r.device_tokens_per_s(),
        100.0 * r.device_flops(r.flops[0]) / r.peak_flops,
        100.0 * r.device_tokens_per_s() / reports[0].device_tokens_per_s(), 100.0 * comm,
        100.0 * r.step.bubble_fraction, r.memory_bytes() / kGiB, r.fits() ? "" : "  does not fit");
  }
  return text + fmt::format("MFU as {} counts, of {:.0f} TFLOP/s; relative to the first line\n",
                            reports[0].flops[0].name, 1e-12 * reports[0].peak_flops);
}

std::string sweep_csv(const Sweep& sweep, const std::vector<price::Report>& reports) {
  std::string text = sweep.key == "gpus" ? std::string("gpus") : sweep.key + ",gpus";
  text += ",step_time_s,tokens_per_s_per_gpu,mfu,hidden_comm_s,bubble_fraction,memory_bytes,fits";
  for (size_t c = 0; c < price::kNumCategories; ++c)
    text += fmt::format(",{}_s", price::name_of(static_cast<price::Category>(c)));
  text += "\n";
  for (size_t i = 0; i < reports.size(); ++i) {
    const price::Report& r = reports[i];
    if (sweep.key != "gpus") text += sweep.values[i] + ",";
    text += fmt::format("{},{},{},{},{},{},{:.0f},{}", r.num_devices, r.step.seconds,
                        r.device_tokens_per_s(), r.device_flops(r.flops[0]) / r.peak_flops,
                        r.step.hidden_comm_s, r.step.bubble_fraction, r.memory_bytes(),
                        r.fits() ? 1 : 0);
    for (const double seconds : r.step.by_category) text += fmt::format(",{}", seconds);
    text += "\n";
  }
  return text;
}

int run_sweep(const PriceWords& words, const Point& base) {
  const Sweep& sweep = *words.sweep;
  std::vector<price::Report> reports;
  for (size_t i = 0; i < sweep.values.size(); ++i) {
    const auto request = request_of(words, point_of(words, base, i));
    if (!request) return 0;
    reports.push_back(report_of(*request, price_run(*request), words.tokens));
    if (i == 0) say_unpriced(request->config);
  }
  const std::string table = sweep_text(sweep, reports);
  if (words.csv) write_file_atomic(*words.csv, sweep_csv(sweep, reports));
  if (words.html) {
    write_file_atomic(
        *words.html,
        price::sweep_page(fmt::format("{} on {}", reports[0].model, reports[0].machine), table,
                          price::sweep_svg(sweep.key, sweep.values, reports)));
  }
  if (words.json) {
    fmt::print("[\n");
    for (size_t i = 0; i < reports.size(); ++i)
      fmt::print("{}{}", to_json(reports[i]), i + 1 < reports.size() ? ",\n" : "");
    fmt::print("]\n");
  } else {
    fmt::print("{} on {}, {}\n{}", reports[0].model, reports[0].machine,
               name_of(reports[0].precision), table);
  }
  return 0;
}

void print_machines() {
  for (const std::string& name : price::machine_names()) {
    const price::Machine machine = price::load_machine(name);
    std::vector<std::string> levels;
    for (const price::Level& level : machine.levels) {
      levels.push_back(level.num_devices > 0 ? fmt::format("{} {}", level.name, level.num_devices)
                                             : level.name);
    }
    fmt::print("{:<14}{}; {}\n", name, machine.about, fmt::join(levels, ", "));
  }
  fmt::print("parts, to be joined by +: {}\n", fmt::join(price::machine_part_names(), ", "));
}

}  // namespace

int run_price(const PriceWords& words) {
  if (words.cluster == "list") {
    print_machines();
    return 0;
  }
  Point base{.machine = price::load_machine(words.cluster)};
  for (const std::string& set : words.sets) price::set_number(base.machine, set);
  price::validate(base.machine);
  if (words.numbers) {
    fmt::print("{}", base.machine.describe());
    return 0;
  }
  if (words.search) return run_search(words, base.machine);
  base.num_gpus = words.num_gpus ? *words.num_gpus : words.sweep->gpus[0];
  if (words.sweep) return run_sweep(words, base);
  const auto request = request_of(words, base);
  if (!request) return 0;
  const PricedRun run = price_run(*request);
  say_unpriced(request->config);
  const price::Report report = report_of(*request, run, words.tokens);
  if (words.write) {
    Config config = request->config;
    set_linear_precision(config, request->linear);
    write_file_atomic(*words.write, config_toml(config));
  }
  if (words.trace) write_file_atomic(*words.trace, trace_of(run));
  if (words.html) write_file_atomic(*words.html, page_of(run, report));
  fmt::print("{}", words.json ? to_json(report) : to_text(report));
  if (words.preset && !words.json) fmt::print("{}", published_text(find_preset(*words.preset)));
  return 0;
}

}  // namespace tokamak::cli
