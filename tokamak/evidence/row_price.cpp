#include "tokamak/evidence/row_price.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "tokamak/core/error.h"
#include "tokamak/core/json.h"
#include "tokamak/core/names.h"
#include "tokamak/evidence/row_time.h"
#include "tokamak/evidence/row_words.h"
#include "tokamak/price/machine/device_spread.h"
#include "tokamak/price/run/slowest_place.h"

namespace tokamak {
namespace {

constexpr int64_t kMostCalibrated = 64;

bool is_nemo_405b(const MeasuredRow& row) {
  return mentions(row.source, "seed 004");
}

// The last plans made: rows of one shape stand together in files.
class LastPlans {
 public:
  const PlannedRow& of(const MeasuredRow& row, int place) {
    std::string key = fmt::format("{} {}", plan_key(row), place);
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const auto& kept) { return kept.first == key; });
    if (found != kept_.end()) return *found->second;
    if (kept_.size() == kMost) kept_.erase(kept_.begin());
    kept_.emplace_back(std::move(key), std::make_unique<PlannedRow>(row, place));
    return *kept_.back().second;
  }

 private:
  static constexpr size_t kMost = 16;
  std::vector<std::pair<std::string, std::unique_ptr<PlannedRow>>> kept_;
};

void set_numbers(price::Machine& machine, const RowPriceOptions& options) {
  for (const std::string& assignment : options.assignments) price::set_number(machine, assignment);
  price::validate(machine);
}

std::string summary_line(std::string_view name, const std::vector<double>& errors) {
  if (errors.empty()) return "";
  const ErrorSummary s = summarize(errors);
  return fmt::format("{:<34}{:>5}{:>8.1f}{:>8.1f}{:>8.1f}{:>8.1f}{:>+8.1f}\n", name, s.count,
                     100.0 * s.mean, 100.0 * s.median, 100.0 * s.p90, 100.0 * s.worst,
                     100.0 * s.bias);
}

// Sources spell names in any encoding: bytes that are not UTF-8 are replaced.
std::string text_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// That some machine of the rows takes the assignments; of those that do not, each row says so.
void require_assignments(const std::vector<MeasuredRow>& rows, const RowPriceOptions& options) {
  if (options.assignments.empty()) return;
  std::set<std::string> names;
  for (const MeasuredRow& row : rows) {
    if (row.skipped.empty() && !machine_of_row(row).empty())
      names.insert(machine_names_of_row(row));
  }
  if (names.empty()) {
    for (const std::string& name : price::machine_names()) names.insert(name);
  }
  std::string first_error;
  for (const std::string& name : names) {
    try {
      price::Machine machine = price::load_machine(name);
      try {
        set_numbers(machine, options);
        return;
      } catch (const Error& e) {
        if (first_error.empty()) first_error = e.what();
      }
    } catch (const Error&) {
      continue;  // its rows are skipped
    }
  }
  if (!first_error.empty()) throw Error(first_error);
}

}  // namespace

std::string machine_names_of_row(const MeasuredRow& row) {
  const std::string software = software_of(row);
  std::string machine = machine_of_row(row);
  if (software == "tokamak") return machine;
  if (machine == "h100" && row.machine.empty()) machine += "-published";
  if (software == "llm.c") return machine;
  std::string names = fmt::format("{}+{}", machine, software);
  const bool is_hopper = machine.starts_with("h100") || machine.starts_with("h200");
  if (is_hopper && software != "megatron" && software != "vtrain")
    names += fmt::format("+{}-hopper", software.substr(0, software.find('-')));
  // Composer's precisions: "amp_bf16", and "bf16" for all of it.
  if (software == "mosaic" && mentions(row.notes, "amp_")) names += "+mosaic-amp";
  return names;
}

price::Machine filled_as_of_row(const MeasuredRow& row, price::Machine machine) {
  if (!software_of(row).starts_with("nemo")) return machine;
  return price::with_equal_domains(std::move(machine), row.num_gpus);
}

price::StepPrice price_planned_row(const MeasuredRow& row, const PlannedRow& planned,
                                   const price::Machine& machine) {
  return price::price_step(planned.ranks(), static_cast<int>(row.num_microbatches()),
                           price::slowest_of(filled_as_of_row(row, machine), row.num_gpus),
                           {.linear = precision_of_row(row),
                            .device_graphs = false,
                            .splits_messages = imitation_of(row).whole_sequences});
}

