// What must hold of the price of any plan on any machine, over drawn ones.
#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tokamak/config/check.h"
#include "tokamak/config/load.h"
#include "tokamak/price/machine/machine_key.h"
#include "tokamak/price/report/report_of.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/run_of_config.h"

#include "tests/fixtures/draw.h"

namespace tokamak {
namespace {

using price::Dimension;
using price::MachineKey;

constexpr uint64_t kSeed = 20261121;
constexpr uint64_t kNumDrawn = 20;

struct DrawnRun {
  std::vector<std::string> words;
  int64_t gpus = 1;
  std::string machine;
  bool wants_fp8 = false;
};

DrawnRun drawn_run(uint64_t index) {
  Draw draw(kSeed, index);
  const int pp = draw.one_of({1, 1, 2, 3});
  const int tp = draw.one_of({1, 2, 4});
  const int cp = draw.one_of({1, 1, 2});
  const int shard = draw.one_of({1, 2, 4});
  const int replicate = draw.one_of({1, 1, 2});
  DrawnRun run{.gpus = int64_t{pp} * tp * cp * shard * replicate,
               .machine = draw.one_of({"h100", "h200", "a100-80", "gb200", "mi300x", "frontier"})};
  run.wants_fp8 = draw.flip() && run.machine != "a100-80" && run.machine != "frontier";
  const auto degree = [](const char* axis, int n) {
    return fmt::format("--parallelism.{}_degree={}", axis, n);
  };
  run.words = {"--training.dataset=synthetic",
               "--job.device=cuda",
               "--model.name=llama3",
               "--model.flavor=debugmodel",
               fmt::format("--training.seq_len={}", draw.one_of({512, 1024, 4096})),
               fmt::format("--training.local_batch_size={}", pp * draw.one_of({1, 2})),
               fmt::format("--activation_checkpoint.mode={}", draw.one_of({"none", "full"})),
               degree("pipeline_parallel", pp),
               degree("tensor_parallel", tp),
               degree("context_parallel", cp),
               degree("data_parallel_shard", shard),
               degree("data_parallel_replicate", replicate)};
  return run;
}

PriceRequest request_of(const DrawnRun& run) {
  PriceRequest request{.config = load_config(std::nullopt, run.words).config,
                       .machine = price::load_machine(run.machine)};
  validate(request.config, run.gpus);
  request.degrees = resolve_degrees(request.config.parallelism, run.gpus);
  if (run.wants_fp8) request.linear = price::Precision::kFp8;
  return request;
}

bool is_rate(const MachineKey& key) {
  return key.dimension == Dimension::kBytesPerSecond || key.dimension == Dimension::kFlopsPerSecond;
}

bool is_time(const MachineKey& key) {
  return key.dimension == Dimension::kSeconds || key.dimension == Dimension::kSecondsPerRootMib;
}

bool is_efficiency(const MachineKey& key) {
  return key.name.ends_with("efficiency") || key.name.starts_with("device.gemm_efficiency") ||
         key.name.starts_with("device.tile_") || key.name == "software.power_derate";
}

class PriceDrawn : public testing::TestWithParam<uint64_t> {
 protected:
  PriceDrawn() : request_(request_of(drawn_run(GetParam()))) {}

  PriceRequest request_;
};

TEST_P(PriceDrawn, ABetterMachineIsNeverSlower) {
  const double before = price_run(request_).step.seconds;
  int faster = 0;
  for (const MachineKey& key : price::all_keys(request_.machine)) {
    if (!is_rate(key) && !is_efficiency(key) && !is_time(key)) continue;
    PriceRequest other = request_;
    const double value = key.value(other.machine);
    price::set_number(other.machine, key.name,
                      is_time(key) ? value / 1.5 : std::min(1.5 * value, key.max));
    const double after = price_run(other).step.seconds;
    EXPECT_LE(after, before * (1.0 + 1e-12)) << key.name;
    faster += after < before ? 1 : 0;
  }
  EXPECT_GE(faster, 3) << "a step is bound by something";
}

TEST_P(PriceDrawn, AllRatesTimesXTakeTheTimeOverX) {
  const double before = price_run(request_).step.seconds;
  for (const double x : {2.0, 0.25}) {
    PriceRequest other = request_;
    for (const MachineKey& key : price::all_keys(other.machine)) {
      const double factor = is_rate(key) ? x : is_time(key) ? 1.0 / x : 1.0;
      key.set(other.machine, key.at, factor * key.value(other.machine));
    }
    EXPECT_NEAR(price_run(other).step.seconds * x / before, 1.0, 1e-9);
  }
}

TEST_P(PriceDrawn, TwiceTheSameBytes) {
  const auto text = [](const PriceRequest& request) {
    const price::Report report = report_of(request, price_run(request), 1e12);
    return to_json(report) + to_text(report);
  };
  EXPECT_EQ(text(request_), text(request_of(drawn_run(GetParam()))));
}

INSTANTIATE_TEST_SUITE_P(All, PriceDrawn, testing::Range<uint64_t>(0, kNumDrawn));

}  // namespace
}  // namespace tokamak
