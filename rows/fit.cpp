// Fits the constants of machine files that are said to be "fitted" (docs/pricing-accuracy.md) on
// measured rows that may calibrate: by coordinate search from what the files say, the same numbers
// at every run. Prints each constant and the errors of all rows with them.
//
//   tokamak_rows_fit FOLDER_OF_MEASUREMENTS [rounds [words of the keys to fit, all others stay]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tokamak/core/error.h"

#include "rows/row_price.h"

namespace tokamak {
namespace {

// vTrain's rows on one node: a twentieth of them may calibrate.
constexpr size_t kNthOfVTrain = 20;
constexpr double kFar = 0.08;

// One number for all machines that include one of `parts`.
struct Constant {
  std::vector<std::string> parts;
  std::string key;
  double low = 0.0;
  double high = 1.0;
  double value = 0.0;
};

std::vector<Constant> constants_to_fit() {
  return {
      {{"a100-40", "a100-80", "a100-80-cloud", "a100-80-opa", "nemo-hopper"},
       "software.power_derate",
       .5,
       1},
      {{"h100-published", "h100-96"}, "device.gemm_efficiency_fp8", .3, .99},
      {{"gb200", "b200", "gb300"}, "software.power_derate", .5, 1},
      {{"gb200", "b200"}, "device.gemm_efficiency_fp8", .3, .99},
      {{"gb300"}, "device.gemm_efficiency_fp8", .3, .99},
      {{"gb200", "b200"}, "device.gemm_efficiency_fp4", .1, .99},
      {{"gb300"}, "device.gemm_efficiency_fp4", .1, .99},
      {{"nemo"}, "software.tensor_parallel_overlap", .1, 1},
      {{"mosaic", "megatron", "vtrain"}, "software.elementwise_traffic", .8, 5},
      {{"torchtitan"}, "software.elementwise_traffic", .8, 9},
      {{"mosaic-hopper", "torchtitan-hopper"}, "software.power_derate", .5, 1},
      {{"vtrain"}, "software.host_block_s", 1e-4, 1e-2},
      {{"a100-40", "a100-80", "a100-80-cloud", "a100-80-opa"}, "device.gemm_odd_share", .1, 1},
  };
}

struct FitRow {
  const MeasuredRun* row = nullptr;
  const PlannedRow* plan = nullptr;
  std::string machine;
  double weight = 1.0;
  double loss = 0.0;
};

bool has_part(const std::string& machine, const std::vector<std::string>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return fmt::format("+{}+", machine).find(fmt::format("+{}+", part)) != std::string::npos;
  });
}

class Fit {
 public:
  Fit(const std::vector<MeasuredRun>& rows, std::vector<Constant> constants)
      : constants_(std::move(constants)) {
    std::map<std::string, int> family_size;
    for (const MeasuredRun& row : rows) {
      if (!row.skipped.empty() || !row.calibrates) continue;
      if (!machines_.contains(row.machine))
        machines_.emplace(row.machine, price::load_machine(row.machine));
      const price::Machine& machine = machines_.at(row.machine);
      const std::string key = plan_key(row, machine);
      if (!plans_.contains(key)) plans_.emplace(key, std::make_unique<PlannedRow>(row, machine));
      rows_.push_back({.row = &row, .plan = plans_.at(key).get(), .machine = row.machine});
      ++family_size[row.family];
    }
    // A family of many alike rows does not outweigh all others.
    for (FitRow& row : rows_) row.weight = 1.0 / std::sqrt(family_size.at(row.row->family));
    for (Constant& c : constants_) {
      for (const auto& [name, machine] : machines_) {
        if (has_part(name, c.parts)) c.value = price::get_number(machine, c.key);
      }
    }
    for (const Constant& c : constants_) set(c, c.value);
    for (FitRow& row : rows_) row.loss = loss_of(row);
  }

  double total() const {
    double sum = 0.0;
    double weights = 0.0;
    for (const FitRow& row : rows_) {
      sum += row.weight * row.loss;
      weights += row.weight;
    }
    return sum / weights;
  }

  /// Keys with one of `words`; none = all.
  void run(int rounds, std::span<const std::string> words) {
    std::vector<double> steps;
    for (const Constant& c : constants_) steps.push_back(is_named(c.key, words) ? 0.06 : 0.0);
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < constants_.size(); ++i) {
        if (steps[i] == 0.0) continue;
        const bool moved =
            move(constants_[i], std::exp(steps[i])) || move(constants_[i], std::exp(-steps[i]));
        steps[i] *= moved ? 1.3 : 0.5;
      }
      fmt::print("round {}: mean loss {:.4f}\n", round + 1, total());
      std::fflush(stdout);
      if (*std::max_element(steps.begin(), steps.end()) < 2e-3) break;
    }
  }

  const std::vector<Constant>& constants() const { return constants_; }

 private:
  static bool is_named(const std::string& key, std::span<const std::string> words) {
    return words.empty() || std::any_of(words.begin(), words.end(), [&](const std::string& word) {
             return key.find(word) != std::string::npos;
           });
  }

  void set(const Constant& c, double value) {
    for (auto& [name, machine] : machines_) {
      if (has_part(name, c.parts)) price::set_number(machine, c.key, value);
    }
  }

  // Absolute error in logarithm; beyond kFar, where a release or a bug is what differs, it counts a
  // fifth.
  double loss_of(const FitRow& row) const {
    const double seconds =
        price_planned_row(*row.row, *row.plan, machines_.at(row.machine)).seconds;
    const double e = std::abs(std::log(seconds / row.row->step_time_s));
    return e < kFar ? e : kFar + 0.2 * (e - kFar);
  }

  bool move(Constant& c, double factor) {
    const double value = std::clamp(c.value * factor, c.low, c.high);
    if (value == c.value) return false;
    set(c, value);
    std::vector<double> losses;
    double change = 0.0;
    for (const FitRow& row : rows_) {
      losses.push_back(has_part(row.machine, c.parts) ? loss_of(row) : row.loss);
      change += row.weight * (losses.back() - row.loss);
    }
    if (change > -1e-9) {
      set(c, c.value);
      return false;
    }
    c.value = value;
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i].loss = losses[i];
    return true;
  }

  std::vector<Constant> constants_;
  std::map<std::string, std::unique_ptr<PlannedRow>> plans_;
  std::map<std::string, price::Machine> machines_;
  std::vector<FitRow> rows_;
};

int fit(const std::string& folder, int rounds, std::span<const std::string> words) {
  std::vector<MeasuredRun> rows = read_measured_rows(folder + "/training_runs.csv");
  const std::vector<MeasuredRun> vtrain = read_measured_rows(folder + "/vtrain_single_node.csv");
  for (size_t i = 0; i < vtrain.size(); i += kNthOfVTrain) rows.push_back(vtrain[i]);
  Fit fit(rows, constants_to_fit());
  fmt::print("start: mean loss {:.4f}\n", fit.total());
  fit.run(rounds, words);
  for (const Constant& c : fit.constants())
    fmt::print("{} {} = {:.4g}\n", fmt::join(c.parts, ","), c.key, c.value);
  return 0;
}

}  // namespace
}  // namespace tokamak

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print("usage: tokamak_rows_fit FOLDER [rounds [KEY ...]]\n");
    return 2;
  }
  try {
    const std::vector<std::string> words(argv + std::min(argc, 3), argv + argc);
    return tokamak::fit(argv[1], argc > 2 ? std::atoi(argv[2]) : 12, words);
  } catch (const std::exception& e) {
    fmt::print("{}\n", e.what());
    return 2;
  }
}