std::vector<PricedRow> price_rows(const std::vector<MeasuredRow>& rows,
                                  const RowPriceOptions& options) {
  require_assignments(rows, options);
  LastPlans plans;
  std::map<std::string, price::Machine> machines;
  std::vector<PricedRow> priced;
  for (const MeasuredRow& row : rows) {
    PricedRow& p = priced.emplace_back();
    p.row = row;
    p.skipped = row.skipped;
    if (p.skipped.empty() && machine_of_row(row).empty())
      p.skipped = fmt::format("no machine file of gpu {}", printable(row.gpu));
    if (!p.skipped.empty()) continue;
    p.machine = machine_names_of_row(row);
    try {
      if (!machines.contains(p.machine)) {
        price::Machine loaded = price::load_machine(p.machine);
        set_numbers(loaded, options);
        machines.emplace(p.machine, std::move(loaded));
      }
      const price::Machine& machine = machines.at(p.machine);
      p.peak_flops = machine.device.peak_flops[precision_of_row(row)];
      const int place =
          slowest_place(shape_of_row(row, 0).distribute, filled_as_of_row(row, machine));
      p.step = price_planned_row(row, plans.of(row, place), machine);
    } catch (const Error& e) {
      p.skipped = e.what();
    }
  }
  return priced;
}

std::string family_of(const MeasuredRow& row) {
  if (is_nemo_405b(row)) return fmt::format("NeMo 405B (12 rows) {}", row.precision);
  if (mentions(row.source, "seed 002")) return "GB200 torchtitan (3 rows)";
  const std::string software = software_of(row);
  if (software == "vtrain") return row.num_gpus > 8 ? "vTrain multi-node" : "vTrain single-node";
  std::string gpu = machine_of_gpu(row.gpu);
  if (gpu == "frontier") gpu = "mi250x-gcd";
  const bool is_500_w = gpu == "h100-96";
  gpu = gpu.substr(0, gpu.find('-'));
  std::transform(gpu.begin(), gpu.end(), gpu.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  if (is_500_w) gpu += "-500W";
  const std::string_view precision = price::name_of(precision_of_row(row));
  return fmt::format("{} {} {}", software, gpu, precision);
}

bool may_calibrate(const MeasuredRow& row) {
  return row.num_gpus <= kMostCalibrated && !is_nemo_405b(row);
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
  const double tokens = static_cast<double>(p.row.global_batch * p.row.seq_len);
  return causal_flops_per_token(p.row) * tokens /
         (seconds * p.peak_flops * static_cast<double>(p.row.num_gpus));
}

std::string to_json(const PricedRow& p) {
  OrderedJson json = {{"row", p.row.number},         {"line", p.row.line},
                      {"source", p.row.source},      {"gpu", p.row.gpu},
                      {"n_gpus", p.row.num_gpus},    {"model", p.row.model},
                      {"precision", p.row.precision}};
  if (!p.skipped.empty()) {
    json["skipped"] = p.skipped;
    return text_of(json);
  }
  json["machine"] = p.machine;
  json["family"] = family_of(p.row);
  json["calibrates"] = may_calibrate(p.row);
  json["predicted_step_time_s"] = p.step.seconds;
  json["measured_step_time_s"] = p.row.step_time_s;
  json["measured_as"] = p.row.measured_as;
  json["error"] = p.error();
  json["restated_mfu"] = restated_mfu(p, p.row.step_time_s);
  json["predicted_restated_mfu"] = restated_mfu(p, p.step.seconds);
  if (p.row.stated_mfu > 0.0) {
    // The source's own formula, and the same with the predicted time.
    json["stated_mfu"] = p.row.stated_mfu;
    json["predicted_stated_mfu"] = p.row.stated_mfu * p.row.step_time_s / p.step.seconds;
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
    text += fmt::format("{:>5} {:<22}{:>6} {:<22}{:<16}{:>10.4g}{:>10.4g}{:>+7.1f}%\n", p.row.line,
                        p.machine, p.row.num_gpus, printable(p.row.model).substr(0, 21),
                        printable(p.row.precision).substr(0, 15), p.row.step_time_s, p.step.seconds,
                        100.0 * p.error());
    families[family_of(p.row)].push_back(p.error());
    (may_calibrate(p.row) ? calibrated : tested).push_back(p.error());
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
