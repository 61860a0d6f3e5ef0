#include "tokamak/price/machine.h"

#include <gtest/gtest.h>

namespace tokamak::price {
namespace {

TEST(Precision, HasNames) {
  EXPECT_EQ(name_of(Precision::kBf16), "bf16");
  EXPECT_EQ(name_of(Precision::kFp4), "fp4");
}

}  // namespace
}  // namespace tokamak::price
