#include "tokamak/checkpoint/formats/convert_elements.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tokamak/core/error.h"
#include "tokamak/core/random.h"

namespace tokamak {
namespace {

template <class To, class From>
std::vector<To> converted(const std::vector<From>& from, DType to_dtype, DType from_dtype) {
  std::vector<To> to(from.size());
  convert_elements(to_dtype, std::as_writable_bytes(std::span(to)), from_dtype,
                   std::as_bytes(std::span(from)));
  return to;
}

std::vector<float> sample() {
  std::vector<float> values{0.0F,    -0.0F,    1.0F,       65504.0F,   65519.9F, 65520.0F, -1e30F,
                            5.9e-8F, 2.98e-8F, 2.9801e-8F, 6.1035e-5F, INFINITY, -INFINITY};
  for (uint32_t i = 0; i < 50'000; ++i) {
    values.push_back(std::bit_cast<float>(random_u32(1, 2, i)));
    values.push_back(std::ldexp(static_cast<float>(to_uniform(random_u32(3, 4, i))),
                                static_cast<int>(i % 48) - 30));
  }
  std::erase_if(values, [](float x) { return std::isnan(x); });
  return values;
}

TEST(ConvertElements, halves_equal_the_scalar_type) {
  std::vector<uint16_t> halves(0x10000);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  const auto floats = converted<float>(halves, DType::kF32, DType::kF16);
  for (size_t i = 0; i < halves.size(); ++i) {
    F16 half;
    half.bits = halves[i];
    const auto wanted = static_cast<float>(half);
    ASSERT_TRUE(std::isnan(wanted)
                    ? std::isnan(floats[i])
                    : std::bit_cast<uint32_t>(wanted) == std::bit_cast<uint32_t>(floats[i]))
        << i;
  }
  const auto values = sample();
  const auto narrowed = converted<uint16_t>(values, DType::kF16, DType::kF32);
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(narrowed[i], F16(values[i]).bits) << values[i];
}

TEST(ConvertElements, brain_floats_equal_the_scalar_type) {
  const auto values = sample();
  const auto narrowed = converted<uint16_t>(values, DType::kBF16, DType::kF32);
  const auto widened = converted<float>(narrowed, DType::kF32, DType::kBF16);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(narrowed[i], BF16(values[i]).bits) << values[i];
    ASSERT_EQ(widened[i], static_cast<float>(BF16(values[i])));
  }
  const std::vector<float> nan{std::nanf("")};
  EXPECT_TRUE(std::isnan(converted<float>(converted<uint16_t>(nan, DType::kF16, DType::kF32),
                                          DType::kF32, DType::kF16)[0]));
}

TEST(ConvertElements, doubles_and_copies) {
  const std::vector<double> doubles{1.5, -2.25, 1e300};
  const auto floats = converted<float>(doubles, DType::kF32, DType::kF64);
  EXPECT_EQ(floats, (std::vector<float>{1.5F, -2.25F, INFINITY}));
  EXPECT_EQ(converted<double>(floats, DType::kF64, DType::kF32)[1], -2.25);
  const std::vector<int64_t> integers{1, -5};
  EXPECT_EQ(converted<int64_t>(integers, DType::kI64, DType::kI64), integers);
  EXPECT_FALSE(can_convert(DType::kF32, DType::kI64));
  EXPECT_THROW(converted<float>(std::vector<int32_t>{1}, DType::kF32, DType::kI32), Bug);
}

}  // namespace
}  // namespace tokamak
