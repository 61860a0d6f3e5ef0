// Bounds and estimates of a search against the prices of the plans.
#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/price/run/priced_run.h"
#include "tokamak/run/run_of_config.h"
#include "tokamak/search/point_estimates.h"
#include "tokamak/search/search_space.h"

#include "tests/fixtures/draw.h"

namespace tokamak {
namespace {

struct Drawn {
  Config config;
  ModelSpec model;
  SearchPoint point;
};

template <class T>
T one_of(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

enum class Scale : uint8_t { kSmall, kLarge };

struct Draws {
  uint64_t seed = 2026;  ///< or TOK_ESTIMATE_SEED
  uint64_t count = 200;  ///< or TOK_ESTIMATE_COUNT
  Scale scale = Scale::kSmall;
  const char* dtype = "float32";  ///< of masters
  bool gathers_again = false;     ///< meshes with tp alone, which gather for their backward
  double most_off = 0.03;         ///< of the time
  bool tied = false;              ///< models whose head is their embedding
  price::Precision precision = price::Precision::kBf16;
  bool in_order = false;  ///< meshes with cp alone, whose last rank attends most
};

// Of the space that a search looks through.
Drawn draw(std::mt19937& random, const Draws& draws = {}) {
  const bool is_large = draws.scale == Scale::kLarge;
  Drawn drawn;
  Config& c = drawn.config;
  c.training.dataset = "synthetic";
  c.training.dtype = draws.dtype;
  c.model.name = one_of(random, {"llama3", "llama3", "llama2", "gpt3"});
  c.model.flavor = c.model.name == "llama3"   ? is_large ? one_of(random, {"8B", "70B", "405B"})
                                                         : one_of(random, {"8B", "70B"})
                     : c.model.name == "llama2" ? one_of(random, {"7B", "13B"})
                                              : "22B";
  if (draws.tied) {
    c.model.name = one_of(random, {"llama3", "gpt2"});
    c.model.flavor = c.model.name == "llama3" ? one_of(random, {"1B", "3B"})
                                              : one_of(random, {"124M", "355M", "1.5B"});
  }
  c.training.seq_len = c.model.name == "gpt2"     ? 1024
                       : c.model.name == "llama3" ? one_of(random, {2048, 4096, 8192})
                                                  : 2048;
  drawn.model = spec_of(c);
  SearchBounds bounds{.num_gpus = is_large ? one_of(random, {256, 512, 1024, 4096})
                                           : one_of(random, {8, 16, 32, 64, 128})};
  bounds.global_batch = bounds.num_gpus * one_of(random, {2, 4, 8});
  bounds.seq_len = c.training.seq_len;
  bounds.precisions = {draws.precision};
  const std::vector<SearchPoint> points = search_points(drawn.model, bounds);
  drawn.point = points[random() % points.size()];
  c = config_of(drawn.point, c, bounds.global_batch);
  return drawn;
}

std::string text_of(const Drawn& drawn) {
  return fmt::format("{} {}, {}, {}, recompute {}, {}, {}", drawn.config.model.name,
                     drawn.config.model.flavor, mesh_text(drawn.point.degrees),
                     sharding_text(drawn.point), drawn.config.activation_checkpoint.mode,
                     drawn.config.training.seq_len,
                     schedule_text(drawn.point, static_cast<int>(drawn.model.num_layers)));
}

// By grain, on devices of whatever memory; empty where it has no plan.
std::vector<PointEstimate> estimates_of(const Drawn& drawn, price::Machine machine) {
  machine.device.memory_bytes = 1e18;
  const SearchRequest request{.config = drawn.config,
                              .num_gpus = drawn.point.degrees.world(),
                              .machine = machine,
                              .num_threads = 1};
  PointEstimates estimates(request);
  const std::vector<SearchPoint> points{drawn.point};
  std::vector<PointEstimate> grains;
  try {
    grains = estimates.bounds(points);
  } catch (const Error&) {
    return {};
  }
  while (!grains.empty() && grains.back().grain != Grain::kStep) {
    const std::vector<PointEstimate> closer = estimates.look_closer(grains.back());
    if (closer.empty()) return {};
    grains.push_back(closer[0]);
  }
  return grains;
}

std::optional<PricedRun> priced(const Drawn& drawn, const price::Machine& machine) {
  try {
    return price_run({.config = drawn.config,
                      .degrees = drawn.point.degrees,
                      .machine = machine,
                      .linear = drawn.point.linear});
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Draws that no plan can run, as with too few layers for their stages: such have no estimate, and
// few draws are such.
class Skips {
 public:
  explicit Skips(int num_wanted) : most_(4 + num_wanted / 10) {}

  // Whether to skip the draw. Throws Bug where there are too many, so that the draws end.
  bool skip(const Drawn& drawn, bool is_estimated, bool is_priced) {
    EXPECT_EQ(is_estimated, is_priced) << text_of(drawn);
    if (is_estimated && is_priced) return false;
    ++num_;
    TOK_CHECK(num_ <= most_, "{} draws skipped, the last: {}", num_, text_of(drawn));
    return true;
  }

  int num() const { return num_; }

 private:
  int most_;
  int num_ = 0;
};

// Near the price, with bounds of time and memory that no plan goes below.
void expect_agreement(const price::Machine& machine, const Draws& draws) {
  const auto count = static_cast<int>(number_from("TOK_ESTIMATE_COUNT", draws.count));
  std::mt19937 random(number_from("TOK_ESTIMATE_SEED", draws.seed));
  double worst_s = 0.0;
  double sum_s = 0.0;
  double most_bytes = 0.0;
  double sum_bytes = 0.0;
  Skips skips(count);
  for (int i = 0; i < count;) {
    Drawn drawn = draw(random, draws);
    if (drawn.point.num_microbatches > 64) continue;
    if (draws.gathers_again && drawn.point.degrees.tp == 1) continue;
    if (draws.in_order && drawn.point.degrees.cp == 1) continue;
    drawn.config.activation_checkpoint.gather_again = draws.gathers_again;
    if (draws.in_order) drawn.config.parallelism.context_parallel_load_balancer.reset();
    const std::vector<PointEstimate> grains = estimates_of(drawn, machine);
    const std::optional<PricedRun> run = priced(drawn, machine);
    if (skips.skip(drawn, !grains.empty(), run.has_value())) continue;
    const double off = grains.back().seconds / run->step.seconds - 1.0;
    const double bytes =
        grains.back().least_bytes / static_cast<double>(run->planned.fullest().peak_bytes());
    EXPECT_TRUE(std::abs(off) <= draws.most_off && bytes <= 1.0)
        << 1.0 + off << " of the time and " << bytes << " of the memory of " << text_of(drawn);
    EXPECT_LE(grains[0].seconds, run->step.seconds) << text_of(drawn);
    for (size_t g = 1; g < grains.size(); ++g) {
      // Works that come later can let others come earlier, by little.
      EXPECT_LE(grains[g - 1].seconds, 1.002 * grains[g].seconds) << text_of(drawn);
      EXPECT_LE(grains[g - 1].least_bytes, grains[g].least_bytes) << text_of(drawn);
    }
    worst_s = std::max(worst_s, std::abs(off));
    sum_s += std::abs(off);
    most_bytes = std::max(most_bytes, bytes);
    sum_bytes += bytes;
    ++i;
  }
  std::printf(
      "of %d: time off by %.2f %% at most and %.2f %% in the mean; least memory %.4f at most and "
      "%.3f in the mean; skipped: %d\n",
      count, 100.0 * worst_s, 100.0 * sum_s / count, most_bytes, sum_bytes / count, skips.num());
  EXPECT_GE(sum_bytes / count, 0.93);
}

price::Machine machine_of_draws() {
  const char* name = std::getenv("TOK_ESTIMATE_MACHINE");  // NOLINT(concurrency-mt-unsafe)
  return price::load_machine(name == nullptr ? "h100" : name);
}

TEST(StepEstimate, AgreesWithPlans) {
  expect_agreement(machine_of_draws(), {.count = 200});
}

// One of these, zero bubble on 32 stages of one layer that is recomputed, is 3.4 % off.
TEST(StepEstimate, AgreesWithPlansForManyDevices) {
  expect_agreement(machine_of_draws(), {.count = 40, .scale = Scale::kLarge, .most_off = 0.035});
}

TEST(StepEstimate, AgreesWithPlansOfBf16Masters) {
  expect_agreement(price::load_machine("h100"), {.count = 30, .dtype = "bfloat16"});
}

TEST(StepEstimate, AgreesWithPlansThatGatherAgain) {
  for (const char* machine : {"h100-published", "h200"})
    expect_agreement(price::load_machine(machine), {.count = 30, .gathers_again = true});
}

TEST(StepEstimate, AgreesWithPlansOfSequencesInOrder) {
  for (const char* machine : {"h100", "gb200"})
    expect_agreement(price::load_machine(machine), {.count = 15, .in_order = true});
}

// Power limits the clocks of each rank's step, and messages and collectives slow kernels.
TEST(StepEstimate, AgreesWithPlansOnHotDevices) {
  expect_agreement(price::load_machine("h200"), {.count = 50});
}

TEST(StepEstimate, AgreesWithPlansWhoseItemsEndWithTheirReductions) {
  price::Machine machine = price::load_machine("h200");
  price::set_number(machine, "software.reduction_overlap=0");
  expect_agreement(machine, {.count = 30});
}

// 72 GPUs of a rack hold no whole number of most stages: two of these draws have groups of 16 and
// of 64 ranks that cross racks in their second stage.
TEST(StepEstimate, AgreesWithPlansThatLieAcrossRacks) {
  expect_agreement(price::load_machine("gb200"), {.seed = 3, .count = 20});
}

// Gathers run beside the items, and gradients are summed in 2 bytes.
TEST(StepEstimate, AgreesWithPlansOfOtherSoftware) {
  expect_agreement(price::load_machine("h100-published+nemo"), {.count = 40});
}

TEST(StepEstimate, AgreesWithPlansThatMessagesSlow) {
  price::Machine machine = price::load_machine("h100-published");
  price::set_number(machine, "software.message_slowdown=1.13");
  expect_agreement(machine, {.count = 60});
}

// Gradients of a tied table are summed over the first and the last stage. An estimate gives all
// stages the clocks of the mean, and the head of a small model makes its own rank slower.
TEST(StepEstimate, AgreesWithPlansOfTiedTables) {
  expect_agreement(price::load_machine("h100"), {.count = 60, .most_off = 0.05, .tied = true});
}

TEST(StepEstimate, AgreesWithPlansInFp8) {
  for (const char* machine : {"h100", "h200"})
    expect_agreement(price::load_machine(machine),
                     {.count = 30, .most_off = 0.04, .precision = price::Precision::kFp8});
}

// A search leaves points out by their bounds.
void expect_bounds(uint64_t seed, int count, bool (*is_wanted)(const SearchPoint&)) {
  std::mt19937 random(seed);
  double closest = 0.0;
  for (const char* name : {"h100-published", "h200"}) {
    const price::Machine machine = price::load_machine(name);
    Skips skips(count);
    for (int i = 0; i < count;) {
      const Drawn drawn = draw(random);
      if (!is_wanted(drawn.point)) continue;
      const std::vector<PointEstimate> grains = estimates_of(drawn, machine);
      const std::optional<PricedRun> run = priced(drawn, machine);
      if (skips.skip(drawn, !grains.empty(), run.has_value())) continue;
      EXPECT_LE(grains[0].seconds, run->step.seconds) << name << " " << text_of(drawn);
      closest = std::max(closest, grains[0].seconds / run->step.seconds);
      ++i;
    }
  }
  EXPECT_GT(closest, 0.9);
}

TEST(StepEstimate, NoPlanOfOneStageIsFasterThanItsBound) {
  expect_bounds(7, 25, [](const SearchPoint& p) { return p.degrees.pp == 1; });
}

TEST(StepEstimate, NoSplitPipelineIsFasterThanItsBound) {
  expect_bounds(11, 20, [](const SearchPoint& p) {
    return p.degrees.pp > 1 && p.schedule.find("ZeroBubble") != std::string::npos &&
           p.num_microbatches <= 64;
  });
}

}  // namespace
}  // namespace tokamak
