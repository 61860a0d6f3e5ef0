#include "tokamak/train/lr_schedule.h"

#include <vector>

#include <gtest/gtest.h>

namespace tokamak {
namespace {

struct Case {
  const char* name;
  LrSchedule schedule;
  /// One factor per real step, from a list of the phases written out one by one.
  std::vector<double> factors;
};

std::vector<Case> cases() {
  using enum LrDecay;
  return {
      {"decay right after warm-up",
       {.warmup_steps = 2, .total_steps = 10},
       {0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125}},
      {"constant from step 1",
       {.warmup_steps = 0, .total_steps = 5, .min_lr_factor = 1.0},
       {1.0, 1.0, 1.0, 1.0, 1.0}},
      {"2.5 decay steps round to even",
       {.warmup_steps = 3, .total_steps = 10, .decay_ratio = 0.25, .min_lr_factor = 0.1},
       {1.0 / 3.0, 2.0 / 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.55}},
      {"cosine to a floor",
       {.warmup_steps = 2,
        .total_steps = 10,
        .decay_ratio = 0.5,
        .decay_type = kCosine,
        .min_lr_factor = 0.1},
       {0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.9140576474687263, 0.6890576474687263, 0.41094235253127376,
        0.18594235253127372}},
      {"square root",
       {.warmup_steps = 2, .total_steps = 10, .decay_ratio = 0.5, .decay_type = kSqrt},
       {0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5527864045000421, 0.3675444679663241, 0.2254033307585166,
        0.10557280900008414}},
      {"warm-up longer than the run",
       {.warmup_steps = 20, .total_steps = 10},
       {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}},
      {"decay cut to what warm-up leaves",
       {.warmup_steps = 4, .total_steps = 10, .decay_ratio = 0.9},
       {0.25, 0.5, 0.75, 1.0, 1.0, 5.0 / 6.0, 4.0 / 6.0, 0.5, 2.0 / 6.0, 1.0 / 6.0}},
      {"no decay",
       {.warmup_steps = 0, .total_steps = 4, .decay_ratio = 0.0, .decay_type = kCosine},
       {1.0, 1.0, 1.0, 1.0}},
  };
}

TEST(LrSchedule, EqualsTheTable) {
  for (const Case& c : cases()) {
    ASSERT_EQ(static_cast<int64_t>(c.factors.size()), c.schedule.total_steps) << c.name;
    for (size_t n = 0; n < c.factors.size(); ++n) {
      EXPECT_NEAR(lr_factor(c.schedule, static_cast<int64_t>(n)), c.factors[n], 1e-15)
          << c.name << ", after " << n << " updates";
    }
  }
}

TEST(LrSchedule, StaysAtItsEndBeyondTheTotal) {
  const LrSchedule decayed{
      .warmup_steps = 1, .total_steps = 4, .decay_type = LrDecay::kCosine, .min_lr_factor = 0.25};
  EXPECT_DOUBLE_EQ(lr_factor(decayed, 4), 0.25);
  EXPECT_DOUBLE_EQ(lr_factor(decayed, 1000), 0.25);
  EXPECT_DOUBLE_EQ(lr_factor({.warmup_steps = 4, .total_steps = 4}, 9), 1.0);
  EXPECT_DOUBLE_EQ(lr_factor({.warmup_steps = 4, .total_steps = 0}, 0), 1.0);
}

}  // namespace
}  // namespace tokamak
