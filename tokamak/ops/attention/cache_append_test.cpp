#include "tokamak/ops/attention/cache_append.h"

#include <gtest/gtest.h>

#include "tokamak/ops/test_op_case.h"
#include "tokamak/ops/test_op_runner.h"

namespace tokamak {
namespace {

TEST(CacheAppendOp, overwrites_its_slots_and_no_other) {
  CasesOf<CacheAppend> c;
  OpCase& k = c.good("two of five", {}, {f32({2, 5, 1, 3}), f32({2, 2, 1, 3}), i32({1})});
  k.fill = {{}, {}, {.values = {2}}};
  const auto values = testing::fill_inputs(k, DType::kF32);
  const auto out = testing::run_op(k, k.in, values)[0];
  for (size_t b = 0; b < 2; ++b) {
    for (size_t e = 0; e < 15; ++e) {
      const bool is_new = e / 3 == 2 || e / 3 == 3;
      EXPECT_EQ(out[b * 15 + e], is_new ? values[1][b * 6 + e - 6] : values[0][b * 15 + e]);
    }
  }
}

}  // namespace

template <>
OpCases cases_of<CacheAppend>() {
  CasesOf<CacheAppend> c;
  const auto good = [&](const std::string& name, const Types& in,
                        const std::vector<int64_t>& positions) {
    OpCase& added = c.good(name, {}, in);
    added.check_gradient = false;
    added.fill = {{}, {}, {.values = positions}};
  };
  good("one token", {f32({2, 6, 3, 4}), f32({2, 1, 3, 4}), i32({1})}, {5});
  good("prompt", {f32({6, 6, 2, 4}), f32({6, 4, 2, 4}), i32({1})}, {0});
  good("a place for each sample", {f32({4, 6, 2, 4}), f32({4, 1, 2, 4}), i32({4})}, {5, 0, 3, 3});
  good("two tokens at a place for each sample", {f32({3, 5, 1, 3}), f32({3, 2, 1, 3}), i32({3})},
       {3, 1, 0});
  c.bad("other heads", {}, {f32({2, 6, 3, 4}), f32({2, 1, 2, 4}), i32({1})});
  c.bad("longer than the cache", {}, {f32({2, 3, 3, 4}), f32({2, 4, 3, 4}), i32({1})});
  c.bad("places for other samples", {}, {f32({3, 6, 3, 4}), f32({3, 1, 3, 4}), i32({2})});
  c.bad("position of another type", {}, {f32({2, 6, 3, 4}), f32({2, 1, 3, 4}), i64({1})});
  return c.cases;
}

}  // namespace tokamak
