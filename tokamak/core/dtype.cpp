#include "tokamak/core/dtype.h"

#include <array>
#include <utility>

#include "tokamak/core/error.h"
#include "tokamak/core/names.h"

namespace tokamak {
namespace {

constexpr std::array kNames{
    std::pair{DType::kF32, std::string_view("float32")},
    std::pair{DType::kF64, std::string_view("float64")},
    std::pair{DType::kBF16, std::string_view("bfloat16")},
    std::pair{DType::kF16, std::string_view("float16")},
    std::pair{DType::kI32, std::string_view("int32")},
    std::pair{DType::kI64, std::string_view("int64")},
    std::pair{DType::kU8, std::string_view("uint8")},
    std::pair{DType::kU16, std::string_view("uint16")},
    std::pair{DType::kU32, std::string_view("uint32")},
    std::pair{DType::kBool, std::string_view("bool")},
    std::pair{DType::kE4M3, std::string_view("float8_e4m3fn")},
    std::pair{DType::kE5M2, std::string_view("float8_e5m2")},
};

}  // namespace

std::string_view name_of(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  TOK_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

DType dtype_from_name(std::string_view name, std::string_view what) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  fail(
      "{}: no such element type \"{}\"; known are float32, bfloat16, float16, float64 and integers",
      what, printable(name));
}

F16::F16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((u >> 16U) & 0x8000U);
  const uint32_t magnitude = u & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    bits = static_cast<uint16_t>(sign | 0x7E00U);
  } else if (magnitude >= 0x477FF000U) {  // rounds beyond 65504
    bits = static_cast<uint16_t>(sign | 0x7C00U);
  } else if (magnitude <
             0x38800000U) {  // subnormal or zero: one add aligns and rounds the mantissa
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U));
  } else {
    const uint32_t odd = (magnitude >> 13U) & 1U;
    bits = static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13U));
  }
}

F16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16U;
  const uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00U)
    return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13U));
  if (magnitude >= 0x400U) return std::bit_cast<float>(sign | ((magnitude << 13U) + 0x38000000U));
  const float value = static_cast<float>(magnitude) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

}  // namespace tokamak
