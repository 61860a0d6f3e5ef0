// Steps measured by this program on H100 and H200 (docs/performance.md), priced.
#include <cmath>
#include <sstream>
#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/config/check.h"
#include "tokamak/config/load.h"
#include "tokamak/core/bytes.h"
#include "tokamak/core/error.h"
#include "tokamak/core/file.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/run_of_config.h"

#include "rows/csv_reader.h"
#include "rows/row_price.h"

namespace tokamak {
namespace {

// Of each run's step, in %: priced by the machine's file alone, and with rates measured op by op.
constexpr double kPlainBoundPct = 10.0;
constexpr double kCalibratedBoundPct = 5.0;

struct HomeRun {
  std::string machine;
  std::string name;
  int64_t gpus = 0;
  double tokens_per_s_per_gpu = 0.0;
  double planned_gib = 0.0;  // 0 = not logged
  double rounding_gib = 0.0;
  std::vector<std::string> words;
  std::vector<std::string> numbers;  // of the program that ran, where the machine's differ by now
};

std::string data_folder() {
  return TOK_SOURCE_DIR "/tests/measured/";
}

HomeRun run_of(const std::string& machine, const CsvFields& fields) {
  TOK_REQUIRE(fields.size() == 5, "{}: wanted 5 fields, got {}", fields[0], fields.size());
  HomeRun run{
      .machine = machine,
      .name = fields[0],
      .gpus = std::stoll(fields[1]),
      .tokens_per_s_per_gpu = std::stod(fields[2]),
      .planned_gib = fields[3].empty() ? 0.0 : std::stod(fields[3]),
      .rounding_gib = fields[3].size() - fields[3].find('.') > 2 ? 0.006 : 0.1,
      .words = {"--training.dataset=synthetic", "--job.device=cuda", "--model.name=llama3",
                "--model.flavor=8B", "--training.seq_len=8192",
                "--training.mixed_precision_param=bfloat16", "--activation_checkpoint.mode=none"}};
  std::istringstream words(fields[4]);
  const std::string assets = "--model.hf_assets_path=";
  const std::string set = "--set=";
  for (std::string word; words >> word;) {
    if (word.starts_with(set)) {
      run.numbers.push_back(word.substr(set.size()));
      continue;
    }
    const bool is_path = word.starts_with(assets);
    run.words.push_back(is_path ? assets + data_folder() + word.substr(assets.size()) : word);
  }
  return run;
}

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest's
[[maybe_unused]] void PrintTo(const HomeRun& run, std::ostream* out) {
  *out << run.name;
}

std::vector<HomeRun> home_runs(const std::string& machine, const std::string& kind = "") {
  const std::string text = read_file(fmt::format("{}{}{}_runs.csv", data_folder(), machine, kind));
  CsvReader csv(text);
  csv.next();  // names of columns
  std::vector<HomeRun> runs;
  while (!csv.at_end()) runs.push_back(run_of(machine, csv.next()));
  return runs;
}

PricedRun price(const HomeRun& run, const std::string& machine) {
  PriceRequest request{.config = load_config(std::nullopt, run.words).config,
                       .machine = price::load_machine(machine)};
  for (const std::string& number : run.numbers) price::set_number(request.machine, number);
  validate(request.config, run.gpus);
  request.degrees = resolve_degrees(request.config.parallelism, run.gpus);
  return price_run(request);
}

std::string calibrated_machine(const HomeRun& run) {
  std::string ops = fmt::format("{0}+{1}{0}_ops.toml", run.machine, data_folder());
  if (run.gpus == 1) return ops;
  return ops + "+" + data_folder() + (run.gpus == 2 ? "h200_pair.toml" : "h200_four.toml");
}

double error_pct(const HomeRun& run, const PricedRun& priced) {
  const double measured_s =
      priced.tokens_per_step / (run.tokens_per_s_per_gpu * static_cast<double>(run.gpus));
  return 1e2 * (priced.step.seconds / measured_s - 1.0);
}

class HomeRuns : public testing::TestWithParam<HomeRun> {};

TEST_P(HomeRuns, ArePredicted) {
  const HomeRun& run = GetParam();
  const PricedRun plain = price(run, run.machine);
  const PricedRun calibrated = price(run, calibrated_machine(run));
  std::string peaks;
  for (const PlannedRanks::Rank& rank : plain.planned.ranks())
    peaks += fmt::format(" {:.2f}", static_cast<double>(rank.peak_bytes()) / kGiB);
  fmt::print("{:<28} {:+6.1f} % plain, {:+6.1f} % calibrated; GiB{}\n", run.name,
             error_pct(run, plain), error_pct(run, calibrated), peaks);
  EXPECT_LE(std::abs(error_pct(run, plain)), kPlainBoundPct);
  EXPECT_LE(std::abs(error_pct(run, calibrated)), kCalibratedBoundPct);
  const double gib = static_cast<double>(plain.planned.fullest().peak_bytes()) / kGiB;
  if (run.planned_gib > 0.0) {
    EXPECT_NEAR(gib, run.planned_gib, run.rounding_gib);
  }
}

std::string index_of(const testing::TestParamInfo<HomeRun>& run) {
  return fmt::format("{}", run.index);
}

INSTANTIATE_TEST_SUITE_P(H100, HomeRuns, testing::ValuesIn(home_runs("h100")), index_of);
INSTANTIATE_TEST_SUITE_P(H200, HomeRuns, testing::ValuesIn(home_runs("h200")), index_of);

// Whose plans have 8-bit quantized values. No op was measured for them by itself.
class Float8Runs : public testing::TestWithParam<HomeRun> {};

TEST_P(Float8Runs, ArePredicted) {
  constexpr double kBoundPct = 5.0;
  const HomeRun& run = GetParam();
  const PricedRun priced = price(run, run.machine);
  const double gib = static_cast<double>(priced.planned.fullest().peak_bytes()) / kGiB;
  fmt::print("{:<40} {:+6.1f} %; GiB {:.2f}\n", run.name, error_pct(run, priced), gib);
  EXPECT_LE(std::abs(error_pct(run, priced)), kBoundPct);
  if (run.planned_gib > 0.0) {
    EXPECT_NEAR(gib, run.planned_gib, run.rounding_gib);
  }
}

INSTANTIATE_TEST_SUITE_P(H200, Float8Runs, testing::ValuesIn(home_runs("h200", "_fp8")), index_of);

struct Reached {
  double mean_pct;
  double worst_pct;
};

void expect_on_average(const std::string& machine, const std::vector<HomeRun>& runs, int num_runs,
                       Reached by_file, Reached by_rates) {
  std::vector<double> plain;
  std::vector<double> calibrated;
  for (const HomeRun& run : runs) {
    plain.push_back(error_pct(run, price(run, machine)));
    calibrated.push_back(error_pct(run, price(run, calibrated_machine(run))));
  }
  for (const auto& [what, errors, bound] :
       {std::tuple{"plain", plain, by_file}, std::tuple{"calibrated", calibrated, by_rates}}) {
    const ErrorSummary e = summarize(errors);
    fmt::print("{} runs on {}, {}: mean {:.3f} %, worst {:.3f} %\n", e.count, machine, what, e.mean,
               e.worst);
    EXPECT_EQ(e.count, num_runs);
    EXPECT_LE(e.mean, bound.mean_pct);
    EXPECT_LE(e.worst, bound.worst_pct);
  }
}

std::vector<HomeRun> home_runs(const std::string& machine, int64_t gpus) {
  std::vector<HomeRun> runs;
  for (HomeRun& run : home_runs(machine)) {
    if (run.gpus == gpus) runs.push_back(std::move(run));
  }
  return runs;
}

// What docs/pricing-accuracy.md says of all of them. The bounds are what is reached, rounded up.
TEST(AllHomeRuns, ArePredictedOnAverage) {
  expect_on_average("h200", home_runs("h200"), 99, {.mean_pct = 2.1, .worst_pct = 6.5},
                    {.mean_pct = 1.7, .worst_pct = 4.9});
  expect_on_average("h100", home_runs("h100", 1), 45, {.mean_pct = 1.4, .worst_pct = 3.8},
                    {.mean_pct = 1.8, .worst_pct = 5.0});
  expect_on_average("h100", home_runs("h100", 2), 26, {.mean_pct = 2.2, .worst_pct = 5.1},
                    {.mean_pct = 2.7, .worst_pct = 5.0});
}

}  // namespace
}  // namespace tokamak
