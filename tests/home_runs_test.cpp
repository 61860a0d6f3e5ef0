// Steps measured by this program on H200s (docs/performance.md), priced.
#include <array>
#include <cmath>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/config/check.h"
#include "tokamak/config/load.h"
#include "tokamak/core/error.h"
#include "tokamak/train/options.h"
#include "tokamak/train/priced_run.h"

namespace tokamak {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct HomeRun {
  std::string name;
  int64_t gpus = 0;
  double tokens_per_s_per_gpu = 0.0;
  double planned_gib = 0.0;  // 0 = not logged
  double rounding_gib = 0.0;
  double plain_bound_pct = 0.0;
  double calibrated_bound_pct = 0.0;
  std::vector<std::string> words;
};

std::string data_folder() {
  return TOK_SOURCE_DIR "/tests/measured/";
}

// Fields of a line; quotes around those with commas.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields{""};
  bool is_quoted = false;
  for (const char c : line) {
    if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

HomeRun run_of(const std::string& line) {
  const std::vector<std::string> fields = fields_of(line);
  TOK_REQUIRE(fields.size() == 7, "{}: wanted 7 fields, got {}", line, fields.size());
  HomeRun run{
      .name = fields[0],
      .gpus = std::stoll(fields[1]),
      .tokens_per_s_per_gpu = std::stod(fields[2]),
      .planned_gib = fields[3].empty() ? 0.0 : std::stod(fields[3]),
      .rounding_gib = fields[3].size() - fields[3].find('.') > 2 ? 0.006 : 0.1,
      .plain_bound_pct = std::stod(fields[4]),
      .calibrated_bound_pct = std::stod(fields[5]),
      .words = {"--training.dataset=synthetic", "--job.device=cuda", "--model.name=llama3",
                "--model.flavor=8B", "--training.seq_len=8192",
                "--training.mixed_precision_param=bfloat16", "--activation_checkpoint.mode=none"}};
  std::istringstream words(fields[6]);
  const std::string assets = "--model.hf_assets_path=";
  for (std::string word; words >> word;) {
    const bool is_path = word.starts_with(assets);
    run.words.push_back(is_path ? assets + data_folder() + word.substr(assets.size()) : word);
  }
  return run;
}

[[maybe_unused]] void PrintTo(const HomeRun& run, std::ostream* out) {
  *out << run.name;
}

std::vector<HomeRun> home_runs() {
  std::ifstream file(data_folder() + "h200_runs.csv");
  std::vector<HomeRun> runs;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) runs.push_back(run_of(line));
  return runs;
}

PricedRun price(const HomeRun& run, const std::string& machine) {
  PriceRequest request{.config = load_config(std::nullopt, run.words).config,
                       .machine = price::load_machine(machine)};
  validate(request.config, run.gpus);
  request.degrees = resolve_degrees(request.config.parallelism, run.gpus);
  return price_run(request);
}

std::string calibrated_machine(const HomeRun& run) {
  const std::string ops = "h200+" + data_folder() + "h200_ops.toml";
  if (run.gpus == 1) return ops;
  return ops + "+" + data_folder() + (run.gpus == 2 ? "h200_pair.toml" : "h200_four.toml");
}

double error_of(const HomeRun& run, const PricedRun& priced) {
  const double measured_s =
      priced.tokens_per_step / (run.tokens_per_s_per_gpu * static_cast<double>(run.gpus));
  return priced.step.seconds / measured_s - 1.0;
}

class HomeRuns : public testing::TestWithParam<HomeRun> {};

TEST_P(HomeRuns, ArePredicted) {
  const HomeRun& run = GetParam();
  const PricedRun plain = price(run, "h200");
  const PricedRun calibrated = price(run, calibrated_machine(run));
  std::string peaks;
  for (const PlannedRanks::Rank& rank : plain.planned.ranks())
    peaks += fmt::format(" {:.2f}", static_cast<double>(rank.peak_bytes()) / kGiB);
  fmt::print("{:<28} {:+6.1f} % plain, {:+6.1f} % calibrated; GiB{}\n", run.name,
             1e2 * error_of(run, plain), 1e2 * error_of(run, calibrated), peaks);
  EXPECT_LE(1e2 * std::abs(error_of(run, plain)), run.plain_bound_pct);
  EXPECT_LE(1e2 * std::abs(error_of(run, calibrated)), run.calibrated_bound_pct);
  const double gib = static_cast<double>(plain.planned.fullest().peak_bytes()) / kGiB;
  if (run.planned_gib > 0.0) {
    EXPECT_NEAR(gib, run.planned_gib, run.rounding_gib);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HomeRuns, testing::ValuesIn(home_runs()),
                         [](const auto& run) { return fmt::format("{}", run.index); });

}  // namespace
}  // namespace tokamak
