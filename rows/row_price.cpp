#include "rows/row_price.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"
#include "tokamak/price/machine/device_spread.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/price/run/slowest_place.h"

namespace tokamak {
namespace {

// Keeps the last plans made, since rows of one shape stand together in files.
class LastPlans {
 public:
  const PlannedRow& of(const MeasuredRun& run, const price::Machine& machine, int place) {
    std::string key = fmt::format("{} {}", plan_key(run, machine), place);
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const auto& kept) { return kept.first == key; });
    if (found != kept_.end()) return *found->second;
    if (kept_.size() == kMost) kept_.erase(kept_.begin());
    kept_.emplace_back(std::move(key), std::make_unique<PlannedRow>(run, machine, place));
    return *kept_.back().second;
  }

 private:
  static constexpr size_t kMost = 16;
  std::vector<std::pair<std::string, std::unique_ptr<PlannedRow>>> kept_;
};

std::string summary_line(std::string_view name, const std::vector<double>& errors) {
  if (errors.empty()) return "";
  const ErrorSummary s = summarize(errors);
  return fmt::format("{:<34}{:>5}{:>8.1f}{:>8.1f}{:>8.1f}{:>8.1f}{:>+8.1f}\n", name, s.count,
                     100.0 * s.mean, 100.0 * s.median, 100.0 * s.p90, 100.0 * s.worst,
                     100.0 * s.bias);
}

// Sources may use any encoding, so bytes that are not UTF-8 are replaced.
std::string text_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Machines by name, and for other names the reason why there is none.
struct Machines {
  std::map<std::string, price::Machine> loaded;
  std::map<std::string, std::string> errors;
};

// Throws Error if no machine of the runs takes the assignments, or, without such runs, no machine
// at all does.
Machines load_machines(const std::vector<MeasuredRun>& runs, const RowPriceOptions& options) {
  std::set<std::string> names;
  for (const MeasuredRun& run : runs) {
    if (run.skipped.empty() && !run.machine.empty()) names.insert(run.machine);
  }
  if (names.empty() && !options.assignments.empty()) {
    for (const std::string& name : price::machine_names()) names.insert(name);
  }
  Machines machines;
  std::string refusal;
  for (const std::string& name : names) {
    try {
      price::Machine machine = price::load_machine(name);
      try {
        for (const std::string& assignment : options.assignments)
          price::set_number(machine, assignment);
        price::validate(machine);
      } catch (const Error& e) {
        if (refusal.empty()) refusal = e.what();
        throw;
      }
      machines.loaded.emplace(name, std::move(machine));
    } catch (const Error& e) {
      machines.errors[name] = e.what();
    }
  }
  if (machines.loaded.empty() && !options.assignments.empty() && !refusal.empty())
    throw Error(refusal);
  return machines;
}

}  // namespace

price::Machine filled_as_of_run(const MeasuredRun& run, price::Machine machine) {
  if (!run.even_racks) return machine;
  return price::with_equal_domains(std::move(machine), run.num_gpus);
}

price::StepPrice price_planned_row(const MeasuredRun& run, const PlannedRow& planned,
                                   const price::Machine& machine) {
  return price::price_step(planned.ranks(), static_cast<int>(run.num_microbatches()),
                           price::slowest_of(filled_as_of_run(run, machine), run.num_gpus),
                           {.linear = run.precision,
                            .device_graphs = false,
                            .splits_messages = software_of_row(run, machine).whole_sequences == 1});
}

std::vector<PricedRow> price_rows(const std::vector<MeasuredRun>& runs,
                                  const RowPriceOptions& options) {
  const Machines machines = load_machines(runs, options);
  LastPlans plans;
  std::vector<PricedRow> priced;
  for (const MeasuredRun& run : runs) {
    PricedRow& p = priced.emplace_back(PricedRow{.run = run, .skipped = run.skipped});
    if (p.skipped.empty() && run.machine.empty())
      p.skipped = fmt::format("no machine file of gpu {}", printable(run.gpu));
    if (const auto error = machines.errors.find(run.machine);
        p.skipped.empty() && error != machines.errors.end())
      p.skipped = error->second;
    if (!p.skipped.empty()) continue;
    const price::Machine& machine = machines.loaded.at(run.machine);
    try {
      p.peak_flops = machine.device.peak_flops[run.precision];
      const int place =
          slowest_place(shape_of_row(run, software_of_row(run, machine), 0).distribute,
                        filled_as_of_run(run, machine));
      const PlannedRow& planned = plans.of(run, machine, place);
      p.step = price_planned_row(run, planned, machine);
      p.memory_bytes = planned.peak_bytes();
      p.memory_limit_bytes = memory_limit(machine);
    } catch (const Error& e) {
      p.skipped = e.what();
    }
  }
  return priced;
}

