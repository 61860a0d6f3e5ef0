#include "tokamak/cli/price.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tokamak/cli/console.h"
#include "tokamak/cli/run_config.h"
#include "tokamak/config/describe.h"
#include "tokamak/core/file.h"
#include "tokamak/price/report/report_json.h"
#include "tokamak/price/report/report_of.h"
#include "tokamak/run/presets.h"
#include "tokamak/run/run_of_config.h"

namespace tokamak::cli {
namespace {

void print_machines() {
  size_t width = 0;
  for (const std::string& name : price::machine_names()) width = std::max(width, name.size());
  for (const std::string& name : price::machine_names()) {
    const price::Machine machine = price::load_machine(name);
    std::vector<std::string> levels;
    for (const price::Level& level : machine.levels) {
      levels.push_back(level.num_devices > 0 ? fmt::format("{} {}", level.name, level.num_devices)
                                             : level.name);
    }
    fmt::print("{:<{}}  {}; {}\n", name, width, machine.about, fmt::join(levels, ", "));
  }
  fmt::print("parts, to be joined by +: {}\n", fmt::join(price::machine_part_names(), ", "));
}

// Returns what a source states; unstated figures are null.
OrderedJson published_json(const Preset& p) {
  const auto stated = [](const std::optional<double>& figure) {
    return figure ? OrderedJson(*figure) : OrderedJson();
  };
  return {{"preset", p.name},
          {"step_time_s", stated(p.step_s)},
          {"tokens_per_s_per_gpu", stated(p.tokens_per_s)},
          {"tflops_per_gpu", stated(p.tflops)},
          {"mfu_percent", stated(p.mfu)},
          {"source", p.source},
          {"note", p.note}};
}

std::string json_text(const PriceWords& words, const price::Report& report) {
  if (!words.preset) return to_json(report);
  OrderedJson json = price::report_json(report);
  json["published"] = published_json(find_preset(*words.preset));
  return json.dump(2) + "\n";
}

PricedRun price_with_progress(PriceRequest request) {
  Waiting waiting("pricing");
  request.progress = [&](std::string_view what, int64_t done, int64_t total) {
    waiting.set(fmt::format("{} of {} {}", done, total, what));
  };
  return price_run(request);
}

}  // namespace

std::vector<std::string> unpriced_lines(const Config& config, const price::Machine& machine) {
  std::vector<std::string> lines;
  for (const Need& need : unpriced(config, plans_low(machine)))
    lines.push_back(fmt::format("not priced: {} = {}: {}", need.key, need.value, need.reason));
  if (has_model(config) && spec_of(config).attention.score_cap > 0.0) {
    lines.emplace_back("not priced: the caps of scores: attention is priced as without them");
  }
  return lines;
}

price::Machine machine_of(const PriceWords& words, const std::string& cluster) {
  price::Machine machine = price::load_machine(cluster);
  for (const std::string& set : words.sets) price::set_number(machine, set);
  price::validate(machine);
  return machine;
}

void require_low_products(const Config& config, price::Precision precision) {
  TOK_REQUIRE(compute_type(config) != DType::kF32 || precision == price::Precision::kBf16,
              "--precision {}: training.mixed_precision_param = \"{}\": wanted bfloat16 with it",
              name_of(precision), config.training.mixed_precision_param);
}

std::optional<PriceRequest> request_of(const PriceWords& words, const PricePoint& point) {
  std::vector<std::string> args = words.rest;
  args.insert(args.end(), point.overrides.begin(), point.overrides.end());
  args.push_back(fmt::format("--world-size={}", point.num_gpus));
  const auto run = load_run_config(args, "plan", {.source = "none"});
  if (!run) return std::nullopt;
  price::require_devices(point.machine, point.num_gpus, point.gpus_word);
  const std::optional<price::Precision> precision =
      point.precision ? point.precision : words.precision;
  if (precision) require_low_products(run->config, *precision);
  return PriceRequest{.config = run->config,
                      .degrees = run->place.degrees,
                      .machine = price::with_equal_domains(point.machine, point.num_gpus),
                      .linear = precision,
                      .all_ranks = words.all_ranks,
                      .wants_spans = words.sweeps.empty() && (words.trace || words.html)};
}

int print_price(const PriceWords& words) {
  if (words.cluster == "list" || words.numbers) check_run_keys(words.rest, "plan");
  if (words.cluster == "list") {
    print_machines();
    return 0;
  }
  if (!words.sweeps.empty() && !words.numbers) return print_sweep(words);
  const price::Machine machine = machine_of(words, words.cluster);
  if (words.numbers) {
    fmt::print("{}", machine.describe());
    return 0;
  }
  if (words.search) return print_search(words, machine);
  const auto request = request_of(words, {.machine = machine,
                                          .num_gpus = *words.num_gpus,
                                          .gpus_word = fmt::format("--gpus {}", *words.num_gpus)});
  if (!request) return 0;
  const PricedRun run = price_with_progress(*request);
  for (const std::string& line : unpriced_lines(request->config, request->machine))
    fmt::print(stderr, "{}\n", line);
  const price::Report report = report_of(*request, run, words.tokens);
  if (words.write) {
    Config config = request->config;
    set_linear_precision(config, request->precision());
    write_file_atomic(*words.write, config_toml(config));
  }
  if (words.trace) write_file_atomic(*words.trace, trace_of(run));
  if (words.html) write_file_atomic(*words.html, page_of(run, report));
  fmt::print("{}", words.json ? json_text(words, report) : to_text(report));
  if (words.write && !words.json) fmt::print("wrote the configuration to {}\n", *words.write);
  if (words.preset && !words.json) fmt::print("{}", published_text(find_preset(*words.preset)));
  return 0;
}

}  // namespace tokamak::cli