ErrorSummary summarize(std::vector<double> errors) {
  ErrorSummary s{.count = static_cast<int>(errors.size())};
  if (errors.empty()) return s;
  for (double& e : errors) {
    s.bias += e / s.count;
    e = std::abs(e);
    s.mean += e / s.count;
  }
  std::sort(errors.begin(), errors.end());
  const size_t n = errors.size();
  s.median = 0.5 * (errors[(n - 1) / 2] + errors[n / 2]);
  s.p90 = errors[std::min(n - 1, (9 * n + 9) / 10 - 1)];
  s.worst = errors.back();
  return s;
}

double restated_mfu(const PricedRow& p, double seconds) {
  const double tokens = static_cast<double>(p.run.global_batch * p.run.seq_len);
  return causal_flops_per_token(p.run) * tokens /
         (seconds * p.peak_flops * static_cast<double>(p.run.num_gpus));
}

std::string to_json(const PricedRow& p) {
  OrderedJson json = {{"row", p.run.number},
                      {"line", p.run.line},
                      {"source", p.run.source},
                      {"gpu", p.run.gpu},
                      {"n_gpus", p.run.num_gpus},
                      {"model", p.run.model},
                      {"precision", p.run.stated_precision}};
  if (!p.skipped.empty()) {
    json["skipped"] = p.skipped;
    return text_of(json);
  }
  json["machine"] = p.run.machine;
  json["family"] = p.run.family;
  json["calibrates"] = p.run.calibrates;
  json["predicted_step_time_s"] = p.step.seconds;
  json["measured_step_time_s"] = p.run.step_time_s;
  json["measured_as"] = p.run.measured_as;
  json["error"] = p.error();
  json["memory"] = {
      {"peak_bytes", p.memory_bytes}, {"limit_bytes", p.memory_limit_bytes}, {"fits", p.fits()}};
  json["restated_mfu"] = restated_mfu(p, p.run.step_time_s);
  json["predicted_restated_mfu"] = restated_mfu(p, p.step.seconds);
  if (p.run.stated_mfu > 0.0) {
    // The source's own formula, and the same with the predicted time.
    json["stated_mfu"] = p.run.stated_mfu;
    json["predicted_stated_mfu"] = p.run.stated_mfu * p.run.step_time_s / p.step.seconds;
  }
  return text_of(json);
}

std::string to_table(const std::vector<PricedRow>& rows) {
  std::string text =
      fmt::format("{:>5} {:<22}{:>6} {:<22}{:<16}{:>10}{:>10}{:>8}\n", "line", "machine", "GPUs",
                  "model", "precision", "measured", "predicted", "error");
  std::map<std::string, std::vector<double>> families;
  std::vector<double> calibrated;
  std::vector<double> tested;
  std::map<std::string, int> skipped;
  for (const PricedRow& p : rows) {
    if (!p.skipped.empty()) {
      ++skipped[p.skipped];
      continue;
    }
    text += fmt::format("{:>5} {:<22}{:>6} {:<22}{:<16}{:>10.4g}{:>10.4g}{:>+7.1f}%\n", p.run.line,
                        p.run.machine, p.run.num_gpus, printable(p.run.model).substr(0, 21),
                        printable(p.run.stated_precision).substr(0, 15), p.run.step_time_s,
                        p.step.seconds, 100.0 * p.error());
    families[p.run.family].push_back(p.error());
    (p.run.calibrates ? calibrated : tested).push_back(p.error());
  }
  for (const auto& [why, count] : skipped) text += fmt::format("skipped {}: {}\n", count, why);
  text += fmt::format("\n{:<34}{:>5}{:>8}{:>8}{:>8}{:>8}{:>8}\n", "error of step time in %", "rows",
                      "mean", "median", "p90", "worst", "bias");
  for (const auto& [family, errors] : families) text += summary_line(family, errors);
  text += summary_line("all that may calibrate", calibrated);
  text += summary_line("all others: tested", tested);
  return text;
}

}  // namespace tokamak
